"""What can be answered without torch is answered without importing it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "matplotlib", "sklearn", "safetensors", "flwr", "ray"}
PROGRAM = """
import json, sys
from fedacg.cli import main
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code or 0, sorted(sys.modules)]), file=sys.stderr)
"""


def start(*arguments: str, folder: Path) -> tuple[int, set[str]]:
    """The exit code of a command, and the modules that it imported."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "--version",
        "recipes",
        "methods",
        "run --help",
        "bench --help",
        "sweep --help",
        "analyze --help",
        "data show --help",
        "deploy --help",
    ],
)
def test_help_and_lists_need_no_torch(arguments: str, tmp_path: Path) -> None:
    code, modules = start(*arguments.split(), folder=tmp_path)
    assert code == 0
    assert modules & HEAVY == set()


@pytest.mark.parametrize(
    "arguments",
    [
        "run nonsense",
        "run wrong.toml",
        "run quickstart --set local.lr=-1",
        "run quickstart --set local.rl=1",
        "run quickstart --set cohort.size=1000",
        "run quickstart --set population.present=40 --set population.replace=0.9",
        "run quickstart --set data.name=cifar",
        "run quickstart --set data.split=diriclet",
        "run quickstart --set model.name=resnet",
        "run quickstart --method fedacg:lam=2",
        "run quickstart --method fedacgg",
        "compare quickstart --methods fedavg,fedacg+nonsense",
        "sweep quickstart --grid local.lr=0.1,-1",
        "bench main-large --set local.lr=-1",
        "data split digits --split diriclet --out split.npz",
    ],
)
def test_what_is_wrong_with_a_description_is_found_without_torch(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("rounds = 0\n")
    code, modules = start(*arguments.split(), folder=tmp_path)
    assert code == 2
    assert modules & HEAVY == set()


def test_importing_the_package_imports_nothing_heavy_and_still_shows_all_names(tmp_path: Path) -> None:
    program = "import sys, fedacg; print(set(fedacg.__all__) <= set(dir(fedacg)), 'torch' in sys.modules)"
    program += "; print(fedacg.run.__module__, fedacg.data.MappedExamples.__name__, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "fedacg.runs.api", "MappedExamples", "True"]
