"""Fixtures that several tests use."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from support.command import Command

# How long an example takes is the machine's affair, and several files are tested at a time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def fedacg(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The program `fedacg` in an empty folder with `tiny.toml` in it."""
    return Command(tmp_path, capsys, monkeypatch)


FIRST = (
    "test_start_up.py",
    "test_flower_deployment.py",
    "test_flower_deployment_app.py",
    "test_ray.py",
    "test_page_browser.py",
    "test_flower_sealed.py",
    "test_flower_agreement.py",
    "test_site.py",
    "test_package.py",
    "test_store.py",
    "test_states_resumed.py",
    "test_bench_runs.py",
)
"""Files that take long, much of it spent waiting."""
LAST = ("test_commands.py", "test_notebook.py", "test_examples.py", "test_kills.py", "test_damaged_folders.py")
"""Files whose tests share no start: each goes to the process that is free, and the short ones end the day."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first and what can be divided last, so that all processes end at the same time."""
    place = {name: number for number, name in enumerate((*FIRST, None, *LAST))}
    items.sort(key=lambda item: place.get(item.path.name, len(FIRST)))


class FilesAndSingleTests(LoadFileScheduling):
    """Whole files go to one process each, as starts are shared within a file; of those in LAST, single tests."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return nodeid if Path(file).name in LAST else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndSingleTests | None:
    """For `-n` without a `--dist` of the caller's own."""
    return FilesAndSingleTests(config, log) if config.getvalue("dist") == "load" else None
