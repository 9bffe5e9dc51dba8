"""The model and the data: scikit-learn's digits, of which every node has only a few kinds."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def train_set(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """One of `parts` partitions. The examples are split in the order of their labels."""
    x, y = digits()
    kept = torch.arange(len(y)) % 5 != 0
    order = y[kept].argsort(stable=True).tensor_split(partitions)[partition]
    return x[kept][order], y[kept][order]


def test_set() -> tuple[Tensor, Tensor]:
    """Every fifth example; no node has it."""
    x, y = digits()
    return x[::5], y[::5]
