"""The package as users get it: a wheel built from the sdist, installed into an environment without this checkout.

How the environment is kept apart: it is a new `venv` whose interpreter sees the dependencies of the environment
that runs the tests through one line in a .pth file. Python does not read the .pth files of a folder that was added
in this way, so the editable installation of fedacg in there is out of reach; the tests check that fedacg cannot be
imported before the wheel is installed, and comes from the new environment afterwards. Commands run in an empty
folder, without PYTHONPATH. Installing torch and the rest from an index is not part of this: that takes minutes,
and is on the list in docs/developers/release.md.
"""

import csv
import email
import email.message
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from fedacg import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"fedacg-{__version__}"
JUNK = (".venv", "runs", "site", "benchmarks/peers/.envs/pfl", "benchmarks/peers/out")
"""Folders that work leaves in a checkout; none of their files belongs in the package."""

pytestmark = pytest.mark.slow


def run(*arguments: str | Path, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in a folder, without what would lead it to this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(
        list(map(str, arguments)), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the files in git, with junk among them, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            copy = folder / "checkout" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    for name in JUNK:
        (folder / "checkout" / name).mkdir(parents=True)
        (folder / "checkout" / name / "junk.py").touch()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder=folder / "checkout")
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl")


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    return email.message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))


def sources() -> set[str]:
    """Every file of the package in the checkout, as the wheel names it."""
    files = [path for path in (ROOT / "src" / "fedacg").rglob("*") if path.is_file()]
    return {str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    assert {name for name in wheel.namelist() if not name.startswith(f"{NAME}.dist-info/")} == sources()
    assert {"fedacg/py.typed", "fedacg/config/recipes/quickstart.toml", "fedacg/report/web/page.css"} <= sources()


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile, metadata: email.message.Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("fedacg", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    required = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert len(required) == len(PROJECT["dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload(decode=True)
    assert isinstance(description, bytes)
    assert description.decode().strip() == (ROOT / "README.md").read_text().strip()


def test_only_versions_of_python_that_were_tried_are_claimed(metadata: email.message.Message) -> None:
    said = [each.rpartition(":: ")[2] for each in metadata.get_all("Classifier", []) if "Python :: 3." in each]
    assert said == ["3.11"]


def test_the_wheel_has_the_program(wheel: zipfile.ZipFile) -> None:
    entries = ConfigParser()
    entries.read_string(wheel.read(f"{NAME}.dist-info/entry_points.txt").decode())
    assert {section: dict(entries[section]) for section in entries.sections()} == {
        "console_scripts": {"fedacg": "fedacg.cli:start"}
    }


def test_the_sdist_has_what_it_takes_to_build_test_and_cite(built: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "Makefile", "pyproject.toml"):
        assert name in names
    for name in ("tests/conftest.py", "docs/README.md", "examples/five_lines.py", "benchmarks/speed.py"):
        assert name in names
    assert {f"src/{name}" for name in sources()} <= names
    assert [name for name in names if name.endswith("junk.py")] == []


def make_environment(folder: Path) -> Path:
    """A new environment that sees the dependencies of this one, and not fedacg; the path of its Python."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = folder / "bin" / "python"
    look = "from importlib.util import find_spec; print(*(bool(find_spec(name)) for name in ('torch', 'fedacg')))"
    assert run(python, "-c", look, folder=folder).stdout == "True False\n"
    return python


def install(python: Path, package: Path, folder: Path) -> None:
    """Install into that environment, without an index, dependencies or a build environment of its own."""
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", "--quiet")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, package, folder=folder)


@pytest.mark.parametrize("kind", ["py3-none-any.whl", "tar.gz"])
def test_an_installation_without_the_repository_compares_methods(built: Path, kind: str, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment")
    (package,) = built.glob(f"{NAME}*{kind}")
    install(python, package, tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    where = run(python, "-c", "import fedacg; print(fedacg.__file__)", folder=empty).stdout
    assert Path(where).is_relative_to(tmp_path / "environment")
    program = python.with_name("fedacg")
    assert run(program, "--version", folder=empty).stdout == f"fedacg {__version__}\n"
    assert "quickstart" in run(program, "recipes", folder=empty).stdout
    run(program, "compare", "quickstart", "--set", "rounds=3", folder=empty)
    page = empty / "runs" / "quickstart" / "index.html"
    assert "FedACG" in page.read_text()
    with (page.parent / "table.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["fedavg", "fedacg"]
