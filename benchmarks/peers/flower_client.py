"""The client app of the Flower peer.

In a module of its own, so that Ray's actors import it once and keep data and model from then on.
"""

import os
from pathlib import Path

import torch
import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

torch.set_num_threads(1)
given = workload.read(Path(os.environ["PEERS_FOLDER"]))
module = given.module()
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    workload.train(module, given.x[client], given.y[client], given.workload)
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": given.workload.examples}),
    }
    return Message(content=RecordDict(content), reply_to=message)
