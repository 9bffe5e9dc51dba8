"""Many experiments one after another: one engine for all, and data kept while the next one needs the same.

runner.py runs a single experiment. What is planned is written to a file, so that others can tell.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedacg import engines
from fedacg.config.experiment import Experiment
from fedacg.config.sections import EngineSettings
from fedacg.core import files
from fedacg.data.examples import FederatedData
from fedacg.engines import Engine
from fedacg.errors import InputError
from fedacg.runs.build import Ingredients, load_data, prepare
from fedacg.runs.callbacks import Callback
from fedacg.runs.choices import choose_engine
from fedacg.runs.contents import EXPERIMENT, is_finished
from fedacg.runs.runner import Result, play
from fedacg.simulation.scoring import Metric


class Session:
    """Workers that are started when first needed and stay until the session ends.

    With the engine `auto`, the work of all `runs` together decides.
    """

    def __init__(self, settings: EngineSettings, runs: int = 1) -> None:
        self._settings, self._runs = settings, runs
        self._engine: Engine | None = None
        self._data: tuple[object, FederatedData] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine:
            self._engine.close()

    def prepare(self, experiment: Experiment) -> Ingredients:
        """Build what a description names; data are loaded only if they differ from the last ones."""
        evaluate = experiment.evaluate
        held_out = evaluate.held_out if evaluate.clients == "held-out" else 0
        wanted = experiment.data, experiment.seed_of("split"), evaluate.examples, held_out
        if self._data is None or self._data[0] != wanted:
            self._data = None  # free the old data before reading the new
            self._data = wanted, load_data(experiment)
        return prepare(experiment, self._data[1])

    def settle(self, experiment: Experiment, ingredients: Ingredients) -> Experiment:
        """The description with the engine that all runs of the session share; the first of them decides."""
        if self._settings.name == "auto":
            self._settings = choose_engine(experiment, ingredients, self._runs).engine
        if experiment.engine.name != "auto":
            return experiment
        engine = experiment.engine.model_copy(update={"name": self._settings.name})
        return experiment.model_copy(update={"engine": engine})

    def play(
        self,
        experiment: Experiment,
        *,
        ingredients: Ingredients | None = None,
        folder: Path | None = None,
        resume: bool = False,
        overwrite: bool = False,
        cohorts: Sequence[Sequence[int]] | None = None,
        callbacks: Sequence[Callback] = (),
        metrics: Mapping[str, Metric] | None = None,
    ) -> Result:
        """Run one experiment, as `runner.play` does."""
        ingredients = ingredients or self.prepare(experiment)
        experiment = self.settle(experiment, ingredients)
        if self._engine is None:
            self._engine = engines.start(self._settings)
        return play(
            experiment,
            ingredients,
            folder=folder,
            resume=resume,
            overwrite=overwrite,
            engine=self._engine,
            cohorts=cohorts,
            callbacks=callbacks,
            metrics=metrics,
        )

    def play_each(
        self,
        runs: Mapping[str, Experiment],
        folder: Path | None = None,
        *,
        ingredients: Callable[[Experiment], Ingredients] | None = None,
        resume: bool = False,
        overwrite: bool = False,
        callbacks: Callable[[str], Sequence[Callback]] = lambda name: (),
        metrics: Mapping[str, Metric] | None = None,
    ) -> Iterator[tuple[str, Result | None]]:
        """Run them all, each in its own folder below `folder`; None stands for one that was finished."""
        for name, experiment in runs.items():
            place = folder / name if folder else None
            if place and resume and is_finished(place, experiment):
                yield name, None
                continue
            made = ingredients(experiment) if ingredients else None
            yield (
                name,
                self.play(
                    experiment,
                    ingredients=made,
                    folder=place,
                    resume=resume,
                    overwrite=overwrite,
                    callbacks=callbacks(name),
                    metrics=metrics,
                ),
            )


# Planned runs of a command, for `fedacg watch`: a file that exists as long as the command


PLAN = "plan.json"


@dataclass(frozen=True)
class PlannedRun:
    """A run that is planned: the name of its folder, and its rounds."""

    name: str
    rounds: int


@contextmanager
def announce_runs(root: Path, runs: Mapping[Path, int]) -> Iterator[None]:
    """Announce the runs that this process will start below `root`, with their rounds."""
    listed = {os.path.relpath(folder, root): rounds for folder, rounds in runs.items()}
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    with suppress(OSError):  # nothing depends on it
        files.make_folder(root)
        files.write_whole(root / PLAN, json.dumps({"process": os.getpid(), "runs": listed}).encode())
    try:
        yield
    finally:
        with suppress(OSError):
            files.remove(root / PLAN)
            for folder in made:  # it is empty only if no run started
                folder.rmdir()


def planned_runs(folders: Sequence[Path]) -> list[PlannedRun]:
    """Runs in and directly below these folders that live processes have planned but not started."""
    found: dict[Path, PlannedRun] = {}
    for folder in folders:
        for path in (folder / PLAN, *sorted(folder.glob(f"*/{PLAN}"))):
            for name, rounds in _read_plan(path).items():
                if not (path.parent / name / EXPERIMENT).exists():
                    found[path.parent / name] = PlannedRun(name, rounds)
    return list(found.values())


def _read_plan(path: Path) -> dict[str, int]:
    try:
        record = json.loads(files.read_whole(path, files.MOST_TEXT))
        os.kill(int(record["process"]), 0)
        return {str(name): int(rounds) for name, rounds in record["runs"].items()}
    except (OSError, InputError, ValueError, KeyError, TypeError, AttributeError):
        return {}
