"""Settings as keyword arguments: keys, tables and short names are one thing, and errors say what was typed."""

import pickle

import pytest

import fedacg
from fedacg.config.experiment import Experiment, flatten
from fedacg.config.parameters import KEYS, RECIPE_NAMES
from fedacg.config.recipe import find
from fedacg.errors import InputError, SettingError


def test_every_short_name_stands_for_a_key_that_there_is() -> None:
    known = flatten(Experiment().model_dump())
    assert [name for name, key in KEYS.items() if key not in (*known, "method")] == []
    assert set(Experiment.model_fields) | set(KEYS) == set(RECIPE_NAMES)


def test_a_recipe_is_that_of_the_file_with_what_was_given_in_place_of_its_own() -> None:
    experiment = fedacg.recipe("cifar10-large", rounds=50, local={"lr": 0.05}, batch_size=20, participation=0.5)
    plain = Experiment.parse(find("cifar10-large"))
    assert experiment.rounds == 50
    assert (experiment.local.lr, experiment.local.batch) == (0.05, 20)
    assert experiment.local == plain.local.model_copy(update={"lr": 0.05, "batch": 20})
    assert (experiment.cohort.fraction, experiment.cohort.weights) == (0.5, plain.cohort.weights)
    assert experiment.data == plain.data


def test_another_method_drops_the_options_of_the_recipes_own() -> None:
    assert fedacg.recipe("quickstart", method="fedavg").method.options == {"server_lr": 1.0}
    given = fedacg.recipe("quickstart", method={"name": "fedprox", "mu": 0.5})
    assert given.method == fedacg.recipe("quickstart", method="fedprox", options={"mu": 0.5}).method
    assert given.method.options["mu"] == 0.5


def test_none_is_as_good_as_not_given() -> None:
    assert fedacg.recipe("quickstart", clip=None, population=None) == fedacg.recipe("quickstart")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1}, "lr = -1: must be greater than 0"),
        ({"local": {"lr": -1}}, "local.lr = -1: must be greater than 0"),
        ({"targets": [0.5, 90]}, "targets.1 = 90: must be less than or equal to 1"),
        ({"options": {"lam": 2}}, "method.lam = 2: must lie in [0, 1)"),
        ({"engine": "thread"}, "engine = 'thread': must be 'auto', 'serial', 'processes' or 'ray'"),
        ({"local": 5}, "local = 5: must be a table, [local] in a file"),
        ({"local": 5, "lr": 0.1}, "local = 5: must be a table, [local] in a file"),
        ({"learning_rate": 1}, "unknown parameter 'learning_rate': choose from"),
        ({"local_epoch": 1}, "unknown parameter 'local_epoch': did you mean 'local_epochs'?"),
        ({"local": {"epoch": 1}}, "unknown key 'local.epoch': did you mean 'local.epochs'?"),
        ({"lr": 0.1, "local": {"lr": 0.2}}, "local.lr: is also given as lr; leave one of them out"),
        (
            {"method": {"name": "fedacg", "lam": 0.5}, "options": {"lam": 0.5}},
            "method.lam: is also given as method.lam",
        ),
        ({"options": {"name": "fedavg"}}, "options = {'name': 'fedavg'}: name is not an option; use method="),
    ],
)
def test_an_error_names_what_was_given_as_it_was_given(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        fedacg.recipe("quickstart", **settings)  # type: ignore[typeddict-item]
    assert str(error.value).startswith(message)


def test_an_error_of_a_setting_crosses_to_another_process_whole() -> None:
    error = pickle.loads(pickle.dumps(SettingError("local.lr", "-1", "must be greater than 0")))
    assert (error.key, str(error)) == ("local.lr", "local.lr = -1: must be greater than 0")
    assert str(error.under("lr")) == "lr = -1: must be greater than 0"
