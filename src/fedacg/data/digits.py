"""scikit-learn's handwritten digits: 1797 images of 8×8, which come with the package and need no download.

The cut into training and test examples is fixed: of each class, every fifth image from the third on
tests. Sizes and normalisation of all data sets stand in catalogue.py.
"""

import numpy as np
import torch

from fedacg.data.examples import Contents, TensorExamples


def read() -> Contents:
    """The 1438 training and the 359 test examples: images (N, 1, 8, 8) with values from 0 to 16."""
    # Here and not above: scikit-learn takes a second to load, and workers never need it.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)
    y = torch.from_numpy(bunch.target.astype(np.int64))
    tests = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        tests[torch.nonzero(y == label).squeeze(1)[2::5]] = True
    return Contents(TensorExamples(x[~tests], y[~tests]), TensorExamples(x[tests], y[tests]))
