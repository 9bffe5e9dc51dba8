"""Many experiments one after another: one engine for all, and data kept while the next one needs the same.

One experiment alone is runner.py's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from fedacg import engines
from fedacg.config.experiment import Experiment
from fedacg.config.sections import EngineSettings
from fedacg.data.examples import FederatedData
from fedacg.engines import Engine
from fedacg.runs.build import Ingredients, load_data, prepare
from fedacg.runs.callbacks import Callback
from fedacg.runs.runner import Result, play


class Session:
    """Workers that are started when first needed and stay until the session ends."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._engine: Engine | None = None
        self._data: tuple[object, FederatedData] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine:
            self._engine.close()

    def prepare(self, experiment: Experiment) -> Ingredients:
        """Make what a description names; the data only if those of the last one are others."""
        wanted = experiment.data, experiment.seed_of("split"), experiment.evaluate.examples
        if self._data is None or self._data[0] != wanted:
            self._data = None  # the old go before the new are read
            self._data = wanted, load_data(experiment)
        return prepare(experiment, self._data[1])

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
    ) -> Result:
        """Play one of them, as `runner.play` does."""
        ingredients = ingredients or self.prepare(experiment)
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
        )
