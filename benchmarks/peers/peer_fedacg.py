"""FedAvg here: `fedacg.run` with two workers, and everything else as it comes. compare.py starts this program."""

import os
import sys
from pathlib import Path

import torch
import workload
from torch import Tensor
from turns import Turns

import fedacg
from fedacg.simulation.fused import worthwhile


class InOrder:
    """A client's examples as they lie, whatever order is asked for; a visit must be whole epochs.

    `filled` is the length to which short batches come filled up, as in fused cohorts; 0 if they come short.
    """

    def __init__(self, x: Tensor, y: Tensor, filled: int = 0) -> None:
        self.x, self.y, self.filled, self._seen = x, y, filled, 0

    def __reduce__(self) -> tuple[type, tuple[Tensor, Tensor, int]]:
        return InOrder, (self.x, self.y, self.filled)  # what was looked at before is not seen in a worker

    def __len__(self) -> int:
        return len(self.y)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        epoch = -(-len(self) // self.filled) * self.filled if self.filled else len(self)
        places = (torch.arange(len(index)) + self._seen) % epoch
        self._seen += len(index)
        places.clamp_(max=len(self) - 1)  # what a batch is filled up with is ignored
        return self.x[places], self.y[places]


def main(folder: Path, rounds: int, turns: Turns) -> None:
    given = workload.read(folder)
    load = given.workload
    module = fedacg.models.build(load.model, classes=workload.CLASSES, shape=load.shape)
    workload.load(module.to(given.theta.dtype), given.theta)
    store = os.environ.get("PEERS_CHECKPOINT")
    kept = {"out": store, "resume": Path(store, "run.json").exists(), "save": {"seconds": 0}} if store else {}
    filled = load.batch if worthwhile(given.theta.numel(), load.cohort) else 0
    examples = tuple if load.shuffle else lambda pair: InOrder(*pair, filled)
    result = fedacg.run(
        model=module,
        clients=[examples(pair) for pair in zip(given.x, given.y, strict=True)],
        test=(given.x[0, :1], given.y[0, :1]),  # the last round is always evaluated
        method="fedavg",
        rounds=rounds,
        cohort_size=load.cohort,
        local_epochs=load.epochs,
        batch_size=load.batch,
        lr=load.lr,
        weight_decay=load.decay,
        clip=load.clip,
        evaluate_every=rounds + 1,
        workers=workload.workers(),
        **kept,
        on_round=lambda _: turns.played(),
    )
    turns.finish(result.vector.numpy(), {"fedacg": fedacg.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Turns(sys.argv[3]))
