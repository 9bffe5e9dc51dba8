"""FedAvg in Flower's simulation: its message API, its strategy, Ray with two actors of one CPU each.

What the actors do is in flower_client.py, or in tutorial_client.py, an app as Flower's tutorial writes it.
compare.py starts this program.
"""

import os
import random
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch
import workload
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Turns


class InTurns(FedAvg):
    """Flower's strategy; a round begins when it is this peer's turn."""

    def __init__(self, turns: Turns, cohort: int, clients: int) -> None:
        super().__init__(
            fraction_train=cohort / clients,
            min_train_nodes=cohort,
            min_available_nodes=clients,
            fraction_evaluate=0.0,
        )
        self._turns = turns

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        if server_round > 1:
            self._turns.played()
        return list(super().configure_train(server_round, arrays, config, grid))


def main(rounds: int, turns: Turns) -> None:
    client_app = import_module(os.environ["PEERS_CLIENT"]).app
    given = workload.read(Path(os.environ["PEERS_FOLDER"]))
    load = given.workload
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        random.seed(0)  # Flower draws cohorts from it
        strategy = InTurns(turns, load.cohort, load.clients)
        module = given.module()
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(module.state_dict()), num_rounds=rounds)
        turns.played()
        module.load_state_dict(result.arrays.to_torch_state_dict())
        versions = {name: version(name) for name in ("flwr", "ray")}
        turns.finish(workload.vector(module).numpy(), {**versions, "torch": torch.__version__})

    run_simulation(
        server_app=server,
        client_app=client_app,
        num_supernodes=load.clients,
        backend_config={
            "init_args": {"num_cpus": workload.workers()},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(int(sys.argv[2]), Turns(sys.argv[3]))
