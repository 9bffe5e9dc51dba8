"""Shell completion of recipes, methods and keys. Nothing here loads torch, so it responds at once."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedacg.config.catalogue import DATA_SETS, MODELS, SPLITS
from fedacg.config.methods import METHODS, MODIFIERS, is_known, parse
from fedacg.config.recipe import recipe_names


def recipes(incomplete: str) -> list[str]:
    """Recipes by name, and TOML files with their folders."""
    folder = Path(incomplete.rpartition("/")[0] or ".")
    prefix = incomplete[: incomplete.rfind("/") + 1]
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [f"{prefix}{path.name}{'/' * path.is_dir()}" for path in entries if _is_offered(path)]
    return _beginning([*recipe_names(), *files], incomplete)


def _is_offered(path: Path) -> bool:
    return not path.name.startswith(".") and (path.is_dir() or path.suffix == ".toml")


def method(incomplete: str) -> list[str]:
    """A method; after its name and a plus its parts, after a colon its options."""
    name, colon, _ = incomplete.rpartition(":")
    if colon:
        base = name.partition(":")[0]
        known = parse(base).options() if is_known(base) else {}
        return _beginning([f"{name}:{each}=" for each in known], incomplete)
    base, plus, _ = incomplete.rpartition("+")
    return _beginning([f"{base}+{part}" for part in MODIFIERS] if plus else METHODS, incomplete)


def methods(incomplete: str) -> list[str]:
    """Comma-separated methods."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{each}" for each in method(last) if each not in before.split(",")]


def keys(incomplete: str) -> list[str]:
    """The keys of a description, with the allowed names as values."""
    from fedacg.config.experiment import Experiment

    found = [f"{key}=" for key in _keys(Experiment)]
    named = {"data.name": DATA_SETS, "data.split": SPLITS, "model.name": MODELS, "method.name": tuple(METHODS)}
    found += [f"{key}={name}" for key, names in named.items() if incomplete.startswith(key) for name in names]
    found += [f"method.{option}=" for entry in METHODS.values() for option in entry.options]
    return _beginning(dict.fromkeys(found), incomplete)


def _keys(section: type, prefix: str = "") -> Iterator[str]:
    from fedacg.config.fields import Section

    for name, field in getattr(section, "model_fields", {}).items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def data_sets(incomplete: str) -> list[str]:
    """The data sets."""
    return _beginning(DATA_SETS, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
