"""Fixtures that several tests use."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.command import Command

# How long an example takes is the machine's affair, and several files are tested at a time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def fedacg(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The program `fedacg` in an empty folder with `tiny.toml` in it."""
    return Command(tmp_path, capsys, monkeypatch)


LONGEST = (
    "test_commands.py",
    "test_kills.py",
    "test_flower_deployment.py",
    "test_flower_deployment_app.py",
    "test_states_resumed.py",
    "test_store.py",
    "test_flower_agreement.py",
    "test_ray.py",
    "test_page_browser.py",
    "test_bench_runs.py",
    "test_examples.py",
)
"""Files that take a minute or more, much of it spent waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first: where several are tested at a time, none of them is left for the end."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
