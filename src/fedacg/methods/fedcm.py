"""FedCM: every local step is mixed with the direction the server moved in last.

    server   broadcast φ = θ and D
    client   w ← w − η(αg + (1−α)D)
    server   D ← −Σ ω_i Δ_i/(ηK_i);  θ ← θ + η_g Σ ω_i Δ_i

η and K_i are those of the round and the client that made Δ_i. D starts at zero.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.objective import Assignment, Correction
from fedacg.methods.rules import Reply, ServerRule, State


class ClientMomentum(Correction):
    """g ← αg + (1−α)D"""

    fuses = True

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def begin(self, assignment: Assignment) -> None:
        self._direction = assignment.broadcast["direction"]

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.mul_(self.alpha).add_(self._direction, alpha=1 - self.alpha)


class DirectionServer(ServerRule):
    """D ← −Σ ω_i Δ_i/(ηK_i);  θ ← θ + η_g Σ ω_i Δ_i"""

    def __init__(self, server_lr: float) -> None:
        self.server_lr = server_lr

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "direction": torch.zeros_like(theta)}

    def broadcast(self, state: State) -> dict[str, Tensor]:
        return {"phi": state["theta"], "direction": state["direction"]}

    def step(self, state: State, replies: Iterable[Reply], clients: int) -> State:
        delta, direction = torch.zeros_like(state["theta"]), torch.zeros_like(state["theta"])
        for reply in replies:
            delta.add_(reply.delta, alpha=reply.weight)
            direction.sub_(reply.delta, alpha=reply.weight / (reply.lr * reply.steps))
        return {"theta": torch.add(state["theta"], delta, alpha=self.server_lr), "direction": direction}


def fedcm(alpha: float, server_lr: float) -> Method:
    return Method(DirectionServer(server_lr), corrections=(ClientMomentum(alpha),), down=2)
