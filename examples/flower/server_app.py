"""What the server does: FedACG in place of FedAvg is the import and the line that makes the strategy."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from task import Net, test_set
from torch.nn.functional import cross_entropy

from fedacg.flower import FedACG

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    config = context.run_config
    strategy = FedACG(lam=config["lam"], fraction_evaluate=0.0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=config["rounds"],
        timeout=config["round-timeout"],
        evaluate_fn=evaluate,
    )


@torch.no_grad()
def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = test_set()
    outputs = model(x)
    accuracy = (outputs.argmax(dim=1) == y).float().mean().item()
    return MetricRecord({"accuracy": accuracy, "loss": cross_entropy(outputs, y).item()})
