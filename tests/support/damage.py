"""Ways to damage a run folder: bytes, kinds of file, and values of the wrong type with checksums that fit."""

import json
import os
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedacg.core.files import seal, unseal
from support.thorough import THOROUGH


@dataclass(frozen=True)
class Damage:
    """Something that is done to a run folder."""

    name: str
    do: Callable[[Path], None]


HUGE: list[Any] = [10**400, -(10**30), 2**63, 1e308, -1e308, float("nan"), float("inf")]
STRANGE: list[Any] = [None, True, "", "\x1b[2J", "x" * 3000, [], [[]], {}, {"a": {"b": []}}, -1, 0, 1.5, *HUGE]


def every_damage(run: Path, generator: random.Random) -> Iterator[Damage]:
    """Damage to every file of a run folder, in every byte range and of every kind, and files of others."""
    for path in _different(sorted(path for path in run.rglob("*") if path.is_file())):
        yield from _of_bytes(path.relative_to(run), path.stat().st_size, generator)
        yield from _of_kind(path.relative_to(run))
    for folder in ("clients", "recorded"):
        for path in sorted(path for path in (run / folder).rglob("*") if path.is_dir()):
            yield from _of_kind(path.relative_to(run))
            yield from _strangers(path.relative_to(run))
        yield from _strangers(Path(folder))
        yield from _of_kind(Path(folder))
    yield from _strangers(Path())
    yield from _values(run)


def _different(paths: Iterable[Path]) -> Iterator[Path]:
    """Of the files of clients that lie beside each other, two: of the last round's cohort, and of another."""
    beside: Counter[Path] = Counter()
    for path in paths:
        beside[path.parent] += path.name[0].isdigit()
        if THOROUGH or not path.name[0].isdigit() or beside[path.parent] <= 2:
            yield path


def _of_bytes(name: Path, size: int, generator: random.Random) -> Iterator[Damage]:
    for part in range(4):
        low, high = size * part // 4, max(size * part // 4 + 1, size * (part + 1) // 4)
        at = generator.randrange(low, max(high, low + 1))
        yield Damage(f"{name}: cut at {at}", lambda run, at=at: _write(run / name, (run / name).read_bytes()[:at]))
        yield Damage(
            f"{name}: noise at {at}", lambda run, at=at: _overwrite(run / name, at, b'\xff\x00\x80{["' * 9)
        )
        yield Damage(f"{name}: zeros at {at}", lambda run, at=at: _overwrite(run / name, at, bytes(64)))
        yield Damage(f"{name}: missing bytes at {at}", lambda run, at=at: _splice(run / name, at, 7))
    yield Damage(f"{name}: empty", lambda run: _write(run / name, b""))
    yield Damage(f"{name}: appended", lambda run: _overwrite(run / name, size, b"\n{}]["))
    yield Damage(f"{name}: another file", lambda run: _write(run / name, b"PK\x03\x04 something else"))
    yield Damage(f"{name}: deep", lambda run: _write(run / name, b"[" * 100_000))
    yield Damage(f"{name}: deep tables", lambda run: _write(run / name, b'{"a":' * 100_000))
    yield Damage(f"{name}: deep dots", lambda run: _write(run / name, b"a" + b".a" * 5000 + b" = 1\n"))
    yield Damage(f"{name}: digits", lambda run: _write(run / name, b'{"round": ' + b"9" * 6000 + b"}"))
    yield Damage(f"{name}: missing", lambda run: (run / name).unlink())


