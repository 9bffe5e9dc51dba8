"""Your own model, data and loss: one smooth curve, of which every client sees a different piece.

The labels are floating point, so there is no accuracy; the test loss shows the progress.
"""

import torch
from torch import Tensor, nn

import fedacg


class Curve(nn.Module):
    """A small network from one number to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over a batch of a loss that outliers do not dominate."""
    return nn.functional.huber_loss(outputs, labels)


def measure(x: Tensor) -> tuple[Tensor, Tensor]:
    """A pair (x, y): the curve at x, with some noise."""
    return x, torch.sin(2 * x) + 0.05 * torch.randn_like(x)


torch.manual_seed(0)
clients = [measure(-2 + 0.2 * i + 0.2 * torch.rand(40, 1)) for i in range(20)]
test = measure(torch.linspace(-2, 2, 200).unsqueeze(1))
net = Curve()

for method in ("fedavg", "fedacg"):
    result = fedacg.run(
        model=net,
        clients=clients,
        test=test,
        loss=loss,
        method=method,
        rounds=100,
        cohort_size=4,
        local_epochs=2,
        batch_size=20,
    )
    losses = [metrics.test_loss for metrics in result.history]
    print(f"{method}  test loss {losses[0]:.3f} after round 1, {losses[-1]:.3f} after round {len(losses)}")

with torch.no_grad():
    print(f"the curve at 1: {result.model(torch.ones(1, 1)).item():.2f}, sin(2) is {torch.tensor(2.0).sin():.2f}")
