"""User code by name: the only place where a name such as `my_data:wine` becomes an import.

A name is `module:attribute`, or one that an installed package announces as an entry point of the group
`fedacg.methods`, `fedacg.parts`, `fedacg.models`, `fedacg.data`, `fedacg.samplers`, `fedacg.schedules`,
`fedacg.metrics` or `fedacg.callbacks`.

An experiment may name code, and the experiment in a run folder may be someone else's. Code that only reads a run
folder does so inside `reading`, where nothing is imported unless the user allowed it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fedacg.errors import InputError

_OURS = "fedacg."
"""The package's own functions, which the catalogue names; these may always be imported."""


@dataclass(frozen=True)
class _Reader:
    """A reader of a run folder."""

    folder: Path
    allow: str


_reader: ContextVar[_Reader | None] = ContextVar("reader", default=None)


def is_plugin(name: str) -> bool:
    """Whether a name is user code, `module:attribute`."""
    return ":" in name


@cache
def announced(kind: str) -> dict[str, str]:
    """Entry points of a kind, such as `methods`: `module:attribute` by name."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=f"fedacg.{kind}")}


@contextmanager
def reading(folder: Path, *, trust: bool, allow: str) -> Iterator[None]:
    """Read a run folder: without `trust`, no code it names is imported; `allow` says how to permit it."""
    token = _reader.set(_reader.get() if trust else _Reader(folder, allow))
    try:
        yield
    finally:
        _reader.reset(token)


def may_import() -> bool:
    """Whether user code may be imported: not while an untrusted run folder is read."""
    return _reader.get() is None


def check(key: str, name: str) -> None:
    """Refuse a name that may not be imported here."""
    reader = _reader.get()
    if reader is not None and is_plugin(name) and not name.startswith(_OURS):
        module, attribute = _parts(key, name)
        raise InputError(
            f"{reader.folder}: {key} = {name!r}: names code, {attribute} of the module {module}, and reading a "
            f"run folder imports none. If you trust the author of the folder, {reader.allow}"
        )


def load(key: str, name: str) -> Any:
    """The object that `module:attribute` names, for the setting `key`.

    The module is searched for in the current folder first. Errors inside it show their traceback.
    """
    check(key, name)
    module_name, attribute = _parts(key, name)
    here = str(Path.cwd())
    # A user's module may be a file in the current folder; a file there called fedacg must not shadow the package.
    if not name.startswith(_OURS) and sys.path[0] not in ("", here):
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports does not
        raise InputError(f"{key} = {name}: no module {error.name} in {here}, and none is installed") from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise InputError(f"{key} = {name}: the module {module_name} has no {attribute}") from None


def load_function(key: str, name: str) -> Any:
    """The same for something callable."""
    found = load(key, name)
    if not callable(found):
        raise InputError(f"{key} = {name}: names a value of type {type(found).__name__}; must name a function")
    return found


def _parts(key: str, name: str) -> tuple[str, str]:
    module, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise InputError(f"{key} = {name}: must look like module:function, such as my_package:mine")
    return module, attribute
