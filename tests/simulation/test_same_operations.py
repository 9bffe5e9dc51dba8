"""Every step of a visit is the same list of operations on the same memory, as a graph of an accelerator must be.

Which numbers are multiplied may change from step to step (the rate does). What is called, on which shapes, and
where the model lies may not, and nothing may be read back in between. Clipping is left out: on the CPU it looks at
the norm to save a pass, and on an accelerator it does not (`core.vector.clip`).
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedacg
from fedacg.core.vector import FlatModel
from fedacg.simulation import local

READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique")
METHODS = ("fedavg", "fedacg", "fedcm", "feddyn", "feddc", "scaffold", "fedsam", "fedlesam", "fedlc")


class Operations(TorchDispatchMode):
    """What is called in each step: operations and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.steps:
            shapes = [tuple(each.shape) for each in args if isinstance(each, Tensor)]
            self.steps[-1].append(f"{func}{shapes}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", METHODS)
def test_steps_of_a_visit_are_the_same_operations_in_place(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations = Operations()
    places: dict[int, list[tuple[int, int]]] = {}
    fetch, place = local.fetch, FlatModel.place_g

    def fetched(*arguments: Any) -> Any:
        found = fetch(*arguments)
        operations.steps.append([])
        return found

    def placed(self: FlatModel, at: Tensor | None = None) -> Tensor:
        g = place(self, at)
        places.setdefault(len(operations.steps), []).append((self.w.data_ptr(), g.data_ptr()))
        return g

    monkeypatch.setattr(local, "fetch", fetched)
    monkeypatch.setattr(FlatModel, "place_g", placed)
    x = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    with operations:
        fedacg.run(
            model=net, clients=[(x, torch.arange(20) % 3)] * 2, test=(x, torch.arange(20) % 3), method=method,
            rounds=1, cohort_size=2, batch_size=5, local_steps=4, weight_decay=0.01, workers=0,
        )  # fmt: skip
    visits = operations.steps[-8:-4], operations.steps[-4:]  # what comes before them is a rehearsal
    for visit in visits:
        inner = visit[1:3]  # the first may prepare something, and after the last there is the upload
        assert inner[0] == inner[1]
        assert inner[0], "nothing was recorded"
        assert not [each for step in inner for each in step if any(read in each for read in READS)]
    last = len(operations.steps)
    assert places[last]
    assert all(places[number] == places[last] for number in range(last - 7, last))
