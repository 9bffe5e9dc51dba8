"""The Containerfile, read without a container engine: what it copies, runs and starts exists in the repository."""

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTRUCTIONS = {"FROM", "ARG", "COPY", "RUN", "USER", "WORKDIR", "ENV", "ENTRYPOINT", "CMD"}
PROGRAMS = {"pip", "python", "rm", "useradd"}
"""What the commands may start: all are in python:3.11-slim."""


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of every line; continued lines are joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def of(wanted: str) -> list[str]:
    return [rest for word, rest in instructions() if word == wanted]


def commands() -> list[list[str]]:
    return [shlex.split(command) for run in of("RUN") for command in run.split("&&")]


def test_only_known_instructions_and_programs_are_used() -> None:
    assert {word for word, _ in instructions()} <= INSTRUCTIONS
    assert {program for program, *_ in commands()} <= PROGRAMS


def test_the_base_image_has_a_python_that_the_package_allows_and_is_tested_with() -> None:
    images = {line.split()[0] for line in of("FROM")}
    (version,) = {re.fullmatch(r"python:(\d+\.\d+)-slim", image)[1] for image in images}  # type: ignore[index]
    assert version in SpecifierSet(PROJECT["requires-python"])
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    assert f"Python {version}" in (ROOT / "requirements.txt").read_text().splitlines()[0]


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    stages = {line.split(" AS ")[1] for line in of("FROM") if " AS " in line}
    ignored = (ROOT / ".dockerignore").read_text().split()
    for copy in of("COPY"):
        *options, source, _ = copy.split()
        if options:
            assert options == [f"--from={stage}" for stage in stages]
            continue
        assert (ROOT / source).exists()
        assert not any(fnmatch(source, pattern) for pattern in ignored)
    needed = {"pyproject.toml", "MANIFEST.in", "src", PROJECT["readme"], *PROJECT["license-files"]}
    assert all((ROOT / name).exists() for name in needed)
    assert not {name for name in needed for pattern in ignored if fnmatch(name, pattern)}


def test_wheels_are_taken_from_where_they_were_written() -> None:
    built = next(command for command in commands() if command[:3] == ["python", "-m", "build"])
    written = built[built.index("--outdir") + 1]
    (taken,) = (copy.split()[1] for copy in of("COPY") if copy.startswith("--from="))
    assert taken == f"{written}/*.whl"


def test_torch_is_the_version_that_the_requirements_belong_to() -> None:
    torch = Requirement(next(word for command in commands() for word in command if word.startswith("torch")))
    (version,) = (each.version for each in torch.specifier)
    allowed = next(Requirement(each) for each in PROJECT["dependencies"] if each.startswith("torch"))
    assert version in allowed.specifier
    assert f"torch {version}" in (ROOT / "requirements.txt").read_text()


def test_the_container_starts_the_program_of_the_package_as_a_user_that_was_made() -> None:
    (entry,), (default,) = (map(json.loads, of(word)) for word in ("ENTRYPOINT", "CMD"))
    assert entry == [next(iter(PROJECT["scripts"]))]
    assert default == ["--help"]
    (user,) = of("USER")
    assert ["useradd", "--create-home", user] in commands()
    assert of("WORKDIR")[-1] == f"/home/{user}"
