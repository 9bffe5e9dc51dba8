"""What a worker's steps free is kept for the next ones, whatever the network."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, socket
import torch
from fedacg.engines.orders import Hello
from fedacg.engines.worker_process import WorkerProcess

def step():
    "As much as a backward pass frees: many tensors that are small beside all of them."
    return [torch.ones(2**18) for _ in range(64)] and None

WorkerProcess(socket.socketpair()[0]).greet(Hello([], 0))
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library cannot be told")
def test_a_worker_keeps_the_memory_that_its_steps_free() -> None:
    """Five steps of 64 MiB: by default the system has to map nearly all of their 80,000 pages anew."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000
