"""Fixtures that several tests use."""

from pathlib import Path

import pytest

from command import Command


@pytest.fixture
def fedacg(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The program `fedacg` in an empty folder with `tiny.toml` in it."""
    return Command(tmp_path, capsys, monkeypatch)
