"""Values that a description or a call can hold but no run can use: each is refused before anything is begun."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedacg
from fedacg.config.experiment import Experiment, flatten
from fedacg.config.recipe import override
from fedacg.errors import InputError, RunError
from fedacg.runs.build import prepare
from fedacg.runs.runner import play
from support.command import TINY, Command

HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("local.lr=1e39", "local.lr = 1e+39: is beyond the range of the model's torch.float32"),
        ("local.weight_decay=1e300", "local.weight_decay = 1e+300: is beyond the range"),
        ("method.server_lr=1e39", "method.server_lr = 1e+39: is beyond the range"),
        (f"local.batch={2**63}", "local.batch = 9223372036854775808: must be at most 2147483647"),
        (f"local.batch={2**62}", "must be at most 2147483647"),
        (f"rounds={HUGE}", "rounds = "),
        (f"seed={HUGE}", "seed = "),
        ("local.lr=" + "[" * 3000, "local.lr = "),
        ("model.hidden=[1000000, 1000000]", "model.name = 'mlp': has 10000"),
    ],
)
def test_a_value_that_no_run_can_use_is_refused(fedacg: Command, setting: str, words: str) -> None:
    outcome = fedacg("run", "tiny.toml", "--out", "run", "--set", setting)
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())
    assert len(outcome.err) < 2000
    assert not (fedacg.folder / "run").exists()


def call(**changes: Any) -> object:
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    given: dict[str, Any] = {"model": nn.Linear(3, 2), "clients": [(x, y)] * 3, "test": (x, y), "rounds": 1}
    return fedacg.run(**given | changes)


X, Y = torch.randn(8, 3), torch.arange(8) % 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": [(X, Y + 5)]}, "labels up to 6, but the model has 2 outputs"),
        ({"clients": ((X, Y) for _ in range(3))}, "clients: is a generator; must be a list"),
        ({"model": nn.LazyLinear(2)}, "lazy layers"),
        (
            {"model": nn.Linear(3, 2).to(torch.bfloat16)},
            "its parameters are torch.bfloat16; must be",
        ),
        ({"model": nn.Linear(3, 2).half()}, "its parameters are torch.float16; must be torch.float32"),
        ({"rounds": 10**5000}, "rounds = a whole number of 16610 bits: must be at most"),
        ({"lr": 1e39}, "beyond the range"),
    ],
)
def test_an_argument_that_no_run_can_use_is_refused(changes: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        call(**changes)


ODD = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.integers(-3, 9), max_size=3),
    st.sampled_from([0, 1, -1, 0.5, 1e-30, 1e30, 2**31, 2**63, "fedavg", "exact", "cosine", "cpu"]),
)
KEYS = sorted(key for key in flatten(Experiment().model_dump()) if not key.startswith(("engine.", "data.path")))


@pytest.mark.slow
@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), ODD, min_size=1, max_size=3))
def test_whatever_a_description_says_ends_in_a_run_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, odd: dict[str, Any]
) -> None:
    """Zero tracebacks: only an InputError or a RunError ends a described run that is not played."""
    folder: Path = tmp_path_factory.mktemp("odd")
    (folder / "tiny.toml").write_text(TINY)
    tree = override({}, ["rounds=1", "engine.name=serial", "data.clients=12", "local.steps=1", "cohort.size=2"])
    for key, value in odd.items():
        table, _, name = key.rpartition(".")
        (tree.setdefault(table, {}) if table else tree)[name] = value
    try:
        experiment = Experiment.parse(tree)
        small = experiment.rounds <= 2 and experiment.local.steps <= 2 and 0 < experiment.data.clients <= 50
        ingredients = prepare(experiment)
        if small and experiment.local.steps:
            play(experiment, ingredients, folder=folder / "run")
    except (InputError, RunError):
        return
