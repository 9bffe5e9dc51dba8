"""What a run is: one validated, frozen description.

A description names data, model and method; runs/ builds them. Invalid settings are refused here,
before anything else happens, with the field, the value and what is allowed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from fedacg.config.fields import Incidental, Section, is_incidental
from fedacg.config.participation import (
    AsynchronousSettings,
    ClockSettings,
    CohortSettings,
    FailureSettings,
    PopulationSettings,
)
from fedacg.config.recipe import write_toml
from fedacg.config.sections import (
    AnalysisSettings,
    CallbackSettings,
    DataSettings,
    EngineSettings,
    EvaluateSettings,
    LocalSettings,
    MethodSettings,
    ModelSettings,
    SaveSettings,
    SeedSettings,
)
from fedacg.errors import InputError, SettingError, shown

Settings = TypeVar("Settings", bound=Section)


class Experiment(Section):
    """A complete description of a run: running it again gives the same bits."""

    name: Incidental[str] = "experiment"
    seed: int = Field(0, ge=0)
    seeds: SeedSettings = SeedSettings()
    rounds: int = Field(100, ge=1)
    start: str = ""
    """The folder of a run whose model this one starts from; by default from weights drawn by the seed."""
    start_vectors: Literal["model", "server"] = "model"
    """What is taken from there: the model alone, or all server vectors of the same method."""
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    method: MethodSettings = MethodSettings()
    cohort: CohortSettings = CohortSettings()
    population: PopulationSettings = PopulationSettings()
    failures: FailureSettings = FailureSettings()
    clock: ClockSettings = ClockSettings()
    asynchronous: AsynchronousSettings = AsynchronousSettings()
    local: LocalSettings = LocalSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    engine: EngineSettings = EngineSettings()
    save: Incidental[SaveSettings] = SaveSettings()
    analysis: Incidental[AnalysisSettings] = AnalysisSettings()
    callbacks: Incidental[tuple[CallbackSettings, ...]] = Field((), strict=False)
    """Callbacks, which may stop the run: names, or tables with a name and its options."""

    @field_validator("callbacks", mode="before")
    @classmethod
    def _names_alone(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple):
            return given
        return [{"name": each} if isinstance(each, str) else each for each in given]

    @model_validator(mode="after")
    def _recorded_rounds_are_played(self) -> Self:
        for round in self.analysis.rounds:
            if round > self.rounds:
                raise InputError(f"analysis.rounds has {round}: must be at most rounds = {self.rounds}")
        return self

    @field_validator("start")
    @classmethod
    def _absolute(cls, path: str) -> str:
        """A description must mean the same wherever it is read."""
        return str(Path(path).resolve()) if path else ""

    @model_validator(mode="after")
    def _started_from_something(self) -> Self:
        if self.start_vectors != "model" and not self.start:
            raise SettingError("start_vectors", repr(self.start_vectors), "has no effect, as start is not set")
        return self

    def __repr__(self) -> str:
        """Two lines: what is run on what, and with which settings that are not the defaults."""
        plain, ours = flatten(Experiment().model_dump()), flatten(self.model_dump())
        what = f"{self.method.name} on {self.data.name} with {self.model.name}"
        head = f"{what}, {self.rounds} round{'s' * (self.rounds != 1)}, seed {self.seed}"
        said = ("name", "method.name", "data.name", "model.name", "rounds", "seed")
        other = [
            f"{key}={show(value)}" for key, value in ours.items() if key not in said and plain.get(key) != value
        ]
        return f"Experiment {self.name}: {head}" + (f"\n  {' '.join(other)}" if other else "")

    @model_validator(mode="after")
    def _clients_make_up_a_cohort(self) -> Self:
        """Check cohorts here if the number of clients is known without loading the data."""
        if self.data.clients and self.data.split != "natural" and not self.data.split_file:
            self.check_cohorts(self.data.clients)
        return self

    def check_cohorts(self, clients: int) -> None:
        """Refuse cohorts and populations that are impossible with this number of clients."""
        self.population.check(clients)
        self.cohort.check(self.population.present or clients)

    @model_validator(mode="after")
    def _asynchronous_rounds_have_no_end_to_wait_for(self) -> Self:
        own = self.asynchronous
        if own.buffer:
            if self.clock.drops:
                raise InputError(
                    "clock.deadline, clock.over_select: asynchronous rounds do not wait; leave them out"
                )
            if self.analysis.rounds or self.analysis.every:
                raise InputError("analysis: asynchronous rounds have no cohort to record; leave it out")
            return self
        for key, default in AsynchronousSettings().model_dump().items():
            if getattr(own, key) != default:
                why = "has no effect, as asynchronous.buffer is 0"
                raise SettingError(f"asynchronous.{key}", repr(getattr(own, key)), why)
        return self

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """The experiment a tree of settings describes; all its errors in one InputError."""
        return parse(cls, tree)

    def seed_of(self, stream: str) -> int:
        """The seed of a stream, one of `section.STREAMS`."""
        own: int = getattr(self.seeds, stream)
        return self.seed if own < 0 else own

    def to_toml(self) -> str:
        """The whole description as a TOML file."""
        return write_toml(self.model_dump())

    def difference(self, other: "Experiment") -> list[str]:
        """The differences that make them two experiments, one line per key; empty if both give the same bits."""
        ours, theirs = (decisive(flatten(e.model_dump())) for e in (self, other))
        keys = sorted(ours.keys() | theirs.keys())
        return [
            f"{key} is {_written(ours[key]) if key in ours else 'absent'}"
            f" there and {_written(theirs[key]) if key in theirs else 'absent'} here"
            for key in keys
            if ours.get(key) != theirs.get(key)
        ]


def _incidental(section: type[Section], prefix: str = "", whole: bool = False) -> Iterator[str]:
    for name, field in section.model_fields.items():
        key, aside = f"{prefix}{name}", whole or is_incidental(field)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _incidental(field.annotation, f"{key}.", aside)
        elif aside:
            yield key


INCIDENTAL = frozenset(_incidental(Experiment))
"""The dotted keys that do not change the result."""


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings by dotted key, those that determine the result, and unknown ones."""
    return {key: value for key, value in settings.items() if key not in INCIDENTAL}


