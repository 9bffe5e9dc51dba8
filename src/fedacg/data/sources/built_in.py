"""Data sets that need no download: scikit-learn's digits, and Synthetic(α, β).

The cut of the digits into training and test examples is fixed: of each class, every fifth image from the third on
tests. A client of Synthetic(α, β) is made from (seed, client number) when it takes part, so a million of
them cost nothing. Sizes and normalisation of all data sets are in catalogue.py.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedacg.core import randomness
from fedacg.data.examples import Contents, FederatedData, TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError

# scikit-learn's handwritten digits: 1797 images of 8×8, which come with the package


def _digits_file() -> Path:
    """scikit-learn's file: its own reader gives the same examples, but takes a second and a half to load."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise InputError("data set 'digits': needs scikit-learn, which is not installed: pip install scikit-learn")
    return Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")


def read_digits() -> Contents:
    """The 1438 training and the 359 test examples: images (N, 1, 8, 8) with values from 0 to 16."""
    rows = torch.from_numpy(np.loadtxt(_digits_file(), delimiter=",", dtype=np.int64))
    x, y = rows[:, :-1].to(torch.uint8).reshape(-1, 1, 8, 8), rows[:, -1].clone()
    tests = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        tests[torch.nonzero(y == label).squeeze(1)[2::5]] = True
    return Contents(TensorExamples(x[~tests], y[~tests]), TensorExamples(x[tests], y[tests]))


# Synthetic(α, β) of the FedProx paper (Li et al., 2020): logistic models and inputs that differ by client


SYNTHETIC_FEATURES = 60
SYNTHETIC_CLASSES = 10
LARGEST = 1000
"""The most examples a client has. FedProx's lognormal sizes have no end, and one client in a thousand
would hold tens of thousands of examples; one client in thirteen is cut by this."""
TEST_CLIENTS = 100
"""Number of clients whose held-out examples form the test set: the first ones, which are as good as
any, since a client's number says nothing about it."""


@dataclass(frozen=True)
class SyntheticClients:
    """Client k draws its model around u_k ~ N(0, α) and its inputs around B_k ~ N(0, β).

        W_k, b_k ~ N(u_k, 1)     v_k ~ N(B_k, 1)     x ~ N(v_k, Σ), Σ_jj = j^(−1.2)
        y = argmax softmax(W_k x + b_k)

    α and β are standard deviations, as in the authors' own generator (the paper does not say).
    """

    count: int
    alpha: float
    beta: float
    seed: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int, /) -> TensorExamples:
        """The training examples of a client: nine in ten, the first ones."""
        every, size = self._every_example(client), self.size(client)
        return TensorExamples(every.x[:size], every.y[:size])

    def size(self, client: int) -> int:
        drawn = self._drawn(client)
        return drawn - drawn // 10

    def held_out(self, client: int) -> TensorExamples:
        """The tenth of a client's examples that it never trains on."""
        every, size = self._every_example(client), self.size(client)
        return TensorExamples(every.x[size:], every.y[size:])

    def _drawn(self, client: int) -> int:
        if not 0 <= client < self.count:
            raise IndexError(f"client {client} of {self.count}")
        rng = randomness.numpy_generator(self.seed, "synthetic size", client)
        return int(min(rng.lognormal(4, 2) + 50, LARGEST))

    def _every_example(self, client: int) -> TensorExamples:
        size = self._drawn(client)
        rng = randomness.numpy_generator(self.seed, "synthetic", client)
        u = rng.normal(0, self.alpha)
        weight = rng.normal(u, 1, (SYNTHETIC_CLASSES, SYNTHETIC_FEATURES))
        bias = rng.normal(u, 1, SYNTHETIC_CLASSES)
        v = rng.normal(rng.normal(0, self.beta), 1, SYNTHETIC_FEATURES)
        deviation = np.arange(1, SYNTHETIC_FEATURES + 1) ** -0.6
        x = v + deviation * rng.standard_normal((size, SYNTHETIC_FEATURES))
        y = (x @ weight.T + bias).argmax(axis=1)
        return TensorExamples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))


def federate_synthetic(clients: int, alpha: float, beta: float, seed: int) -> FederatedData:
    """A synthetic federation with its test set: the held-out examples of the first hundred clients."""
    if clients < 1:
        raise InputError(f"data.clients = {clients}: must be at least 1")
    made = SyntheticClients(clients, alpha, beta, seed)
    held_out = [made.held_out(client) for client in range(min(clients, TEST_CLIENTS))]
    test = TensorExamples(torch.cat([part.x for part in held_out]), torch.cat([part.y for part in held_out]))
    return FederatedData("synthetic", made, test, PlainPipeline(), SYNTHETIC_CLASSES, (SYNTHETIC_FEATURES,))
