"""benchmarks/gpu.py with the pretended device in the place of `mps`, here and in worker processes.

    python tests/support/pretended_gpu.py FOLDER [arguments of gpu.py]

Workers come of a program in FOLDER that stands in for the interpreter: it is this one again, which pretends the
device before it does what it was asked to do.
"""

import runpy
import sys
from pathlib import Path

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from fedacg.core import tensors
from fedacg.data import device_copy
from fedacg.simulation import engine, resident
from support.pretended_device import NAME, Pretending, _Module

TESTS = Path(__file__).parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"
SPARE = 2**30


def count(name: tensors.Device) -> int:
    return int(name in ("cpu", "mps"))


def place(name: tensors.Device, number: int) -> torch.device:
    return torch.device("cpu") if name == "cpu" else torch.device(NAME, 0)


def pretend() -> None:
    """From now on, `mps` is the pretended device."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    tensors.count_devices = engine.count_devices = count  # type: ignore[attr-defined]
    tensors.device_of_worker = resident.device_of_worker = place  # type: ignore[attr-defined]
    device_copy.spare = lambda device: SPARE  # type: ignore[attr-defined]
    Pretending().__enter__()


def main(folder: str, *arguments: str) -> None:
    interpreter = Path(folder, "python")
    interpreter.write_text(f'#!/bin/sh\nexec env PYTHONPATH={TESTS} {sys.executable} {__file__} "$@"\n')
    interpreter.chmod(0o700)
    sys.executable = str(interpreter)
    sys.argv = ["gpu.py", *arguments]
    sys.path.insert(0, str(BENCHMARKS))
    runpy.run_path(str(BENCHMARKS / "gpu.py"), run_name="__main__")


if __name__ == "__main__":
    pretend()
    if sys.argv[1] == "-m":
        module, sys.argv = sys.argv[2], sys.argv[2:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        main(*sys.argv[1:])
