"""FedACG in real federations, on Flower (the extra `flower`); nothing else in the package imports flwr.

`FedACG` is a strategy for an existing Flower app (strategy.py), `add_penalty` adapts its PyTorch clients
(client.py); checks.py validates replies. Each is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedacg.flower.client import add_penalty
    from fedacg.flower.strategy import FedACG

__all__ = ["FedACG", "add_penalty"]

_HOMES = {"FedACG": "strategy", "add_penalty": "client"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ImportError(f"fedacg.flower.{name} needs Flower: pip install 'fedacg[flower]'") from None
