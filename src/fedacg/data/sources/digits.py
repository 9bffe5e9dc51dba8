"""scikit-learn's handwritten digits: 1797 images of 8×8, which come with the package and need no download.

The cut into training and test examples is fixed: of each class, every fifth image from the third on
tests. Sizes and normalisation of all data sets are in catalogue.py.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedacg.data.examples import Contents, TensorExamples
from fedacg.errors import InputError


def _file() -> Path:
    """scikit-learn's file: its own reader gives the same examples, but takes a second and a half to load."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise InputError("data set 'digits': needs scikit-learn, which is not installed: pip install scikit-learn")
    return Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")


def read() -> Contents:
    """The 1438 training and the 359 test examples: images (N, 1, 8, 8) with values from 0 to 16."""
    rows = torch.from_numpy(np.loadtxt(_file(), delimiter=",", dtype=np.int64))
    x, y = rows[:, :-1].to(torch.uint8).reshape(-1, 1, 8, 8), rows[:, -1].clone()
    tests = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        tests[torch.nonzero(y == label).squeeze(1)[2::5]] = True
    return Contents(TensorExamples(x[~tests], y[~tests]), TensorExamples(x[tests], y[tests]))
