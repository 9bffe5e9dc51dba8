"""The numbers published in the FedACG paper (Kim, Kim, Han, CVPR 2024), and the recipe and method of each.

`results.csv` holds them, one number per row: accuracy at a round in %, or rounds to a target in %; a trailing +
means not reached, -- not reported. `comparison` puts our measurements beside them.
"""

import csv
import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, recipe_names, with_method
from fedacg.config.sections import MethodSettings
from fedacg.errors import unknown

_SETTINGS = {
    # clients, fraction per round, split: what follows the data set in the recipe's name
    ("100", "0.05", "dirichlet-0.3"): "-moderate",
    ("100", "0.05", "dirichlet-0.6"): "-moderate-dirichlet06",
    ("100", "0.05", "iid"): "-moderate-iid",
    ("100", "0.02", "dirichlet-0.3"): "-moderate-low",
    ("500", "0.02", "dirichlet-0.3"): "-large",
    ("500", "0.02", "dirichlet-0.6"): "-large-dirichlet06",
    ("500", "0.02", "iid"): "-large-iid",
    ("500", "0.01", "dirichlet-0.3"): "-large-low",
    ("250", "0.04", "dirichlet-0.3"): "-dynamic",
    ("2000", "0.0025", "leaf"): "",
    ("", "0.05", "leaf"): "",
}
_METHODS = {
    "FedPAQ": "fedavg+paq",
    "FedACG + FedPAQ": "fedacg+paq",
    # Four of the component rows repeat the numbers of FedAvg, FedProx, FedAvgM and FedACG in the main table:
    # so these rows are those methods, with the options they have there.
    "none": "fedavg",
    "reg": "fedprox",
    "momentum": "fedavgm",
    "momentum+reg": "fedavgm+prox",
    "momentum+acceleration": "fedavg+acg",
    "momentum+acceleration+reg": "fedacg",
}
_OPTIONS = {"lambda": "lam", "beta": "beta"}


@dataclass(frozen=True)
class Published:
    """One number of the paper."""

    table: str
    method: str
    """The paper's name for it."""
    data: str
    setting: str
    """What follows the data set in the name of the recipe."""
    metric: str
    """`accuracy` or `rounds_to`."""
    at: int
    """The round, or the target in percent."""
    value: str

    @property
    def recipe(self) -> str:
        """The recipe of its setting, at paper scale."""
        return self.data + self.setting


@cache
def numbers() -> tuple[Published, ...]:
    """All of them, in the paper's order."""
    text = (resources.files("fedacg.bench") / "results.csv").read_text(encoding="utf-8")
    return tuple(
        Published(
            table=row["table"],
            method=row["method"],
            data=row["dataset"],
            setting=_SETTINGS[row["clients"], row["participation"], row["split"]],
            metric=row["metric"],
            at=int(row["at"]),
            value=row["value"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def table_names() -> list[str]:
    """The tables and ablations of the paper."""
    return list(dict.fromkeys(number.table for number in numbers()))


def of_table(table: str) -> list[Published]:
    """The numbers of one table; an unknown one is refused with the names."""
    found = [number for number in numbers() if number.table == table]
    if not found:
        raise unknown("table", table, table_names())
    return found


def recipes_of(table: str) -> list[str]:
    """The recipes of a table's settings, at paper scale."""
    return list(dict.fromkeys(number.recipe for number in of_table(table)))


def others_of(table: str) -> list[str]:
    """The recipes of the same settings with other data sets, for which the paper may have no numbers."""
    settings = {number.setting for number in of_table(table)} - {""}
    names = {number.data + setting for number in numbers() for setting in settings}
    return sorted(names & set(recipe_names()) - set(recipes_of(table)))


def methods_of(table: str) -> list[str]:
    """The rows of a table, by the paper's names."""
    return list(dict.fromkeys(number.method for number in of_table(table)))


def spelled(method: str) -> str:
    """A row as it is typed here: "FedMLB + ACG" is `fedmlb+acg`, "FedACG beta=1" is `fedacg:beta=1`."""
    if method in _METHODS:
        return _METHODS[method]
    title, _, rest = method.partition(" ")
    if rest == "+ ACG":
        return f"{title.lower()}+acg"
    option = re.fullmatch(r"(\w+)=(.+)", rest)
    return f"{title.lower()}:{_OPTIONS[option[1]]}={option[2]}" if option else title.lower()


def method_of(text: str) -> MethodSettings:
    """A typed method with all its options, so that two can be compared."""
    return Experiment.parse(with_method({}, text)).method


def value_of(table: str, recipe: str, method: MethodSettings, metric: str, at: int) -> str | None:
    """A published number, from the table itself or else from another one of the same setting; None without any."""
    rows = [number for number in numbers() if (number.recipe, number.metric, number.at) == (recipe, metric, at)]
    rows.sort(key=lambda number: number.table != table)  # stable: the table's own come first
    found = next((number.value for number in rows if _is(number.method, method)), None)
    return None if found == "--" else found


@cache
def _method_of_row(name: str) -> MethodSettings:
    return method_of(spelled(name))


def _is(name: str, method: MethodSettings) -> bool:
    return _method_of_row(name) == method


REFERENCE = "fedavg"
"""The method that targets at small scale derive from."""


def paper_targets(recipe: str) -> tuple[float, ...]:
    """The paper's targets in a setting, as fractions of one."""
    return Experiment.parse(find(recipe)).evaluate.targets


def shares(recipe: str) -> tuple[int, ...]:
    """These targets in whole percent of FedAvg's final accuracy in the paper."""
    rounds = Experiment.parse(find(recipe)).rounds
    reference = value_of("", recipe, method_of(REFERENCE), "accuracy", rounds)
    assert reference is not None, "the paper has FedAvg in every setting"
    return tuple(round(100 * 100 * target / float(reference)) for target in paper_targets(recipe))


def small_targets(recipe: str, reference: float) -> tuple[float, ...]:
    """Targets for a setting in which FedAvg ended at this moving average, as fractions of one."""
    # Nine digits first, as 100 × 0.57 is a little less than 57 in floating point.
    tenths = [math.floor(round(10 * share * reference, 9)) for share in shares(recipe)]
    return tuple(min(max(tenth, 1), 1000) / 1000 for tenth in tenths)
