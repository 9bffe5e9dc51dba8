"""Synthetic(α, β) of the FedProx paper (Li et al., 2020): logistic models and inputs that differ by client.

A client is made from (seed, client number) when it takes part, so a million of them cost nothing.
Data sets from files are in other modules.
"""

from dataclasses import dataclass

import numpy as np
import torch

from fedacg.core import randomness
from fedacg.data.examples import FederatedData, TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError

FEATURES = 60
CLASSES = 10
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
        weight = rng.normal(u, 1, (CLASSES, FEATURES))
        bias = rng.normal(u, 1, CLASSES)
        v = rng.normal(rng.normal(0, self.beta), 1, FEATURES)
        deviation = np.arange(1, FEATURES + 1) ** -0.6
        x = v + deviation * rng.standard_normal((size, FEATURES))
        y = (x @ weight.T + bias).argmax(axis=1)
        return TensorExamples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))


def federate(clients: int, alpha: float, beta: float, seed: int) -> FederatedData:
    """A synthetic federation with its test set: the held-out examples of the first hundred clients."""
    if clients < 1:
        raise InputError(f"data.clients = {clients}: must be at least 1")
    made = SyntheticClients(clients, alpha, beta, seed)
    held_out = [made.held_out(client) for client in range(min(clients, TEST_CLIENTS))]
    test = TensorExamples(torch.cat([part.x for part in held_out]), torch.cat([part.y for part in held_out]))
    return FederatedData("synthetic", made, test, PlainPipeline(), CLASSES, (FEATURES,))
