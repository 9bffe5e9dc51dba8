"""Federated learning with accelerated client gradients.

import fedacg
result = fedacg.run(model=net, clients=[(x0, y0), (x1, y1), …], test=(xt, yt), method="fedacg")

Whatever needs torch is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedacg.errors import InputError, RunError

if TYPE_CHECKING:
    from fedacg import data, methods, models
    from fedacg.bench.api import Comparison, compare, sweep
    from fedacg.bench.tuning import tune
    from fedacg.config.experiment import Experiment
    from fedacg.config.parameters import recipe
    from fedacg.runs.api import load, run
    from fedacg.runs.callbacks import BestCheckpoint, Callback, EarlyStopping, TimeLimit
    from fedacg.runs.model_file import load_model
    from fedacg.runs.runner import Result

__all__ = [
    "BestCheckpoint",
    "Callback",
    "Comparison",
    "EarlyStopping",
    "Experiment",
    "InputError",
    "Result",
    "RunError",
    "TimeLimit",
    "__version__",
    "compare",
    "data",
    "load",
    "load_model",
    "methods",
    "models",
    "recipe",
    "run",
    "sweep",
    "tune",
]

__version__ = "0.1.0"

_LATER = {
    "BestCheckpoint": "fedacg.runs.callbacks",
    "Callback": "fedacg.runs.callbacks",
    "Comparison": "fedacg.bench.api",
    "EarlyStopping": "fedacg.runs.callbacks",
    "Experiment": "fedacg.config.experiment",
    "Result": "fedacg.runs.runner",
    "TimeLimit": "fedacg.runs.callbacks",
    "compare": "fedacg.bench.api",
    "load": "fedacg.runs.api",
    "load_model": "fedacg.runs.model_file",
    "recipe": "fedacg.config.parameters",
    "run": "fedacg.runs.api",
    "sweep": "fedacg.bench.api",
    "tune": "fedacg.bench.tuning",
}
_PACKAGES = ("data", "methods", "models")


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _PACKAGES:
        return import_module(f"fedacg.{name}")
    if name in _LATER:
        value = globals()[name] = getattr(import_module(_LATER[name]), name)
        return value
    raise AttributeError(f"module 'fedacg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
