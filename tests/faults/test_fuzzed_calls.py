"""Commands and calls put together at random: each ends well or with one clear error, never with a traceback."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fedacg
from fedacg.cli.program import app
from fedacg.config.parameters import NAMES
from fedacg.errors import InputError, RunError
from support.command import TINY, Command

ODD_WORDS = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "-1",
                "0",
                "1",
                "2",
                "0.5",
                "nan",
                "inf",
                "-inf",
                "1e999",
                "9" * 400,
                "true",
                "[1]",
                "{}",
                "a=b",
            ),
            *(
                "fedavg",
                "fedacg+paq",
                "fedavg,fedacg",
                "+",
                "fedacg:lam=2",
                "no_module:thing",
                "digits",
                "tiny.toml",
            ),
            *("local.lr=", "local.lr=0.01", "=", "cohort.size=10", "method.lam=0.1,0.2", "a.b.c=1", "name=../x"),
            *("run", "empty", "missing", "file.txt", ".", "..", "/dev/null", "\x1b[31m", "ü" * 40, "\udcff"),
        ]
    ),
    st.text(st.characters(exclude_characters="\0"), max_size=10),
    st.integers().map(str),
    st.floats().map(str),
)
BOUNDED = {
    "run": ["--set", "rounds=1", "--set", "engine.name=serial", "--quiet"],
    "compare": ["--set", "rounds=1", "--set", "engine.name=serial", "--quiet"],
    "sweep": ["--set", "rounds=1", "--set", "engine.name=serial", "--dry-run", "--quiet"],
    "bench": ["--set", "rounds=1", "--dry-run"],
    "tune": ["--set", "rounds=1", "--set", "engine.name=serial", "--trials", "1", "--quiet"],
    "analyze": ["--resolution", "3", "--examples", "20", "--workers", "1"],
    "watch": ["--port", "-1"],
}
"""What keeps a command from taking long or waiting for a browser, whatever else is said; the last word wins."""
NOT_CALLED = {"data get"}
"""It would fetch files from the makers' sites."""


def commands(group: click.Command, prefix: str = "") -> dict[str, click.Command]:
    """Every command by its words, as in `data list`."""
    if not isinstance(group, click.Group):
        return {prefix.strip(): group}
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        found |= commands(command, f"{prefix} {name}")
    return found


COMMANDS = commands(typer.main.get_command(app))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command with arguments and options that it has, and values that it may or may not take."""
    name = draw(st.sampled_from(sorted(COMMANDS.keys() - NOT_CALLED)))
    words = name.split()
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Argument):
            usual = {"recipe": "tiny.toml", "folders": "run", "table": "main-large"}.get(parameter.name or "", "x")
            words += draw(st.lists(st.one_of(st.just(usual), ODD_WORDS), min_size=0, max_size=2))
        elif parameter.name != "help" and draw(st.integers(0, 3)) == 0:
            flag = draw(st.sampled_from(parameter.opts))
            words += [flag] if getattr(parameter, "is_flag", False) else [flag, draw(ODD_WORDS)]
    return [*words, *BOUNDED.get(name, [])]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment, a run, an empty folder and a file that is none of these."""
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "tiny.toml").write_text(TINY)
    (folder / "empty").mkdir()
    (folder / "file.txt").write_text("nothing")
    fedacg.run(fedacg.recipe(str(folder / "tiny.toml"), rounds=2), out=folder / "run")
    return folder


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(command_lines())
def test_whatever_is_typed_ends_well_or_with_one_clear_error(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    outcome = Command(place, capsys, monkeypatch)(*line)
    assert outcome.code in (0, 1, 2), line
    assert "Traceback" not in outcome.err, line
    assert not outcome.code or outcome.err.strip(), f"{line} failed without a word"
    assert (place / "file.txt").read_text() == "nothing"


X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2


class _Refuses(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


ODD_VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=6),
    st.binary(max_size=4),
    st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.sampled_from(
        [
            *(
                X,
                Y,
                X.double(),
                X[:0],
                X.numpy(),
                np.array(["a", "b"]),
                np.int64(3),
                np.float32(0.1),
                {1, 2},
                object(),
            ),
            *(
                [(X, Y)],
                [(X, Y[:3])],
                [(X, X)],
                [(X[:0], Y[:0])],
                (X, Y),
                [[X, Y]],
                [X],
                {},
                {"a": (X, Y)},
                [None],
            ),
            *(nn.Linear(3, 2), nn.Linear(4, 2), nn.Identity(), nn.ReLU, _Refuses(), nn.Linear(3, 2).double(), len),
            *("fedavg", "fedacg+paq", "cosine", "coin", "serial", "dirichlet", Path("x"), [[0], [1]], [[0], [99]]),
        ]
    ),
)
OBJECTS = {"model", "clients", "test", "loss", "classes", "metrics", "callbacks", "on_round", "sampler", "cohorts"}
ARGUMENTS = sorted({*NAMES, *OBJECTS, "channels_last", "resume", "overwrite", "progress"})


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(st.dictionaries(st.sampled_from(ARGUMENTS), ODD_VALUES, min_size=1, max_size=3))
def test_whatever_a_call_is_given_ends_in_a_run_or_one_clear_error(odd: dict[str, Any]) -> None:
    given: dict[str, Any] = {"model": nn.Linear(3, 2), "clients": [(X, Y)] * 3, "test": (X, Y), "rounds": 1}
    given |= odd
    small: dict[str, Callable[[Any], bool]] = {
        "rounds": lambda value: value <= 3,
        "workers": lambda value: value <= 2,
        "local_steps": lambda value: value <= 3,
        "local_epochs": lambda value: value <= 3,
    }
    for name, fits in small.items():  # what is right and would take for ever is left out
        if isinstance(given.get(name), int | np.integer) and not fits(given[name]):
            given[name] = 2
    if any(callable(given.get(name)) for name in ("loss", "on_round", "sampler")):
        return  # what goes wrong in a user's own function shows its traceback
    with suppress(InputError, RunError):
        assert isinstance(fedacg.run(**given).model, nn.Module)