def _of_kind(name: Path) -> Iterator[Damage]:
    def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
        def do(run: Path) -> None:
            _gone(run / name)
            make(run / name)

        return do

    yield Damage(f"{name}: a pipe", replaced(os.mkfifo))
    yield Damage(f"{name}: a folder", replaced(lambda path: (path / "inside").mkdir(parents=True)))
    yield Damage(f"{name}: a file", replaced(lambda path: path.write_bytes(b"\0")))
    yield Damage(f"{name}: a link to nothing", replaced(lambda path: path.symlink_to("nowhere")))
    yield Damage(f"{name}: a link to itself", replaced(lambda path: path.symlink_to(path.name)))
    yield Damage(f"{name}: a link to a device", replaced(lambda path: path.symlink_to("/dev/zero")))
    yield Damage(f"{name}: a link elsewhere", replaced(lambda path: path.symlink_to(path.parents[2] / "precious")))


def _strangers(folder: Path) -> Iterator[Damage]:
    for stranger in (".DS_Store", "notes.txt", "0x10", "²", "12-", "99999999999999999999", "00001.bak", "-1"):
        yield Damage(f"{folder}/{stranger}: a stranger", lambda run, s=stranger: _write(run / folder / s, b"\0"))
        yield Damage(
            f"{folder}/{stranger}/: a strange folder",
            lambda run, s=stranger: _write(run / folder / f"{s}d" / "round.json", b"{}"),
        )
    yield Damage(f"{folder}: a strange pipe", lambda run: os.mkfifo(run / folder / "7-1.safetensors"))
    yield Damage(f"{folder}: bytes that are no text", lambda run: _write(run / folder / os.fsdecode(b"\xff"), b""))


def _values(run: Path) -> Iterator[Damage]:
    """Values of the wrong type or size, with checksums that fit: as if a strange program had written them."""
    for name in (
        "run.json",
        "summary.json",
        *(str(p.relative_to(run)) for p in run.glob("recorded/*/round.json")),
    ):
        for key in unseal((run / name).read_bytes()):
            for number, value in enumerate(STRANGE):
                yield Damage(
                    f"{name}: {key} is strange {number}", lambda r, n=name, k=key, v=value: _json(r / n, k, v)
                )
    line = (run / "metrics.jsonl").read_bytes().splitlines()[0]
    for key in unseal(line):
        for number, value in enumerate(STRANGE):
            yield Damage(f"metrics.jsonl: {key} is strange {number}", lambda r, k=key, v=value: _line(r, k, v))
    tables = ("", "data.", "model.", "method.", "cohort.", "local.", "evaluate.", "engine.", "save.", "analysis.")
    for table in tables:
        for key in ("name", "seed", "rounds", "clients", "split", "targets", "every", "unknown", "alpha", "batch"):
            for number, value in enumerate(TOML):
                yield Damage(
                    f"experiment.toml: {table}{key} is strange {number}",
                    lambda r, t=table, k=key, v=value: _toml(r, t, k, v),
                )


TOML = [
    '"\\u001b[2J"',
    '"=1+1"',
    "nan",
    "-inf",
    "0x" + "f" * 400,
    "9" * 30,
    "[[1]]",
    "{a = {b = 1}}",
    "1979-05-27",
]


def _json(path: Path, key: str, value: Any) -> None:
    record = unseal(path.read_bytes())
    path.write_text(seal(json.dumps(record | {key: value})))


def _line(run: Path, key: str, value: Any) -> None:
    path = run / "metrics.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    line = seal(json.dumps(unseal(first) | {key: value}))
    path.write_bytes(line.encode() + b"\n" + b"".join(others))


def _toml(run: Path, table: str, key: str, value: str) -> None:
    path = run / "experiment.toml"
    lines = path.read_text().splitlines()
    start = lines.index(f"[{table[:-1]}]") + 1 if table else 0
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("[")), len(lines))
    kept = [line for line in lines[start:end] if not line.startswith(f"{key} =")]
    path.write_text("\n".join([*lines[:start], f"{key} = {value}", *kept, *lines[end:]]) + "\n")
    _json(run / "run.json", "experiment", f"{zlib.crc32(path.read_bytes()):08x}")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _overwrite(path: Path, at: int, content: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + content + whole[at + len(content) :])


def _splice(path: Path, at: int, count: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + whole[at + count :])


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
