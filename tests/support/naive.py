"""Losses and rounds of methods once more, independently: sample by sample, class by class, as the equations stand.

Nothing here is stable, fast or shared with the package; autograd differentiates the plain formulas. A model is a
vector that `TanhNet` of staged.py would have: two stages of tanh(Wx + b), 3 → 4 → 5, and a head Wx + b, 5 → 4.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SHAPES = ((4, 3), (5, 4), (4, 5))
CLASSES = 4


def layers(vector: Tensor) -> list[tuple[Tensor, Tensor]]:
    found, start = [], 0
    for rows, columns in SHAPES:
        middle, end = start + rows * columns, start + rows * columns + rows
        found.append((vector[start:middle].view(rows, columns), vector[middle:end]))
        start = end
    return found


def outputs(vector: Tensor, x: Tensor) -> list[Tensor]:
    """What each stage puts out for one example."""
    found = []
    for weight, bias in layers(vector)[:-1]:
        x = torch.tanh(weight @ x + bias)
        found.append(x)
    return found


def logits(vector: Tensor, x: Tensor) -> Tensor:
    weight, bias = layers(vector)[-1]
    return weight @ outputs(vector, x)[-1] + bias


def probabilities(z: Sequence[Tensor] | Tensor) -> list[Tensor]:
    powers = [torch.exp(value) for value in z]
    return [power / sum(powers) for power in powers]


def divergence(p: list[Tensor], q: list[Tensor]) -> Tensor:
    """KL(p ‖ q)"""
    return sum((a * torch.log(a / b) for a, b in zip(p, q, strict=True)), torch.zeros(()))


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()


def cross_entropy(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return mean([-torch.log(probabilities(logits(w, one))[label]) for one, label in zip(x, y, strict=True)])


Client = Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor], Tensor]
"""From w, φ, the w_i that the client kept, if any, and its batch to the loss."""


def moon(mu: float, temperature: float) -> Client:
    def cosine(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum() / torch.sqrt((a * a).sum() * (b * b).sum())

    def loss(w: Tensor, phi: Tensor, kept: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
        terms = []
        for one in x:
            z = outputs(w, one)[-1]
            near, far = (
                torch.exp(cosine(z, outputs(other, one)[-1].detach()) / temperature)
                for other in (phi, phi if kept is None else kept)
            )
            terms.append(-torch.log(near / (near + far)))
        return cross_entropy(w, x, y) + mu * mean(terms)

    return loss


def fedmlb(lam1: float, lam2: float, temperature: float) -> Client:
    def branch(phi: Tensor, output: Tensor, first: int) -> Tensor:
        frozen = [(weight.detach(), bias.detach()) for weight, bias in layers(phi)]
        for weight, bias in frozen[first:-1]:
            output = torch.tanh(weight @ output + bias)
        return frozen[-1][0] @ output + frozen[-1][1]

    def loss(w: Tensor, phi: Tensor, kept: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
        hybrid, apart = [], []
        for one, label in zip(x, y, strict=True):
            main = probabilities(logits(w, one) / temperature)
            for stage, output in enumerate(outputs(w, one)):
                z = branch(phi, output, stage + 1)
                hybrid.append(-torch.log(probabilities(z)[label]))
                apart.append(divergence(probabilities(z / temperature), main))
        return cross_entropy(w, x, y) + lam1 * mean(hybrid) + lam2 * mean(apart)

    return loss


def fedlc(tau: float, counts: Sequence[int] | None = None) -> Client:
    """The counts are those of the batch, which is all a client has in `federation`, unless they are given."""

    def loss(w: Tensor, phi: Tensor, kept: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
        found = counts or [int((y == label).sum()) for label in range(CLASSES)]
        seen = [label for label in range(CLASSES) if found[label] > 0]
        terms = []
        for one, label in zip(x, y, strict=True):
            z = logits(w, one)
            shifted = [z[c] - tau / found[c] ** 0.25 for c in seen]
            terms.append(-torch.log(probabilities(shifted)[seen.index(int(label))]))
        return mean(terms)

    return loss


def fedntd(beta: float, temperature: float) -> Client:
    def loss(w: Tensor, phi: Tensor, kept: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
        terms = []
        for one, label in zip(x, y, strict=True):
            others = [c for c in range(CLASSES) if c != label]
            teacher, student = (logits(vector, one) / temperature for vector in (phi.detach(), w))
            p, q = (probabilities([z[c] for c in others]) for z in (teacher, student))
            terms.append(divergence(p, q))
        return (1 - beta) * cross_entropy(w, x, y) + beta * mean(terms)

    return loss


def feddecorr(beta: float) -> Client:
    def loss(w: Tensor, phi: Tensor, kept: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
        plain = cross_entropy(w, x, y)
        size = len(y)
        if size == 1:
            return plain
        columns = torch.stack([outputs(w, one)[-1] for one in x]).T
        standard = []
        for column in columns:
            centred = column - sum(column) / size
            variance = sum(centred * centred) / (size - 1)
            standard.append(centred / torch.sqrt(variance + 1e-8))
        width = len(standard)
        squares = [sum(standard[a] * standard[b]) ** 2 for a in range(width) for b in range(width) if a != b]
        return plain + beta * mean(squares) / size

    return loss


def gradient(
    client: Client, w: Tensor, phi: Tensor, kept: Tensor | None, x: Tensor, y: Tensor
) -> tuple[float, Tensor]:
    """The value of a loss and its gradient at w."""
    w = w.clone().requires_grad_()
    value = client(w, phi, kept, x, y)
    return float(value.detach()), torch.autograd.grad(value, w)[0]


def federation(
    client: Client,
    theta: Tensor,
    clients: Sequence[tuple[Tensor, Tensor]],
    cohorts: Sequence[Sequence[int]],
    *,
    lr: float,
    steps: int,
    lam: float = 0.0,
) -> list[Tensor]:
    """θ after every round, all of a client's examples in every step; λ > 0 is the lookahead of `+acg`."""
    m = torch.zeros_like(theta)
    kept: dict[int, Tensor] = {}
    thetas = []
    for cohort in cohorts:
        phi = theta + lam * m
        total = sum(len(clients[i][1]) for i in cohort)
        delta = torch.zeros_like(theta)
        for i in cohort:
            w = phi.clone()
            for _ in range(steps):
                w = w - lr * gradient(client, w, phi, kept.get(i), *clients[i])[1]
            kept[i] = w
            delta = delta + len(clients[i][1]) / total * (w - phi)
        m = lam * m + delta
        theta = theta + m
        thetas.append(theta)
    return thetas
