"""Small runs of described experiments, and ways to stop them."""

from pathlib import Path

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import override, read_toml
from fedacg.runs.callbacks import Callback, RunView
from fedacg.runs.runner import Result
from support.command import TINY


def tiny(tmp_path: Path, *settings: str) -> Experiment:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return Experiment.parse(override(read_toml(path), settings))


class StopAfter(Callback):
    """A callback that presses Ctrl-C at a round."""

    def __init__(self, round: int) -> None:
        self._round = round

    def round(self, run: RunView) -> None:
        if run.done == self._round:
            raise KeyboardInterrupt


def digest(result: Result) -> str:
    found: str = result.summary["vector_sha256"]
    return found
