"""The client app of the second Flower peer, as Flower's PyTorch tutorial writes one.

For every message it builds the model, loads the client's examples and makes a `DataLoader`; nothing is kept.
"""

import os
from pathlib import Path

import torch
import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    given = workload.read(Path(os.environ["PEERS_FOLDER"]))
    load, client = given.workload, int(context.node_config["partition-id"])
    model = load.module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    examples = TensorDataset(given.x[client].clone(), given.y[client].clone())
    loader = DataLoader(examples, batch_size=load.batch, shuffle=load.shuffle)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=load.lr, weight_decay=load.decay)
    model.train()
    running_loss = 0.0
    for _ in range(load.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), load.clip)
            optimizer.step()
            running_loss += loss.item()
    metrics = {"train_loss": running_loss / len(loader), "num-examples": len(examples)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=message)
