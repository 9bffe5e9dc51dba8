"""Loggers: callbacks that send a run's figures to other tools, each an extra of the package.

All use the same names for the same figures. A resumed run continues the curves it began.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedacg.config.experiment import Experiment
from fedacg.errors import InputError, unknown
from fedacg.runs.callbacks import Callback, RunView
from fedacg.runs.history import History
from fedacg.simulation.metrics import RoundMetrics

PATIENCE = 2.0
"""Seconds for which MLflow's figures are collected: its database takes longer than a small round."""
_MOST = 1000
"""The figures that MLflow takes in one request."""


def figures(metrics: RoundMetrics, history: History) -> dict[str, float]:
    """What a round measured, by the names that all loggers give it."""
    found: dict[str, float] = {
        "train/lr": metrics.lr,
        "bytes/down": metrics.bytes_down,
        "bytes/up": metrics.bytes_up,
        "seconds/train": metrics.seconds_train,
        "seconds/aggregate": metrics.seconds_aggregate,
        "seconds/evaluate": metrics.seconds_evaluate,
    }
    if metrics.arrived:
        found["train/loss"] = metrics.train_loss
    if metrics.test_loss is not None:
        found["test/loss"] = metrics.test_loss
    if metrics.test_accuracy is not None:
        found["test/accuracy"] = metrics.test_accuracy
        found["test/moving_average"] = history.moving_average()[-1]
    return {**found, **(metrics.scores or {})}


class TensorBoardLogger(Callback):
    """Scalars for TensorBoard, in the run folder's `tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self._folder, self._writer_class = folder / "tensorboard", SummaryWriter

    def begin(self, run: RunView) -> None:
        self._writer = self._writer_class(str(self._folder), purge_step=run.done + 1)

    def round(self, run: RunView) -> None:
        for name, value in figures(run.metrics, run.history).items():
            self._writer.add_scalar(name, value, run.done)

    def end(self, run: RunView) -> None:
        self._writer.close()


class WandbLogger(Callback):
    """A run of Weights & Biases, with its files in the run folder's `wandb`.

    W&B's own settings decide whether it is uploaded: with WANDB_MODE=offline it stays on disk.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        self._wandb: Any = wandb
        self._folder = folder

    def begin(self, run: RunView) -> None:
        experiment, done = run.experiment, run.done
        place = self._folder / "wandb"
        place.mkdir(parents=True, exist_ok=True)
        try:
            self._run = self._wandb.init(
                project=experiment.name,
                name=self._folder.name,
                id=_kept(place / "run-id", done) or _keep(place / "run-id", uuid.uuid4().hex[:12]),
                resume="allow",
                dir=str(self._folder),
                config=experiment.model_dump(mode="json"),
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except self._wandb.Error as error:
            reason = str(error).rstrip(".")
            raise InputError(f"--log wandb: {reason}; WANDB_MODE=offline keeps it on this machine") from None
        # Rounds that are repeated after a crash have the same number and, to the bit, the same figures.
        self._run.define_metric("*", step_metric="round")

    def round(self, run: RunView) -> None:
        self._run.log({"round": run.done, **figures(run.metrics, run.history)})

    def end(self, run: RunView) -> None:
        self._run.finish()


class MlflowLogger(Callback):
    """A run of MLflow at MLFLOW_TRACKING_URI, or at MLflow's default, `mlflow.db`."""

    def __init__(self, folder: Path) -> None:
        try:
            from mlflow import MlflowClient, entities, exceptions
        except ImportError:
            raise _missing("mlflow") from None
        self._client_class, self._entities, self._error = MlflowClient, entities, exceptions.MlflowException
        self._folder = folder
        self._waiting: list[Any] = []

    def begin(self, run: RunView) -> None:
        experiment, done = run.experiment, run.done
        self._rounds, self._done, self._sent = experiment.rounds, done, time.monotonic()
        try:
            self._client: Any = self._client_class()
            self._run = self._take_up(done) or self._create(experiment)
        except self._error as error:
            raise InputError(f"--log mlflow: {error}") from None

    def _take_up(self, done: int) -> str | None:
        """The resumed run, if MLflow still has it."""
        run = _kept(self._folder / "mlflow-run", done)
        try:
            if run:
                self._client.update_run(run, status="RUNNING")
        except self._error:
            return None
        return run

    def _create(self, experiment: Experiment) -> str:
        # Imported here, as reports load matplotlib, which takes longer than most commands.
        from fedacg.config.experiment import flatten, show

        found = self._client.get_experiment_by_name(experiment.name)
        place = found.experiment_id if found else self._client.create_experiment(experiment.name)
        run: str = self._client.create_run(place, run_name=self._folder.name).info.run_id
        settings = flatten(experiment.model_dump(mode="json"))
        params = [self._entities.Param(key, show(value)) for key, value in settings.items()]
        self._client.log_batch(run, params=params)
        return _keep(self._folder / "mlflow-run", run)

    def round(self, run: RunView) -> None:
        now = int(1000 * time.time())
        found = figures(run.metrics, run.history).items()
        self._waiting += [self._entities.Metric(name, value, now, run.done) for name, value in found]
        self._done = run.done
        if time.monotonic() - self._sent >= PATIENCE:
            self._send()

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:_MOST])
            del self._waiting[:_MOST]
        self._sent = time.monotonic()

    def end(self, run: RunView) -> None:
        self._send()
        self._client.set_terminated(
            self._run, "FINISHED" if self._done == self._rounds or run.stopping else "KILLED"
        )


LOGGERS: dict[str, Callable[[Path], Callback]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


def make_loggers(names: Sequence[str], folder: Path) -> list[Callback]:
    """The loggers of these names for a run in this folder."""
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    return [LOGGERS[name](folder) for name in names]


def _missing(name: str) -> InputError:
    return InputError(f"--log {name}: needs pip install 'fedacg[{name}]'")


def _kept(path: Path, done: int) -> str | None:
    """The other tool's id of the run, if it is resumed."""
    return path.read_text().strip() if done and path.exists() else None


def _keep(path: Path, name: str) -> str:
    path.write_text(f"{name}\n")
    return name
