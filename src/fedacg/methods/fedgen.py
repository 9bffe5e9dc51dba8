"""FedGen: clients also learn from generated features; the server trains the generator against their heads.

    server   broadcast φ = θ and the generator G
    client   minimise ℓ_i(w) + α_t CE(head(G(y', ε')), y') + β_t KL(softmax(head(G(y, ε))) ‖ softmax(z))
             y the labels of the batch, y' as many, drawn from the classes that it has; the first softmax has
             no gradient
             sends Δ_i and n_i1 … n_iC, how many examples of each class it has
    server   θ ← θ + η_g Σ ω_i Δ_i, and J steps of Adam on
             mean_y Σ_i a_iy CE(head_i(G(y, ε)), y) + exp(−mean_{a,b} d²(ε_a, ε_b) d¹(G_a, G_b))
             y ∝ Σ_i n_iy,  a_iy = n_iy/Σ_j n_jy,  head_i that of φ + Δ_i

α_t = α·δ^{t−1}, β_t likewise; ε is standard normal with 32 entries. G makes features, what the head takes: a layer
of 64 ReLUs on (one-hot y, ε) and a linear one. d² and d¹ are mean squared and mean absolute differences; the term
keeps G from making one feature of every class. Adam starts anew in every round. Before the first replies there is
no generator, zeros are sent for it, and the round is FedAvg's. With α = β = 0: FedAvg.

The defaults are its authors', who take η = 0.01. What counts is αη: at η = 0.1 take α = β = 1. The server must see
what each client sends, and from the label counts it learns more about a client than with most methods.

Zhu, Hong, Zhou, "Data-free knowledge distillation for heterogeneous federated learning", ICML 2021,
https://arxiv.org/abs/2105.10056

    fedacg run quickstart --method fedgen:alpha=1:beta=1
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, linear, log_softmax, one_hot, relu

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.parts import Correction, Empirical, Forward, Loss
from fedacg.methods.reply import Reply
from fedacg.methods.rules import Around, Average, Network, ServerRule, State, Totals
from fedacg.methods.visit import Assignment, Departure
from fedacg.models.networks import StagedModel

NOISE, HIDDEN, BATCH = 32, 64, 64
"""Entries of ε, hidden units of G, and examples of one of its training steps."""
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Generator:
    """The generator G; its parameters are one vector."""

    classes: int
    width: int
    """d, the number of features it makes."""

    @classmethod
    def of(cls, vector: Tensor, classes: int) -> "Generator":
        """The generator that a vector of parameters belongs to."""
        return cls(classes, (len(vector) - HIDDEN * (classes + NOISE + 1)) // (HIDDEN + 1))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (HIDDEN, self.classes + NOISE), (HIDDEN,), (self.width, HIDDEN), (self.width,)

    @property
    def size(self) -> int:
        return sum(self._lengths)

    @property
    def _lengths(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def start(self, random: torch.Generator, like: Tensor) -> Tensor:
        """Parameters before any training: uniform in ±1/√(number of inputs)."""
        drawn = torch.rand(self.size, generator=random, dtype=torch.float64) * 2 - 1
        bounds = [self.classes + NOISE] * 2 + [HIDDEN] * 2
        parts = torch.split(drawn, self._lengths)
        return torch.cat([part / inputs**0.5 for part, inputs in zip(parts, bounds, strict=True)]).to(like)

    def __call__(self, vector: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """The features of these labels, a row each."""
        parts = torch.split(vector, self._lengths)
        first, bias, second, shift = (part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))
        inputs = torch.cat([one_hot(y, self.classes).to(noise.dtype), noise], dim=1)
        return linear(relu(linear(inputs, first, bias)), second, shift)


def draw_noise(rows: int, random: torch.Generator, like: Tensor) -> Tensor:
    """ε for this many examples."""
    return torch.randn(rows, NOISE, generator=random, dtype=like.dtype).to(like.device)


class GeneratedFeatures(Loss, Correction):
    """α_t CE(head(G(y', ε')), y') + β_t KL(head(G(y, ε)) ‖ z); adds no term to g, but sees that a step is done."""

    needs = frozenset({"stages"})

    def __init__(self, alpha: float, beta: float, decay: float) -> None:
        self.alpha, self.beta, self.decay = alpha, beta, decay

    def begin(self, assignment: Assignment) -> None:
        fade = self.decay ** (assignment.round.number - 1)
        self._alpha, self._beta = self.alpha * fade, self.beta * fade
        self._counts, self._vector = assignment.label_counts(), assignment.broadcast["generator"]
        self._own = self._counts.cpu().nonzero().flatten()
        self._generator = Generator.of(self._vector, len(self._counts))
        self._idle = not (bool(self._vector.any()) and (self._alpha or self._beta))
        (random,) = assignment.randoms
        self._random = random("generated features")
        self._features: tuple[Tensor, Tensor, Tensor] | None = None

    def __call__(self, forward: Forward) -> Tensor:
        if self._idle:
            return forward.logits.new_zeros(())
        if self._features is None:  # the same for all gradients of a step
            self._features = self._draw(forward.y)
        of_batch, of_drawn, drawn = self._features
        assert isinstance(forward.module, StagedModel)
        head = forward.module.head
        with torch.no_grad():
            teacher = log_softmax(head(of_batch), dim=1)
        divergence = kl_div(log_softmax(forward.logits, dim=1), teacher, reduction="batchmean", log_target=True)
        return self._alpha * cross_entropy(head(of_drawn), drawn) + self._beta * divergence

    def _draw(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """G(y, ε), G(y', ε') and y'."""
        places = torch.randint(len(self._own), (len(y),), generator=self._random)
        drawn = self._own[places].to(y.device)
        noise = draw_noise(2 * len(y), self._random, self._vector)
        with torch.no_grad():
            features = self._generator(self._vector, torch.cat([y, drawn]), noise)
        return features[: len(y)], features[len(y) :], drawn

    def correct(self, g: Tensor, w: Tensor) -> None:
        self._features = None

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.attach("labels", self._counts.to(delta.dtype))


class TrainedGenerator(Around):
    """J steps of Adam on G against the heads of the clients that answered; θ is the inner rule's"""

    needs = frozenset({"single updates"})

    def __init__(self, inner: ServerRule, steps: int, lr: float) -> None:
        super().__init__(inner)
        self.steps, self.lr = steps, lr

    def extras(self, network: Network, like: Tensor) -> State:
        generator = Generator(network.classes, network.width)
        network.head(like, like.new_zeros(1, network.width))  # refused here and not after a round's work
        return {**super().extras(network, like), "generator": like.new_zeros(generator.size)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "generator": state["generator"]}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        network, vector = totals.network, state["generator"]
        generator = Generator.of(vector, network.classes)
        if not vector.any():
            vector = generator.start(round.random("generator start"), vector)
        phi = super().broadcast(state, round)["phi"]
        moved = super().step(state, totals, round)
        return {**moved, "generator": self._train(generator, vector, phi, totals.replies, network, round)}

    def _train(
        self,
        generator: Generator,
        vector: Tensor,
        phi: Tensor,
        replies: Sequence[Reply],
        network: Network,
        round: Round,
    ) -> Tensor:
        labels = torch.stack([reply.extras["labels"] for reply in replies])
        shares = labels / labels.sum(dim=0).clamp(min=1)
        heads = [phi + reply.delta for reply in replies]
        random = round.random("generator")
        vector = vector.clone().requires_grad_()
        first, second = torch.zeros_like(vector), torch.zeros_like(vector)
        for step in range(1, self.steps + 1):
            y = torch.multinomial(labels.sum(dim=0).double(), BATCH, replacement=True, generator=random)
            noise = draw_noise(BATCH, random, vector)
            with torch.enable_grad():
                features = generator(vector, y, noise)
                logits = [network.head(head, features) for head in heads]
                (g,) = torch.autograd.grad(taught(logits, y, shares) + distinct(noise, features), vector)
            first.lerp_(g, 1 - _BETA1)
            second.mul_(_BETA2).addcmul_(g, g, value=1 - _BETA2)
            size = (second / (1 - _BETA2**step)).sqrt_().add_(_EPSILON)
            with torch.no_grad():
                vector.addcdiv_(first, size, value=-self.lr / (1 - _BETA1**step))
        return vector.detach()


def taught(logits: Sequence[Tensor], y: Tensor, shares: Tensor) -> Tensor:
    """mean_y Σ_i a_iy CE(z_i, y), where z_i are what client i's head makes of the features"""
    losses = [cross_entropy(its, y, reduction="none") for its in logits]
    return (shares[:, y] * torch.stack(losses)).sum(dim=0).mean()


def distinct(noise: Tensor, features: Tensor) -> Tensor:
    """exp(−mean_{a,b} d²(ε_a, ε_b) d¹(G_a, G_b)): small where other noise makes other features."""
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(dim=2)
    differ = (features.unsqueeze(0) - features.unsqueeze(1)).abs().mean(dim=2)
    return torch.exp(-(apart * differ).mean())


def fedgen(alpha: float, beta: float, decay: float, steps: float, generator_lr: float, server_lr: float) -> Method:
    return Method(
        TrainedGenerator(Average(server_lr), int(steps), generator_lr),
        objective=(Empirical(), GeneratedFeatures(alpha, beta, decay)),
    )
