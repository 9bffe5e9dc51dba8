"""What a node does: train the model it is sent on its own digits. FedACG's penalty is one line."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, train_set
from torch.nn.functional import cross_entropy

from fedacg.flower import add_penalty

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.manual_seed(message.content["config"]["server-round"])
    config = context.run_config
    x, y = train_set(context.node_config["partition-id"], context.node_config["num-partitions"])
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())

    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    add_penalty(optimizer, beta=config["beta"])
    for _ in range(config["local-epochs"]):
        for batch in torch.randperm(len(y)).split(config["batch-size"]):
            optimizer.zero_grad()
            loss = cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()

    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y), "train-loss": loss.item()}),
        }
    )
    return Message(content, reply_to=message)
