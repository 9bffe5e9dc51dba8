"""How many test examples go through a network at once.

Beyond some size a pass takes longer per example, as benchmarks/evaluation.py measures. The size decides how
the test loss rounds, so it follows from the network alone and not from the machine.
"""

import torch
from torch import Tensor, nn

from fedacg.core.inputs import Inputs, call

_ENTRIES = 2**21
"""Entries of the largest output of a layer in one pass, at most."""


@torch.no_grad()
def examples_per_pass(module: nn.Module, one: Inputs) -> int:
    """The size of a pass, found with one example."""
    largest = 1

    def look(layer: nn.Module, given: object, found: object) -> None:
        nonlocal largest
        if isinstance(found, Tensor):
            largest = max(largest, found.numel())

    hooks = [layer.register_forward_hook(look) for layer in module.modules()]
    try:
        call(module, one)
    finally:
        for hook in hooks:
            hook.remove()
    return max(1, _ENTRIES // largest)
