"""Federated learning with accelerated client gradients.

import fedacg
result = fedacg.run(model=net, clients=[(x0, y0), (x1, y1), …], test=(xt, yt), method="fedacg")
"""

from fedacg.errors import InputError, RunError
from fedacg.runs.api import run
from fedacg.runs.model_file import load_model
from fedacg.runs.runner import Result
from fedacg.version import __version__

__all__ = ["InputError", "Result", "RunError", "__version__", "load_model", "run"]
