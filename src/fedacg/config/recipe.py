"""Recipes and experiment files: TOML in and out, `extends`, overrides by dotted key, another method."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedacg.config.methods import is_known, parse
from fedacg.core.files import read_text
from fedacg.errors import InputError, unknown

Tree = dict[str, Any]
"""The tables of an experiment file as read, before anything is checked."""


def read_toml(path: Path) -> Tree:
    """The tree of settings in a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # such as numbers with thousands of digits, or thousands of brackets
        raise InputError(f"{path}: not a TOML file: {error}") from None


def write_toml(tree: Mapping[str, Any]) -> str:
    """A tree of settings as the text of a TOML file."""
    import tomli_w  # only runs write

    return tomli_w.dumps(tree)


def recipe_names() -> list[str]:
    """The experiments that come with the package."""
    folder = resources.files("fedacg.config.recipes")
    return sorted(Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".toml"))


def canonical_name(recipe: str) -> str:
    """The current name of a recipe: the former ending -desk is accepted for -small."""
    return f"{recipe.removesuffix('-desk')}-small" if recipe.endswith("-desk") else recipe


def find(recipe: str) -> Tree:
    """The tree of a recipe by name, or of a TOML file by its path, with what it extends filled in."""
    return _resolve(recipe, Path(), ())


def _resolve(recipe: str, folder: Path, chain: tuple[str, ...]) -> Tree:
    """A tree merged over the one its `extends` names: a recipe, or a file beside it."""
    if recipe.endswith(".toml") or "/" in recipe:
        path = folder / recipe
    elif (name := canonical_name(recipe)) in recipe_names():
        path = Path(str(resources.files("fedacg.config.recipes") / f"{name}.toml"))
    else:
        raise unknown("recipe", recipe, recipe_names())
    tree = read_toml(path)
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise InputError(f"{path}: extends = {base!r}: must be the name of a recipe or of a file")
    here = str(path.resolve())
    if here in chain:
        raise InputError(f"{path}: extends = {base!r}: the files extend each other in a circle")
    return lay_over(_resolve(base, path.parent, (*chain, here)), tree)


def lay_over(base: Mapping[str, Any], tree: Mapping[str, Any]) -> Tree:
    """The base with its values overridden by a tree's, table by table."""
    result = dict(base)
    for key, value in tree.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            table = dict(base[key])
            if value.get("name", table.get("name")) != table.get("name"):
                _drop_options(key, table)
            result[key] = table | dict(value)
        else:
            result[key] = value
    return result


def override(tree: Tree, assignments: Sequence[str]) -> Tree:
    """The tree with `key=value` applied; a key is dotted, a value is TOML or else a plain string."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        *tables, last = key.strip().split(".")
        if not equals or not last or len(tables) > 1:
            raise InputError(f"--set {assignment!r}: must look like rounds=10 or local.lr=0.05")
        table = result.setdefault(tables[0], {}) if tables else result
        if not isinstance(table, dict):
            raise InputError(f"--set {assignment!r}: {tables[0]} is a single value, not a table")
        value = _value(text.strip())
        if last == "name" and tables and value != table.get("name"):
            _drop_options(tables[0], table)
        table[last] = value
    return result


def _drop_options(section: str, table: Tree) -> None:
    """Drop the options of the model or method that a name replaces."""
    if section in ("model", "method"):
        for key in table.keys() - {"layout", "factorise"}:
            del table[key]


def with_method(tree: Tree, text: str) -> Tree:
    """The tree with another method: `fedavg`, or `fedacg:lam=0.9:beta=0.1` with options of its own.

    In `my_package:mine:lam=0.9`, where the method is user code, the options begin with the first `=`.
    """
    parts = text.split(":")
    first = next((place for place, part in enumerate(parts) if "=" in part), len(parts))
    name, options = ":".join(parts[:first]), parts[first:]
    wrong = [option for option in options if "=" not in option]
    if is_known(parts[0]):  # `fedacg:lam` lacks its value, while `scaffold:mine` may be a user's own module
        known = parse(parts[0]).options()
        wrong = [*(part for part in parts[1:first] if part in known), *wrong]
    if wrong:
        raise InputError(f"method {text!r}: {wrong[0]!r} must look like lam=0.9")
    return override({**tree, "method": {"name": name}}, [f"method.{option}" for option in options])


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or thousands of digits or brackets
        return text