def parse(
    section: type[Settings], tree: Mapping[str, Any], spell: Callable[[str], str] = lambda key: key
) -> Settings:
    """The settings that a tree holds; all their errors in one InputError.

    `spell` gives the name by which the caller knows a key.
    """
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        raise InputError("\n".join(_explain(section, problem, spell) for problem in error.errors())) from None


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The tables of an experiment as one, by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def show(value: object) -> str:
    """A setting for display: strings bare, the rest as in TOML; a missing one is a dash."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else _written(value)


def _written(value: object) -> str:
    """A setting as in a TOML file, on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _explain(root: type[Section], problem: Any, spell: Callable[[str], str]) -> str:
    """A pydantic error in this project's wording."""
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        section = root
        for step in problem["loc"][:-1]:
            section = section.model_fields[step].annotation  # type: ignore[assignment]
        prefix = where.rpartition(".")[0]
        known = [f"{prefix}.{each.alias or name}".strip(".") for name, each in section.model_fields.items()]
        near = get_close_matches(where, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown key {where!r}: {hint}choose from {', '.join(known)}"
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):
        return str(cause.under(spell(cause.key)))
    if isinstance(cause, InputError):
        return str(cause)
    if problem["type"] == "model_type":
        return f"{where} = {shown(problem['input'])}: must be a table, [{where}] in a file"
    allowed = problem["msg"].replace("Input should be", "must be").replace("a valid tuple", "a list")
    return str(SettingError(spell(where), shown(problem["input"]), allowed.removeprefix("Value error, ")))
