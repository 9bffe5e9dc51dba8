"""The names that a description admits are those that there is something for."""

import pytest

from fedacg import models
from fedacg.config.catalogue import DATA_SETS, MODELS, SPLITS
from fedacg.config.experiment import Experiment
from fedacg.config.methods import METHODS, MODIFIERS
from fedacg.core.plugins import load
from fedacg.data import catalogue
from fedacg.errors import InputError
from fedacg.methods.quantise import BITS


def test_the_names_of_a_description_are_those_of_the_catalogues() -> None:
    assert DATA_SETS == catalogue.NAMES
    assert SPLITS == catalogue.SPLITS
    assert MODELS == models.NAMES


def test_every_entry_leads_to_a_function_that_takes_its_options() -> None:
    for entry in METHODS.values():
        assert isinstance(entry.build, str)
        load("method.name", entry.build)(**{name: option.default for name, option in entry.options.items()})
    for modifier in MODIFIERS.values():
        assert isinstance(modifier.apply, str)
        assert callable(load("method.name", modifier.apply))
    assert MODIFIERS["paq"].options["bits"].only == BITS


@pytest.mark.parametrize(
    ("table", "name", "message"),
    [
        ("data", "cifar", "unknown data set 'cifar': did you mean 'cifar10'? .*, or module:function"),
        ("model", "resnet", "unknown model 'resnet': did you mean 'resnet18'?"),
        ("method", "fedacgg", "unknown method 'fedacgg': did you mean 'fedacg'?"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused_with_the_nearest(table: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        Experiment.parse({table: {"name": name}})


def test_a_split_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^unknown split 'dirichelt': did you mean 'dirichlet'"):
        Experiment.parse({"data": {"split": "dirichelt"}})


@pytest.mark.parametrize(
    ("table", "name"), [("data", "my_data:wine"), ("data", "python"), ("model", "python:Net")]
)
def test_what_is_a_users_own_is_admitted(table: str, name: str) -> None:
    assert Experiment.parse({table: {"name": name}}).model_dump()[table]["name"] == name
