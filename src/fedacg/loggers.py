"""Loggers: observers that pass a run's figures on to other tools, each an extra of the package."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedacg.errors import InputError, unknown
from fedacg.experiment import Experiment
from fedacg.metrics import History, RoundMetrics
from fedacg.runner import Observer


class TensorBoardLogger:
    """Scalars for TensorBoard, in the run folder's `tensorboard`; a resumed run goes on in the same curves."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise InputError("--log tensorboard: needs pip install 'fedacg[tensorboard]'") from None
        self._folder, self._writer_class = folder / "tensorboard", SummaryWriter

    def begin(self, experiment: Experiment, done: int) -> None:
        self._writer = self._writer_class(str(self._folder), purge_step=done + 1)

    def round(self, metrics: RoundMetrics, history: History) -> None:
        scalars = {
            "train/lr": metrics.lr,
            "bytes/down": metrics.bytes_down,
            "bytes/up": metrics.bytes_up,
            "seconds/train": metrics.seconds_train,
            "seconds/aggregate": metrics.seconds_aggregate,
            "seconds/evaluate": metrics.seconds_evaluate,
        }
        if metrics.arrived:
            scalars["train/loss"] = metrics.train_loss
        if metrics.test_accuracy is not None and metrics.test_loss is not None:
            scalars["test/accuracy"] = metrics.test_accuracy
            scalars["test/loss"] = metrics.test_loss
            scalars["test/moving_average"] = history.moving_average()[-1]
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, metrics.round)

    def end(self) -> None:
        self._writer.close()


LOGGERS: dict[str, Callable[[Path], Observer]] = {"tensorboard": TensorBoardLogger}


def make_loggers(names: Sequence[str], folder: Path) -> list[Observer]:
    """The loggers of these names for a run in this folder."""
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    return [LOGGERS[name](folder) for name in names]
