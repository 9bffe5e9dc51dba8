"""References `package.module:attribute`: what they lead to, and what is said where they lead nowhere."""

import sys
from pathlib import Path

import pytest

from fedacg.core.plugins import load
from fedacg.errors import InputError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_module_is_looked_for_in_the_current_folder(here: Path) -> None:
    (here / "my_plugins.py").write_text("answer = 42")
    assert load("method.name", "my_plugins:answer") == 42


def test_a_module_within_a_package(here: Path) -> None:
    (here / "my_package" / "inner").mkdir(parents=True)
    (here / "my_package" / "inner" / "deep.py").write_text("def made(): return 7")
    assert load("model.name", "my_package.inner.deep:made")() == 7


@pytest.mark.parametrize(
    "reference", ["my_plugins", "my_plugins:", ":answer", "my plugins:answer", "a:b:c", "a:b.c"]
)
def test_a_malformed_reference_is_refused(reference: str, here: Path) -> None:
    with pytest.raises(InputError, match="must look like module:function"):
        load("method.name", reference)


def test_a_missing_module_is_named_with_the_setting_and_the_folder(here: Path) -> None:
    with pytest.raises(InputError) as error:
        load("method.name", "my_plugins:answer")
    assert str(error.value) == (
        f"method.name = my_plugins:answer: no module my_plugins in {here}, and none is installed"
    )


def test_a_missing_attribute_is_named(here: Path) -> None:
    (here / "my_plugins.py").write_text("answer = 42")
    with pytest.raises(
        InputError, match=r"model\.name = my_plugins:question: the module my_plugins has no question"
    ):
        load("model.name", "my_plugins:question")


def test_an_import_that_fails_inside_the_module_is_the_users_own_error(here: Path) -> None:
    (here / "my_plugins.py").write_text("import a_package_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        load("method.name", "my_plugins:answer")
    (here / "others.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        load("method.name", "others:answer")
