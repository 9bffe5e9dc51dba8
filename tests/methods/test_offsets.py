"""Corrections that g starts from: what they add, where they must not, and mistakes that are seen."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from fedacg.config.sections import LocalSettings
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.methods.feddc import DriftCorrection
from fedacg.methods.feddyn import DynamicRegulariser
from fedacg.methods.method import Method
from fedacg.methods.parts import Correction, Empirical, Gradient, LocalStep, Pull, Shift
from fedacg.methods.rules import Average
from fedacg.methods.sam import Ascent
from fedacg.methods.visit import Assignment
from fedacg.simulation import local
from support.quadratics import client, states
from support.tasks import task
from support.visits import visit


def near(actual: Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-12)


class Constant(Shift):
    def __init__(self, *shift: float) -> None:
        self.shift = torch.tensor(shift, dtype=torch.float64)


class Unit(Correction):
    """g ← g/‖g‖, which depends on what is in g."""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.div_(torch.linalg.vector_norm(g))


def after_one_step(*corrections: Correction, step: LocalStep | None = None, **settings: float) -> Tensor:
    """θ of a client with its centre at (30, 40) after one step at rate 1 from 0, where g = −(30, 40)."""
    method = Method(Average(), objective=(Empirical(), *corrections), step=step or LocalStep())
    (state,) = states([client((30, 40))], method, lr=1.0, **settings)
    return state["theta"]


def test_corrections_act_in_the_order_of_the_objective() -> None:
    near(after_one_step(Constant(24, 32)), 6, 8)
    near(after_one_step(Constant(24, 32), Unit()), 0.6, 0.8)
    near(after_one_step(Unit(), Constant(24, 32)), 0.6 - 24, 0.8 - 32)
    near(after_one_step(Constant(20, 30), Constant(4, 2)), 6, 8)


def test_the_clip_acts_on_the_gradient_with_its_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    # −(30, 40) + (24, 32) = −(6, 8) has length 10, and a clip to 20 leaves it alone; −(30, 40) it would not.
    near(after_one_step(Constant(24, 32), clip=20), 6, 8)
    real = local.correct

    def clip_first(g: Tensor, w: Tensor, corrections: Sequence[Correction], settings: LocalSettings) -> None:
        """The mistake: what g started from is taken out before the clip and added again after it."""
        g.sub_(torch.tensor([24.0, 32.0], dtype=g.dtype))
        real(g, w, corrections, settings)
        g.add_(torch.tensor([24.0, 32.0], dtype=g.dtype))

    monkeypatch.setattr(local, "correct", clip_first)
    assert not torch.allclose(after_one_step(Constant(24, 32), clip=20), torch.tensor([6.0, 8.0]).double())


class CorrectedAscent(Ascent):
    """The mistake: the ascent follows the gradient with its corrections."""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        return gradient.last(self.ascended(gradient.last(), w))


class OwnAscent(LocalStep):
    """A step that knows nothing of a last gradient."""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        g = gradient()
        return gradient(w + 5 * g / torch.linalg.vector_norm(g))


def test_an_ascent_follows_the_plain_gradient_and_only_the_descent_is_corrected() -> None:
    # ε = 5·(−0.6, −0.8), so G = (−33, −44), and the shift makes it (−33, 0); along the shifted gradient (−30, 4)
    # ε would be another.
    near(after_one_step(Constant(0, 44), step=Ascent(5.0)), 33, 0)
    near(after_one_step(Constant(0, 44), step=OwnAscent()), 33, 0)
    wrong = after_one_step(Constant(0, 44), step=CorrectedAscent(5.0))
    assert not torch.allclose(wrong, torch.tensor([33.0, 0.0], dtype=torch.float64), atol=0.1)


class Again(LocalStep):
    """Asks for a plain gradient after the last one, and steps against that."""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        gradient.last()
        return gradient()


def test_a_plain_gradient_is_plain_even_after_the_last() -> None:
    near(after_one_step(Constant(24, 32), step=Again()), 6, 8)


class Backwards(Constant):
    """A subclass with a `correct` of its own."""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.sub_(self.shift)


def test_a_correction_that_is_overridden_is_the_one_that_acts() -> None:
    near(after_one_step(Backwards(-24, -32)), 6, 8)


def test_a_parameter_outside_of_the_loss_is_corrected_too() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.used(x)
            return output

    flat = FlatModel(Unused())
    before, shift = flat.w.clone(), Constant()
    shift.shift = torch.arange(12.0)
    examples = TensorExamples(torch.randn(4, 2), torch.arange(4) % 2)
    method, work = Method(Average(), objective=(Empirical(), shift)), task(1, 0, 1)
    local.train(flat, examples, PlainPipeline(), method, LocalSettings(), [0.5], work.random)
    assert torch.equal(flat.w[6:], before[6:] - 0.5 * shift.shift[6:])


def begun(part: Pull, kept: dict[str, Tensor], broadcast: dict[str, Tensor]) -> tuple[Assignment, Tensor]:
    """An assignment that the part has begun, and a point near φ."""
    assignment = visit(clone(nn.Linear(40, 25)).double(), broadcast, kept=kept)
    part.begin(assignment)
    return assignment, assignment.phi + 1e-3 * torch.randn_like(assignment.phi)


@pytest.mark.parametrize("alpha", [1e-12, 1e-3, 0.1, 10.0])
def test_a_dual_in_the_anchor_is_the_dual_added_whatever_the_strength(alpha: float) -> None:
    dual, mean, drift = torch.randn(3, 1025, dtype=torch.float64)
    dynamic = DynamicRegulariser(alpha)
    assignment, w = begun(dynamic, {"g": dual}, {})
    expected = alpha * (w - assignment.phi) - dual
    torch.testing.assert_close(dynamic.offset(w, torch.empty_like(w)), expected, rtol=0, atol=1e-14)
    drifting = DriftCorrection(alpha)
    assignment, w = begun(drifting, {"g": dual, "h": drift}, {"g": mean})
    expected = alpha * (w - assignment.phi + drift) + mean - dual
    torch.testing.assert_close(drifting.offset(w, torch.empty_like(w)), expected, rtol=1e-13, atol=1e-14)


def test_feddc_without_a_pull_has_its_dual_alone() -> None:
    dual, mean, drift = torch.randn(3, 1025, dtype=torch.float64)
    part = DriftCorrection(0.0)
    _, w = begun(part, {"g": dual, "h": drift}, {"g": mean})
    assert torch.equal(part.offset(w, torch.empty_like(w)), mean - dual)


def test_without_a_dual_the_first_step_is_that_without_a_correction() -> None:
    for part, broadcast in ((DynamicRegulariser(0.3), {}), (DriftCorrection(0.3), {"g": torch.zeros(1025)})):
        assignment, w = begun(part, {}, {name: zero.double() for name, zero in broadcast.items()})
        assert not part.offset(assignment.phi.clone(), torch.empty_like(w)).any()
