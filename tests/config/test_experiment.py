"""Descriptions of runs: TOML in, TOML out, overrides, and what makes two of them differ."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedacg.config.experiment import INCIDENTAL, Experiment, decisive
from fedacg.config.recipe import override, with_method
from fedacg.errors import InputError


def again(experiment: Experiment) -> Experiment:
    return Experiment.parse(tomllib.loads(experiment.to_toml()))


def test_what_is_written_is_read_back() -> None:
    experiment = Experiment.parse(
        {
            "name": 'a "name" with \\ and \n',
            "seed": 2**63 - 1,
            "data": {"name": "cifar10", "alpha": 1e-20, "augment": True},
            "model": {"name": "mlp", "hidden": [64, 32]},
            "method": {"name": "fedprox+acg", "mu": 1e-5},
            "local": {"lr": 1e22, "clip": 10},
            "evaluate": {"targets": [0.5, 1]},
        }
    )
    assert again(experiment) == experiment
    assert again(Experiment()) == Experiment()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_read_back(text: str) -> None:
    experiment = Experiment(name=text)
    assert again(experiment) == experiment
    assert again(experiment).name == text


@given(st.text(alphabet="\"'\\#=[]\n\t\x00\x7f\x85\u2028{}é𝔘"))
def test_text_with_what_toml_treats_as_special_is_read_back(text: str) -> None:
    assert again(Experiment(name=text)).name == text


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_numbers_are_read_back_to_the_bit(lr: float) -> None:
    assert again(Experiment.parse({"local": {"lr": lr}})).local.lr == lr


def test_the_options_of_a_method_are_completed() -> None:
    assert Experiment().method.options == {"lam": 0.85, "beta": 0.01, "server_lr": 1.0}
    given = Experiment.parse({"method": {"name": "fedprox+acg", "lam": 0}}).method
    assert given.options == {"mu": 0.001, "server_lr": 1.0, "lam": 0.0}
    assert "lam = 0.85" in Experiment().to_toml()


def test_a_method_is_spelled_in_one_way() -> None:
    assert Experiment.parse({"method": {"name": "FedProx+ACG"}}).method.name == "fedprox+acg"


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"extra": 1}, "extra"),
        ({"extra": {"a": 1}}, "extra"),
        *(
            ({table: {"extra": 1}}, f"{table}.extra")
            for table in ("data", "cohort", "local", "evaluate", "engine")
        ),
        ({"save": {"extra": 1}}, "save.extra"),
    ],
)
def test_extra_keys_are_refused(tree: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=f"unknown key '{key}': .*choose from"):
        Experiment.parse(tree)


def test_an_extra_option_of_a_method_is_refused() -> None:
    with pytest.raises(InputError, match="unknown option of method fedavg 'extra': choose from server_lr"):
        Experiment.parse({"method": {"name": "fedavg", "extra": 1}})


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Experiment.parse({"rounds": 0, "local": {"lr": -1, "lrr": 1}, "method": {"lam": 2}})
    lines = str(caught.value).splitlines()
    assert [line.split(" = ")[0].split(":")[0] for line in lines] == [
        "rounds",
        "method.lam",
        "local.lr",
        "unknown key 'local.lrr'",
    ]


def test_a_description_cannot_be_changed() -> None:
    experiment = Experiment()
    with pytest.raises(ValidationError, match="frozen"):
        experiment.rounds = 5  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        experiment.local.lr = 5  # type: ignore[misc]


def test_overrides_leave_the_tree_they_are_given_alone() -> None:
    tree = {"rounds": 5, "local": {"lr": 0.1}}
    changed = override(tree, ["rounds=6", "local.lr=0.2", "cohort.size=3"])
    assert changed == {"rounds": 6, "local": {"lr": 0.2}, "cohort": {"size": 3}}
    assert tree == {"rounds": 5, "local": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"5"', "5"),
        ("word", "word"),
        ("two words", "two words"),
        ("a=b", "a=b"),
        ("", ""),
        (" 7 ", 7),
    ],
)
def test_a_value_is_toml_or_else_a_plain_word(text: str, value: object) -> None:
    found = override({}, [f"model.key={text}"])["model"]["key"]
    assert found == value
    assert type(found) is type(value)


def test_the_last_of_two_overrides_holds() -> None:
    assert override({}, ["rounds=1", "rounds=2"]) == {"rounds": 2}


def test_another_method_brings_its_own_options_and_keeps_none_of_the_last() -> None:
    tree = {"method": {"name": "fedacg", "lam": 0.7, "beta": 0.5}, "rounds": 3}
    assert with_method(tree, "fedavg") == {"method": {"name": "fedavg"}, "rounds": 3}
    options = with_method(tree, "fedacg:lam=0.9:beta=0.1")["method"]
    assert options == {"name": "fedacg", "lam": 0.9, "beta": 0.1}


def test_a_difference_names_the_keys_with_both_values() -> None:
    one = Experiment.parse({"local": {"lr": 0.1}, "method": {"name": "fedavg"}})
    other = Experiment.parse({"local": {"lr": 0.2}, "method": {"name": "fedprox"}, "model": {"hidden": [8]}})
    assert one.difference(other) == [
        "local.lr is 0.1 there and 0.2 here",
        "method.mu is absent there and 0.001 here",
        'method.name is "fedavg" there and "fedprox" here',
        "model.hidden is absent there and [8] here",
    ]
    assert one.difference(one) == []


SAME = (
    "name=other",
    "engine.name=serial",
    "engine.workers=7",
    "engine.address=local",
    "save.seconds=0",
    "analysis.rounds=[3]",
    "analysis.every=5",
    "evaluate.targets=[0.5]",
    "evaluate.client_losses=true",
    'evaluate.goals=["test_loss<=0.3"]',
    'evaluate.metrics=["my_package:f1"]',
    'callbacks=["best-checkpoint"]',
    "data.partial=true",
)
"""What may differ in the same experiment."""


@pytest.mark.parametrize("setting", SAME)
def test_what_the_bits_do_not_follow_from_makes_no_other_experiment(setting: str) -> None:
    assert Experiment().difference(Experiment.parse(override({}, [setting]))) == []


def test_those_are_all_and_every_other_key_makes_another_experiment() -> None:
    assert {setting.partition("=")[0] for setting in SAME} == INCIDENTAL
    for setting in (
        "seed=1",
        "rounds=7",
        "cohort.size=3",
        "evaluate.every=2",
        "data.alpha=0.4",
        "engine.fuse=off",
    ):
        assert len(Experiment().difference(Experiment.parse(override({}, [setting])))) == 1
    assert len(Experiment().difference(Experiment.parse(override({}, ["engine.device=cuda"])))) == 1, "it rounds"


def test_a_key_of_another_version_counts() -> None:
    settings = {"name": "a", "local.lr": 0.1, "local.lookback": 3, "save.seconds": 1}
    assert decisive(settings) == {"local.lr": 0.1, "local.lookback": 3}


def test_naming_another_model_or_method_drops_the_options_of_the_old_one() -> None:
    tree = {"model": {"name": "mlp", "hidden": [8], "layout": "default"}, "method": {"name": "fedacg", "lam": 0.5}}
    changed = override(tree, ["model.name=cnn", "method.name=fedprox", "method.mu=0.1"])
    assert changed == {
        "model": {"name": "cnn", "layout": "default"},
        "method": {"name": "fedprox", "mu": 0.1},
    }
    assert override(tree, ["model.name=mlp", "method.name=fedacg"]) == tree
