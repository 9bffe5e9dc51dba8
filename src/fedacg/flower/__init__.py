"""FedACG in real federations, on Flower (the extra `flower`); nothing else in the package imports flwr.

`FedACG` is a strategy for an existing Flower app (strategy.py), imported on first use. `add_penalty` adapts its
PyTorch clients; it does not need Flower. Clients built on this project's own trainer have the penalty in their
method.
"""

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from fedacg import methods
from fedacg.errors import InputError

if TYPE_CHECKING:
    from fedacg.flower.strategy import FedACG

__all__ = ["FedACG", "add_penalty"]


def __getattr__(name: str) -> Any:
    if name != "FedACG":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from fedacg.flower.strategy import FedACG
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ImportError("fedacg.flower.FedACG needs Flower: pip install 'fedacg[flower]'") from None
    return FedACG


_pulls: WeakKeyDictionary[Optimizer, RemovableHandle] = WeakKeyDictionary()


def add_penalty(optimizer: Optimizer, beta: float = 0.01) -> None:
    """Add β/2 ‖w − φ‖² to what an optimizer minimises; φ is where its parameters stand now.

    Call it after the model has been loaded with what the server sent and before the first step:

        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        add_penalty(optimizer, beta=0.01)

    The loop stays as it is: every `optimizer.step()` first adds β(w − φ) to the gradients, in their type and on
    their device. Gradients that the loop clips are those of the loss alone. A second call moves φ; with an
    optimizer that lives on through several rounds, call it in each.
    """
    beta = methods.complete("fedacg", {"beta": beta})["beta"]
    parameters = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
    ]
    phi = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def pull(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(argument is not None for argument in (*args[1:], kwargs.get("closure"))):
            raise InputError(
                f"{type(optimizer).__name__}.step(closure): add_penalty cannot see the gradients that a closure "
                "computes; use an optimizer that takes one gradient per step"
            )
        for parameter, start in zip(parameters, phi, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(parameter - start, alpha=beta)

    if optimizer in _pulls:
        _pulls[optimizer].remove()
    _pulls[optimizer] = optimizer.register_step_pre_hook(pull)
