"""STEM and FedGLOMO: rounds by hand in float64, what they are equal to, and the mistakes that would show."""

import pytest
import torch
from torch import Tensor

from fedacg import methods
from fedacg.errors import InputError
from fedacg.methods.parts import Start
from fedacg.methods.storm import Storm
from support.quadratics import client, states

TWO = [client((8, 0)), client((0, 16))]
MANY = [client((1, 0), (3, 1), (2, 5)), client((0, 2), (4, 4)), client((-1, 4), (2, 2), (0, 0), (7, 1))]


def exact(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == list(expected)


def test_stem_over_two_rounds() -> None:
    # a = ½, K = 2; η = ½ in round 1 and ¼ in round 2; g_i(w) = w − c_i.
    # Round 1, φ = 0, no d yet:
    #   client 0: d_1 = (−8, 0), w_1 = (4, 0);  d_2 = (−4, 0) + ½((−8, 0) − (−8, 0)) = (−4, 0), w_2 = (6, 0)
    #   client 1: d_2 = (0, −8), w_2 = (0, 12);   θ = (3, 6), d = (−2, −4)
    # Round 2, w_{−1} = φ + ½d = (2, 4):
    #   client 0: d_1 = (−5, 6) + ½((−2, −4) − (−6, 4)) = (−3, 2), w_1 = (3.75, 5.5)
    #             d_2 = (−4.25, 5.5) + ½((−3, 2) − (−5, 6)) = (−3.25, 3.5), w_2 = (4.5625, 4.625)
    #   client 1: d_1 = (3, −10) + ½((−2, −4) − (2, −12)) = (1, −6), w_1 = (2.75, 7.5)
    #             d_2 = (2.75, −8.5) + ½((1, −6) − (3, −10)) = (1.75, −6.5), w_2 = (2.3125, 9.125)
    #   θ = (3.4375, 6.875), d = (−0.75, −1.5); the paper's x̄ − ηd̄ = (3.25, 6.5) + ¼(0.75, 1.5) is the same.
    first, second = states(TWO, "stem", {"a": 0.5}, rounds=2, steps=2, lr=0.5, lr_decay=0.5)
    exact(first["theta"], 3, 6)
    exact(first["d"], -2, -4)
    exact(first["lr"], 0.5)
    exact(second["theta"], 3.4375, 6.875)
    exact(second["d"], -0.75, -1.5)
    exact(second["lr"], 0.25)


def test_fedglomo_over_two_rounds() -> None:
    # β = ½, one step; η = ½ in round 1 and ¼ in round 2; mean c = (4, 8), and one step gives A = η(θ − c).
    # Round 1: Ā = ½(0 − (4, 8)) = (−2, −4) = u, θ = (2, 4).
    # Round 2: Ā = ¼((2, 4) − (4, 8)) = (−½, −1), Ā' = ¼(0 − (4, 8)) = (−1, −2)
    #          u = ½(−½, −1) + ½((−2, −4) + (½, 1)) = (−1, −2), θ = (3, 6)
    first, second = states(TWO, "fedglomo", {"beta": 0.5}, rounds=2, lr=0.5, lr_decay=0.5)
    exact(first["theta"], 2, 4)
    exact(first["u"], -2, -4)
    exact(second["u"], -1, -2)
    exact(second["theta"], 3, 6)
    exact(second["previous"], 2, 4)


@pytest.mark.parametrize(("method", "options"), [("stem", {"a": 1}), ("fedglomo", {"a": 1, "beta": 1})])
def test_neutral_settings_are_fedavg_to_the_bit(method: str, options: dict[str, float]) -> None:
    settings = {
        "rounds": 4,
        "batch": 1,
        "epochs": 2,
        "lr": 0.1,
        "lr_decay": 0.9,
        "clip": 2.0,
        "weight_decay": 0.01,
    }
    run, plain = (
        list(states(MANY, name, given, cohorts=[[0, 1], [2], [1, 2], [0]], **settings))[-1]["theta"]
        for name, given in ((method, options), ("fedavg", {}))
    )
    assert torch.equal(run, plain)


@pytest.mark.parametrize("method", ["stem", "fedglomo"])
def test_the_first_step_of_the_first_round_is_fedavgs_and_not_a_fraction_of_it(method: str) -> None:
    (run,), (plain,) = (states(MANY, name, lr=0.5, batch=2, steps=1) for name in (method, "fedavg"))
    assert torch.equal(run["theta"], plain["theta"])
    assert bool(plain["theta"].any())


class Noisy:
    """g(w; B) = w + noise of the batch."""

    def __init__(self) -> None:
        self.noise = torch.zeros(2, dtype=torch.float64)

    def __call__(self, at: Tensor | None = None) -> Tensor:
        assert at is not None
        return at + self.noise

    def onto(self, start: Start, at: Tensor | None = None, *, times: float = 1.0) -> Tensor:
        if not isinstance(start, Tensor):
            start(written := torch.empty_like(self.noise))
            start = written
        return start + times * self(at)

    def of(self, loss: object) -> Tensor:
        raise AssertionError


class OnItsOwnBatch(Storm):
    """The mistake: the gradient at the last point is the one of the last batch, as it was computed then."""

    def direction(self, gradient: Noisy, w: Tensor) -> Tensor:
        g = gradient(w).clone()
        if self._v is None:
            self._v, self._previous = g.clone(), g.clone()
            return g
        v = g + (1 - self._a) * (self._v - self._previous)
        self._v, self._previous = v.clone(), g
        return v


def errors(storm: Storm, a: float) -> list[Tensor]:
    """How far the estimate's error is from e_k = (1 − a)e_{k−1} + a·noise_k, step by step."""
    source, gradient = torch.Generator().manual_seed(0), Noisy()
    w, error, found = torch.ones(2, dtype=torch.float64), None, []
    for _ in range(6):
        gradient.noise = torch.randn(2, generator=source, dtype=torch.float64)
        v = storm.direction(gradient, w)
        error = gradient.noise if error is None else (1 - a) * error + a * gradient.noise
        found.append(v - w - error)
        w = w - 0.3 * v
    return found


def test_storms_noise_cancels_because_both_gradients_are_of_one_batch() -> None:
    assert all(each.abs().max() < 1e-12 for each in errors(Storm(0.2), 0.2))
    assert errors(OnItsOwnBatch(0.2), 0.2)[-1].abs().max() > 0.1


def test_fedglomos_two_trajectories_share_their_batches() -> None:
    # With a = 1 and one example a step, A − A' = (1 − (1 − η)^K)(θ_1 − θ_0) without any noise. β = 1 has u = Ā.
    settings = {"rounds": 2, "batch": 1, "steps": 3, "lr": 0.25}
    (first, second), (_, average) = (
        list(states(MANY, "fedglomo", {"a": 1, "beta": beta}, **settings)) for beta in (0.25, 1)
    )
    contraction = 1 - 0.75**3
    expected = 0.25 * average["u"] + 0.75 * (first["u"] + contraction * (first["theta"] - 0))
    torch.testing.assert_close(second["u"], expected, rtol=1e-12, atol=1e-12)


def test_what_does_not_go_together_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"\+acg cannot be added: its d belongs to the point before"):
        methods.build("stem+acg")
    with pytest.raises(InputError, match=r"\+acg cannot be added: u is its momentum already"):
        methods.build("fedglomo+acg")
    with pytest.raises(InputError, match=r"\+prox cannot be added: its steps are compared"):
        methods.build("fedglomo+prox")
    with pytest.raises(InputError, match=r"its two trajectories take plain steps; needs local.optimiser = 'sgd'"):
        next(states(TWO, "fedglomo", momentum=0.9))
