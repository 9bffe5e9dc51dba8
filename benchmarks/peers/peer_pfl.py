"""FedAvg in pfl-research, put together as in its own benchmark of image classification.

A user's batches are slices of tensors, the same in every epoch. compare.py starts this program by torchrun.
"""

import os
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.restore_training import RestoreTrainingCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, distributed, nn
from turns import Turns

NEVER = 10**9


class Network(nn.Module):
    """The workload's network with the loss that pfl asks of a module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        return {}


class Turn(TrainingProcessCallback):
    """The first process keeps the turns; the others wait for it, off the clock."""

    def __init__(self, turns: Turns | None) -> None:
        self._turns = turns

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if self._turns:
            self._turns.played()
        distributed.barrier()
        if self._turns:
            self._turns.begin()
        return False, Metrics()


def main(folder: Path, rounds: int, turns: Turns | None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (pfl draws from it, and all processes must draw the same)
    given = workload.read(folder)
    load = given.workload
    data = dict(enumerate(zip(given.x, given.y, strict=True)))
    users = FederatedDataset.from_slices(data, get_user_sampler("minimize_reuse", list(data)))
    network = Network(given.module())
    model = PyTorchModel(
        model=network,
        local_optimizer_create=partial(torch.optim.SGD, weight_decay=load.decay),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    algorithm = FederatedAveraging()
    store = os.environ.get("PEERS_CHECKPOINT")
    keeper = [RestoreTrainingCallback([model, algorithm], store, checkpoint_frequency=1)] if store else []
    algorithm.run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=load.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=load.lr,
            local_num_epochs=load.epochs,
            local_batch_size=load.batch,
            local_max_grad_norm=load.clip,
        ),
        callbacks=[*keeper, Turn(turns)],
    )
    if turns:
        turns.finish(workload.vector(network).numpy(), {"pfl": version("pfl"), "torch": torch.__version__})


if __name__ == "__main__":
    first = distributed.get_rank() == 0
    main(Path(sys.argv[1]), int(sys.argv[2]), Turns(sys.argv[3]) if first else None)
