"""What a run is: one validated, frozen description. TOML in, TOML out, overrides by dotted key.

A description says which data, model and method by name; ingredients.py makes them. What does not fit is refused
here, at the door, with the field, the value and what is allowed.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError, model_validator

from fedacg import methods
from fedacg.config.data import DataSettings
from fedacg.config.section import Section
from fedacg.errors import InputError, unknown
from fedacg.runs.recording import AnalysisSettings
from fedacg.simulation.engine import EngineSettings
from fedacg.simulation.federation import EvaluateSettings
from fedacg.simulation.local import LocalSettings
from fedacg.simulation.sampling import CohortSettings, FailureSettings, PopulationSettings

Tree = dict[str, Any]
Settings = TypeVar("Settings", bound=Section)


class ModelSettings(Section):
    """Which network, with options of its own such as `hidden`."""

    model_config = ConfigDict(extra="allow")

    name: str = "mlp"
    layout: Literal["auto", "default", "channels-last"] = "auto"
    """How convolution weights lie in the vector; `auto` takes what was measured to be fast."""

    @property
    def options(self) -> Tree:
        return dict(self.model_extra or {})


class MethodSettings(Section):
    """Which method, with its options; those not given are filled in."""

    model_config = ConfigDict(extra="allow")

    name: str = "fedacg"

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        options = {key: value for key, value in tree.items() if key != "name"}
        name = str(tree.get("name", "fedacg"))
        methods.build(name, options)  # so that parts that do not go together are refused here
        return {"name": methods.parse(name).name, **methods.complete(name, options)}

    @property
    def options(self) -> dict[str, float]:
        return dict(self.model_extra or {})


class SaveSettings(Section):
    """How much work a crash may cost."""

    seconds: float = Field(10.0, ge=0)
    """A checkpoint is written after a round when the last one is this old; 0 writes one every round."""


class Experiment(Section):
    """A complete description of a run: running it again gives the same bits."""

    name: str = "experiment"
    seed: int = Field(0, ge=0)
    rounds: int = Field(100, ge=1)
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    method: MethodSettings = MethodSettings()
    cohort: CohortSettings = CohortSettings()
    population: PopulationSettings = PopulationSettings()
    failures: FailureSettings = FailureSettings()
    local: LocalSettings = LocalSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    engine: EngineSettings = EngineSettings()
    save: SaveSettings = SaveSettings()
    analysis: AnalysisSettings = AnalysisSettings()

    @model_validator(mode="after")
    def _recorded_rounds_are_played(self) -> Self:
        for round in self.analysis.rounds:
            if round > self.rounds:
                raise InputError(f"analysis.rounds has {round}: must be at most rounds = {self.rounds}")
        return self

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """The experiment a tree of settings describes; what is wrong with it in one InputError."""
        return parse(cls, tree)

    def to_toml(self) -> str:
        """The whole description as a TOML file."""
        tree = self.model_dump()
        lines = [f"{key} = {_toml(value)}" for key, value in tree.items() if not isinstance(value, dict)]
        for key, table in tree.items():
            if isinstance(table, dict):
                lines += ["", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
        return "\n".join(lines) + "\n"

    def difference(self, other: "Experiment") -> list[str]:
        """What differs in a way that changes the result, a line a key; where the work is done does not."""
        ours, theirs = (_flat(e._decisive()) for e in (self, other))
        keys = sorted(ours.keys() | theirs.keys())
        return [
            f"{key} is {_toml(ours[key]) if key in ours else 'absent'}"
            f" there and {_toml(theirs[key]) if key in theirs else 'absent'} here"
            for key in keys
            if ours.get(key) != theirs.get(key)
        ]

    def _decisive(self) -> Tree:
        """The settings that the bits of the result follow from."""
        return {
            **self.model_dump(exclude={"engine", "save", "name", "analysis"}),
            "engine": self.engine.model_dump(include={"fuse"}),
        }


def parse(section: type[Settings], tree: Mapping[str, Any]) -> Settings:
    """The settings that a tree holds; what is wrong with them in one InputError."""
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        raise InputError("\n".join(_explain(section, problem) for problem in error.errors())) from None


def read_toml(path: Path) -> Tree:
    """The tree of settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file: {error}") from None


def recipe_names() -> list[str]:
    """The experiments that come with the package."""
    folder = resources.files("fedacg.config.recipes")
    return sorted(Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".toml"))


def find(recipe: str) -> Tree:
    """The tree of a recipe by name, or of a TOML file by its path; what it extends is filled in."""
    return _resolve(recipe, Path(), ())


def _resolve(recipe: str, folder: Path, chain: tuple[str, ...]) -> Tree:
    """A tree laid over the one that its `extends` names: a recipe, or a file beside it."""
    if recipe.endswith(".toml") or "/" in recipe:
        path = folder / recipe
    elif recipe in recipe_names():
        path = Path(str(resources.files("fedacg.config.recipes") / f"{recipe}.toml"))
    else:
        raise unknown("recipe", recipe, recipe_names())
    tree = read_toml(path)
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise InputError(f"{path}: extends = {base!r}: must be the name of a recipe or of a file")
    here = str(path.resolve())
    if here in chain:
        raise InputError(f"{path}: extends = {base!r}: goes round in a circle")
    return _lay_over(_resolve(base, path.parent, (*chain, here)), tree)


def _lay_over(base: Tree, tree: Tree) -> Tree:
    """The base with a tree's values in place of its own, table by table."""
    result = dict(base)
    for key, value in tree.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            table = dict(base[key])
            if value.get("name", table.get("name")) != table.get("name"):
                _drop_options(key, table)
            result[key] = table | value
        else:
            result[key] = value
    return result


def override(tree: Tree, assignments: Sequence[str]) -> Tree:
    """The tree with `key=value` applied; a key is dotted, a value is TOML or else a plain string."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        *tables, last = key.strip().split(".")
        if not equals or not last or len(tables) > 1:
            raise InputError(f"--set {assignment!r}: must look like rounds=10 or local.lr=0.05")
        table = result.setdefault(tables[0], {}) if tables else result
        if not isinstance(table, dict):
            raise InputError(f"--set {assignment!r}: {tables[0]} is a single value, not a table")
        value = _value(text.strip())
        if last == "name" and tables and value != table.get("name"):
            _drop_options(tables[0], table)
        table[last] = value
    return result


def _drop_options(section: str, table: Tree) -> None:
    """Another model or method has other options than those that stand there."""
    if section in ("model", "method"):
        for key in table.keys() - {"layout"}:
            del table[key]


def with_method(tree: Tree, text: str) -> Tree:
    """The tree with another method: `fedavg`, or `fedacg:lam=0.9:beta=0.1` with options of its own."""
    name, *options = text.split(":")
    for option in options:
        if "=" not in option:
            raise InputError(f"method {text!r}: {option!r} must look like lam=0.9")
    return override({**tree, "method": {"name": name}}, [f"method.{option}" for option in options])


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's strings are TOML's, but for the one control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


def _explain(root: type[Section], problem: Any) -> str:
    """One of pydantic's problems in the words of this project."""
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
    if isinstance(cause, InputError):
        return str(cause)
    if problem["type"] == "model_type":
        return f"{where} = {problem['input']!r}: must be a table, [{where}] in a file"
    allowed = problem["msg"].replace("Input should be", "must be").replace("a valid tuple", "a list")
    return f"{where} = {problem['input']!r}: {allowed}"
