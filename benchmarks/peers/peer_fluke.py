"""FedAvg in fluke: its server and clients in one process, one client after the other, with one thread.

It has no workers. Of torchvision, for which there is no build that goes with this torch, it only takes data sets,
which are not asked for: a stand-in lets it be imported. compare.py starts this program.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torchmetrics  # noqa: F401 - which looks for torchvision, and must not find the stand-in
import workload
from turns import Turns


class _StandIn(ModuleType):
    """A module in which every name is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


_PARTS = ("", ".datasets", ".datasets.utils", ".models", ".transforms", ".transforms.functional")
sys.modules |= {f"torchvision{part}": _StandIn(f"torchvision{part}") for part in _PARTS}

from fluke import FlukeENV  # noqa: E402 - after the stand-in
from fluke.algorithms import CentralizedFL  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Turn(FederationObserver):  # type: ignore[misc]
    """Tells the end of a round, and waits for the next turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def end_round(self, round: int) -> None:
        self._turns.played()


def main(folder: Path, rounds: int, turns: Turns) -> None:
    torch.set_num_threads(1)
    given = workload.read(folder)
    load = given.workload
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(locals=False, server=False)
    optimiser = OptimizerConfigurator({"name": "SGD", "lr": load.lr, "weight_decay": load.decay})
    clients = [
        Client(
            index=client,
            train_set=FastDataLoader(
                given.x[client],
                given.y[client],
                num_labels=workload.CLASSES,
                batch_size=load.batch,
                shuffle=load.shuffle,
            ),
            test_set=None,
            optimizer_cfg=optimiser,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=load.epochs,
            clipping=load.clip,
        )
        for client in range(load.clients)
    ]
    server = Server(model=given.module(), test_set=None, clients=clients, weighted=True)
    federation = CentralizedFL(load.clients, None, {}, clients=clients, server=server)
    federation.set_callbacks(Turn(turns))
    federation.run(n_rounds=rounds, eligible_perc=load.cohort / load.clients, finalize=False)
    theta = workload.vector(server.model).numpy()
    turns.finish(theta, {"fluke-fl": version("fluke-fl"), "torch": torch.__version__})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Turns(sys.argv[3]))
