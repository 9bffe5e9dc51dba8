"""The version, the changes, the citation and the tags agree: what docs/developers/release.md asks of a release."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fedacg import __version__

ROOT = Path(__file__).parents[2]
NUMBERS = re.compile(r"\d+\.\d+\.\d+")


def ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def problems(version: str, changes: str, citation: str, tags: list[str], tags_here: list[str]) -> list[str]:
    """What is wrong with a checkout of this version, which has these tags, some of them on its very commit."""
    found = [] if NUMBERS.fullmatch(version) else [f"{version} is not MAJOR.MINOR.PATCH"]
    if f"\nversion: {version}\n" not in citation:
        found.append(f"CITATION.cff does not have the version {version}")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", changes, re.MULTILINE)
    if not re.search(r"^## \[Unreleased\]$", changes, re.MULTILINE):
        found.append("CHANGELOG.md has no section Unreleased")
    if released != sorted(released, key=ordered, reverse=True):
        found.append("CHANGELOG.md does not have the newest version first")
    if released and ordered(released[0]) > ordered(version):
        found.append(f"CHANGELOG.md has {released[0]}, which is newer than {version}")
    for tag in tags:
        if tag.removeprefix("v") not in released:
            found.append(f"CHANGELOG.md has no dated section for the tag {tag}")
    for tag in tags_here:
        if tag != f"v{version}":
            found.append(f"the tag {tag} is on a commit of the version {version}")
        elif re.search(r"^## \[Unreleased\]\n+[^#\s]", changes.replace("\n### ", "\n- "), re.MULTILINE):
            found.append(f"the tag {tag} is on a commit with unreleased changes")
    return found


def git_tags(*options: str) -> list[str]:
    """The tags of releases; none in a clone without tags, or outside a repository."""
    listed = subprocess.run(["git", "tag", *options], cwd=ROOT, capture_output=True, text=True, check=False)
    return [tag for tag in listed.stdout.split() if re.fullmatch(r"v\d.*", tag)]


def test_this_checkout_could_be_released_as_its_version() -> None:
    changes, citation = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    assert problems(__version__, changes, citation, git_tags(), git_tags("--points-at", "HEAD")) == []


CHANGES = """# Changes

## [Unreleased]

## [0.2.0] - 2026-12-01

### Added

- b

## [0.1.0] - 2026-11-18

- a
"""
CITATION = "title: x\nversion: 0.2.0\nlicense: y\n"


def test_a_proper_release_has_no_problems() -> None:
    assert problems("0.2.0", CHANGES, CITATION, ["v0.1.0", "v0.2.0"], ["v0.2.0"]) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"version": "0.2"}, "is not MAJOR.MINOR.PATCH"),
        ({"citation": CITATION.replace("0.2.0", "0.1.0")}, "CITATION.cff does not have the version 0.2.0"),
        ({"changes": CHANGES.replace("## [Unreleased]", "## Soon")}, "has no section Unreleased"),
        ({"changes": CHANGES.replace("[0.1.0]", "[0.3.0]")}, "does not have the newest version first"),
        ({"changes": CHANGES.replace("[0.2.0]", "[0.3.0]")}, "has 0.3.0, which is newer than 0.2.0"),
        ({"changes": CHANGES.replace("[0.2.0] - 2026-12-01", "[0.2.0]")}, "no dated section for the tag v0.2.0"),
        ({"tags_here": ["v0.1.0"]}, "the tag v0.1.0 is on a commit of the version 0.2.0"),
        ({"changes": CHANGES.replace("[Unreleased]\n", "[Unreleased]\n\n- c\n")}, "with unreleased changes"),
        (
            {"changes": CHANGES.replace("[Unreleased]\n", "[Unreleased]\n\n### Added\n\n- c\n")},
            "with unreleased changes",
        ),
    ],
)
def test_a_release_with_a_mistake_in_it_is_found(changed: dict[str, str | list[str]], problem: str) -> None:
    proper = {
        "version": "0.2.0",
        "changes": CHANGES,
        "citation": CITATION,
        "tags": ["v0.1.0", "v0.2.0"],
        "tags_here": ["v0.2.0"],
    }
    assert any(problem in found for found in problems(**{**proper, **changed}))  # type: ignore[arg-type]


def test_the_pinned_requirements_are_complete_hashed_and_name_no_index() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert not re.search(r"https?://|file:|^\s*--?(i|f|index|extra|find|trusted)", text, re.MULTILINE)
    pinned = {}
    for block in re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)):
        name, version = re.fullmatch(r"([\w.-]+)==(\S+) \\", block.splitlines()[0]).groups()  # type: ignore[union-attr]
        hashes = [
            re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in block.strip().splitlines()[1:]
        ]
        assert hashes, name
        assert all(hashes), name
        pinned[name] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["privacy"]])
    wrong = [
        str(each) for each in needed if each.name != "torch" and pinned.get(each.name, "") not in each.specifier
    ]
    assert wrong == []
    assert "torch" not in pinned
