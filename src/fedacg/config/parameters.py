"""Settings as keyword arguments, for `fedacg.run` and `fedacg.recipe`: a short name for a key, or a whole table.

`lr=0.05` and `local={"lr": 0.05}` are the same. The short names are declared once, below, each with its key.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypedDict, Unpack, get_args, get_origin, get_type_hints

from fedacg.config.experiment import Experiment, parse
from fedacg.config.recipe import Tree, find, lay_over
from fedacg.errors import InputError, unknown

Table = Mapping[str, Any]


class Parameters(TypedDict, total=False):
    """The keyword arguments: keys, tables, and short names for keys. None means not given.

    For a table with a `name`, the name alone is enough, as in `method="fedavg"`.
    """

    name: str
    seed: int
    rounds: int
    start: str
    start_vectors: str
    method: str | Table
    cohort: Table | None
    population: Table | None
    failures: Table | None
    clock: Table | None
    asynchronous: Table | None
    local: Table | None
    evaluate: Table | None
    engine: str | Table | None
    save: Table | None
    analysis: Table | None

    options: Annotated[Table | None, "method"]
    participation: Annotated[float, "cohort.fraction"]
    cohort_size: Annotated[int, "cohort.size"]
    draw: Annotated[str, "cohort.draw"]
    weights: Annotated[str, "cohort.weights"]
    local_epochs: Annotated[int, "local.epochs"]
    local_steps: Annotated[int, "local.steps"]
    batch_size: Annotated[int, "local.batch"]
    lr: Annotated[float, "local.lr"]
    lr_decay: Annotated[float, "local.lr_decay"]
    weight_decay: Annotated[float, "local.weight_decay"]
    momentum: Annotated[float, "local.momentum"]
    clip: Annotated[float | None, "local.clip"]
    precision: Annotated[str, "local.precision"]
    layout: Annotated[str, "model.layout"]
    evaluate_every: Annotated[int, "evaluate.every"]
    targets: Annotated[Sequence[float], "evaluate.targets"]
    goals: Annotated[Sequence[str], "evaluate.goals"]
    validation: Annotated[float, "data.validation"]
    validation_from: Annotated[str, "data.validation_from"]
    workers: Annotated[int, "engine.workers"]
    fuse: Annotated[str, "engine.fuse"]
    device: Annotated[str, "engine.device"]
    address: Annotated[str, "engine.address"]


class RunParameters(Parameters, total=False):
    """The same plus seeds of single streams; with several seeds, those belong in the recipe."""

    seeds: Table | None


class RecipeParameters(RunParameters, total=False):
    """The same plus the arguments that `fedacg.run` takes as objects."""

    data: str | Table
    model: str | Table
    callbacks: Sequence[str | Table]


NAMES = tuple(get_type_hints(RunParameters))
RECIPE_NAMES = tuple(get_type_hints(RecipeParameters))
KEYS: dict[str, str] = {
    name: get_args(hint)[1]
    for name, hint in get_type_hints(RunParameters, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""The key, or the table, behind every short name."""
NAMED = frozenset(
    name
    for name, field in Experiment.model_fields.items()
    if "name" in getattr(field.annotation, "model_fields", {})
)
"""The tables that can be given by their `name`."""


def to_tree(given: Mapping[str, Any], known: Collection[str]) -> tuple[Tree, Callable[[str], str]]:
    """The tree that keyword arguments make, and a function from a key to the name it was given under.

    Unknown names are refused, with the nearest known one.
    """
    tree: Tree = {}
    names: dict[str, str] = {}

    def put(key: str, value: Any, name: str) -> None:
        if key in names:
            raise InputError(f"{name}: is also given as {names[key]}; leave one of them out")
        names[key] = name
        table, _, last = key.rpartition(".")
        into = tree.setdefault(table, {}) if table else tree
        if isinstance(into, dict):  # a value that is not a table is refused as a whole
            into[last] = value

    for name, value in given.items():
        if name not in known:
            raise unknown("parameter", name, known)
        if value is None:
            continue
        key = KEYS.get(name, name)
        if isinstance(value, Mapping):
            if name == "options" and "name" in value:
                raise InputError(f"options = {dict(value)!r}: name is not an option; use method=")
            for inner, each in value.items():
                put(f"{key}.{inner}", each, f"{key}.{inner}")
        elif key in NAMED:
            put(f"{key}.name", value, name)
        else:
            put(key, value, name)

    def spell(key: str) -> str:
        found = next((known for known in names if key == known or key.startswith(f"{known}.")), None)
        return key if found is None else names[found] + key.removeprefix(found)

    return tree, spell


def recipe(name: str, /, **settings: Unpack[RecipeParameters]) -> Experiment:
    """The experiment of a recipe or TOML file, with these settings replacing its own.

    `fedacg.recipe("cifar10-large", method="fedavg", rounds=50, local={"lr": 0.05})` is run by `fedacg.run`.
    """
    tree, spell = to_tree(settings, RECIPE_NAMES)
    return parse(Experiment, lay_over(find(name), tree), spell)
