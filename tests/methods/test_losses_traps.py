"""Mistakes that published implementations of these losses have made, each with a test that would see it."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from fedacg.core.vector import FlatModel
from fedacg.methods.feddecorr import Decorrelation
from fedacg.methods.fedlc import Calibrated
from fedacg.methods.fedmlb import Branches
from fedacg.methods.fedntd import NotTrueDistillation
from fedacg.methods.moon import Contrastive
from fedacg.models import StagedModel
from fedacg.simulation import resident, worker
from fedacg.simulation.worker import FrozenCopies
from support.staged import asked, dealt, job, rounds, tanh_net


class Spy(FrozenCopies):
    """Frozen copies that remember what they were told to hold, and themselves."""

    loads: list[tuple[str, Tensor]]
    made: list["Spy"]

    def __init__(self, module: nn.Module, channels_last: bool, device: torch.device) -> None:
        super().__init__(module, channels_last, device)
        self.made.append(self)

    def load(self, name: str, vector: Tensor, buffers: Tensor) -> nn.Module:
        self.loads.append((name, vector.clone()))
        return super().load(name, vector, buffers)

    @property
    def copies(self) -> dict[str, FlatModel]:
        return self._copies


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> type[Spy]:
    Spy.loads, Spy.made = [], []
    monkeypatch.setattr(worker, "FrozenCopies", Spy)
    return Spy


def vector_of(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def moved(model: StagedModel, by: float, seed: int = 3) -> Tensor:
    vector = vector_of(model)
    return vector + by * torch.randn(
        len(vector), generator=torch.Generator().manual_seed(seed), dtype=vector.dtype
    )


BATCH = dealt([0, 1, 2, 3, 0, 2])[0]


class Given(nn.Module):
    """Logits that are the parameters themselves: the input is the number of the row."""

    def __init__(self, logits: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.z[x[:, 0].long()]


def rows(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float64).unsqueeze(1)


# FedLC


def test_fedlc_gives_an_absent_class_no_gradient_and_no_nan() -> None:
    model = Given([[1.0, 50.0, -2.0, 0.5], [0.0, -3.0, 4.0, 1.0]])
    value, gradient = asked(Calibrated(1.0), model, (rows(2), torch.tensor([0, 2])), counts=(3, 0, 2, 0))
    assert math.isfinite(value)
    table = gradient.view(2, 4)
    assert bool(table.isfinite().all())
    assert torch.equal(table[:, [1, 3]], torch.zeros(2, 2, dtype=torch.float64))
    assert bool((table[:, [0, 2]] != 0).all())


def test_fedlc_leaves_the_heads_rows_of_absent_classes_where_they_were() -> None:
    # Classes 1 and 3 are nowhere at client 0; the test data (client 1) have them.
    model = tanh_net()
    before = model.head.weight.detach().clone()  # type: ignore[union-attr, operator]
    clients = dealt([0, 2, 0, 0, 2], [1, 3])
    (state,) = rounds(job(model, clients[::-1], "fedlc", {}, steps=4), [[1]])
    after = state["theta"][-24:-4].view(4, 5)
    assert torch.equal(after[[1, 3]], before[[1, 3]])
    assert (after[[0, 2]] - before[[0, 2]]).abs().min() > 1e-4


def test_fedlc_has_the_true_class_in_the_denominator() -> None:
    # Then a client of a single class has nothing to learn, −log(e^z/e^z) = 0, and no loss is below zero.
    model = Given([[1.0, 5.0, -2.0, 0.5], [30.0, -3.0, 4.0, 1.0]])
    value, gradient = asked(Calibrated(1.0), model, (rows(2), torch.tensor([0, 0])), counts=(2, 0, 0, 0))
    assert value == 0
    assert not gradient.any()
    value, _ = asked(Calibrated(1.0), model, (rows(2)[1:], torch.tensor([0])), counts=(1, 1, 1, 1))
    assert 0 < value < 1e-9


def test_fedlc_is_stable_for_huge_logits() -> None:
    # Shifts: n = (16, 1, 0, 1), τ = 1 → (−½, −1, −∞, −1). Label 1 with z = (10⁴, 0): loss = 10⁴ − ½ + 1.
    model = Given([[1e4, 0.0, 1e4, -1e4], [-1e4, 1e4, 3e4, 0.0]])
    value, gradient = asked(Calibrated(1.0), model, (rows(2), torch.tensor([1, 1])), counts=(16, 1, 0, 1))
    assert value == pytest.approx((1e4 + 0.5 + 0) / 2, abs=1e-9)
    expected = torch.tensor([[0.5, -0.5, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(gradient.view(2, 4), expected, rtol=0, atol=1e-15)


def test_fedlc_masks_outputs_that_no_label_of_the_federation_names() -> None:
    # Four outputs, and labels from 0 to 2 with all clients and in the test.
    clients = dealt([0, 1, 2, 2], [0, 1])
    model = tanh_net()
    (state,) = rounds(job(model, clients, "fedlc", {}), [[0, 1]])
    bias = state["theta"][-4:]
    assert bias[3] == model.head.bias[3]  # type: ignore[union-attr, index]
    assert bool((bias[:3] != model.head.bias[:3]).all())  # type: ignore[union-attr, index]


# FedNTD


def test_fedntd_distils_nothing_from_the_true_classs_logit() -> None:
    # φ and w differ in the label's logit alone, so the shares of the other classes are the same.
    model = Given([[9.0, 1.0, -1.0, 2.0], [0.5, -7.0, 1.0, 0.0]])
    phi = torch.tensor([-4.0, 1.0, -1.0, 2.0, 0.5, 3.0, 1.0, 0.0], dtype=torch.float64)
    value, gradient = asked(NotTrueDistillation(1.0, 1.0), model, (rows(2), torch.tensor([0, 1])), phi=phi)
    assert value == pytest.approx(0, abs=1e-15)
    assert gradient.abs().max() < 1e-15
    phi[3] += 0.1  # and a little elsewhere is felt, though not at the label
    value, gradient = asked(NotTrueDistillation(1.0, 1.0), model, (rows(2), torch.tensor([0, 1])), phi=phi)
    assert value > 1e-4
    assert gradient[0] == gradient[5] == 0
    assert bool((gradient[1:4] != 0).all())


def test_fedntd_starts_at_the_broadcast_model_without_a_pull_and_feels_one_as_it_leaves() -> None:
    model, loss = tanh_net(), NotTrueDistillation(1.0, 1.0)
    value, gradient = asked(loss, model, BATCH)
    assert value == pytest.approx(0, abs=1e-15)
    assert gradient.abs().max() < 1e-15
    values = [asked(loss, model, BATCH, phi=moved(model, by))[0] for by in (0.1, 0.2, 0.4)]
    assert 1e-5 < values[0] < values[1] < values[2]


def test_fedntd_alone_moves_nobody() -> None:
    # With β = 1 there is only distillation, which is at its smallest where a client starts.
    model = tanh_net()
    (_, state) = rounds(job(model, dealt([0, 1, 2], [3, 3]), "fedntd", {"beta": 1.0}, steps=5), [[0, 1]] * 2)
    torch.testing.assert_close(state["theta"], vector_of(model), rtol=0, atol=1e-14)


# MOON


def test_moon_has_no_gradient_at_a_first_participation() -> None:
    model = tanh_net()
    value, gradient = asked(Contrastive(3.0, 0.5), model, BATCH, phi=moved(model, 0.5))
    assert value == pytest.approx(3 * math.log(2), abs=1e-14)
    assert gradient.abs().max() < 1e-15


def test_moon_compares_the_features_that_the_head_eats() -> None:
    # Other heads in φ and in what was kept change nothing, other stages do.
    model, loss = tanh_net(), Contrastive(3.0, 0.5)
    phi, kept = moved(model, 0.5), moved(model, 0.5, seed=4)
    state = {"w": kept, "buffers": torch.empty(0)}
    value, gradient = asked(loss, model, BATCH, phi=phi, kept=state)
    assert not gradient[-24:].any(), "the head is not in it"
    phi[-24:], kept[-24:] = 7.0, -2.0
    other, same = asked(loss, model, BATCH, phi=phi, kept=state)
    assert other == value
    assert torch.equal(gradient, same)
    for changed in (phi, kept):
        changed[20] += 1.0  # in the second stage
        assert abs(asked(loss, model, BATCH, phi=phi, kept=state)[0] - value) > 1e-4
        changed[20] -= 1.0


def test_moon_keeps_each_clients_own_last_vector(spy: type[Spy]) -> None:
    # Alone in its round, a client's w_i is the θ after it. Client 0 comes in rounds 1, 3, 4, client 1 in 2, 5.
    cohorts = [[0], [1], [0], [0], [1]]
    work = job(tanh_net(), dealt([0, 1, 2], [3, 3, 1]), "moon", {}, steps=2)
    thetas = [vector_of(work.module), *(state["theta"] for state in rounds(work, cohorts))]
    assert [name for name, _ in spy.loads] == ["phi"] * 2 + ["phi", "previous"] * 3
    broadcast = [vector for name, vector in spy.loads if name == "phi"]
    assert all(torch.equal(*pair) for pair in zip(broadcast, thetas[:-1], strict=True))
    kept = [vector for name, vector in spy.loads if name == "previous"]
    for found, expected in zip(kept, (thetas[1], thetas[3], thetas[2]), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


# FedMLB


def test_fedmlb_leaves_the_frozen_network_alone(spy: type[Spy]) -> None:
    work = job(tanh_net(), dealt([0, 1, 2], [3, 3, 1]), "fedmlb", {}, steps=5)
    start = vector_of(work.module)
    (state,) = rounds(work, [[0, 1]])
    assert (state["theta"] - start).norm() > 0.1
    (copy,) = spy.made[0].copies.values()
    assert torch.equal(copy.w, start)
    assert all(not p.requires_grad and p.grad is None for p in copy.module.parameters())


def test_fedmlb_reaches_local_stages_through_frozen_ones() -> None:
    # λ₁ alone: branch 0 teaches stage 0, branch 1 stages 0 and 1, and no branch has the local head in it.
    _, gradient = asked(Branches(1.0, 0.0, 1.0), tanh_net(), BATCH)
    assert bool((gradient[:41] != 0).all())
    assert not gradient[41:].any()


def test_fedmlb_is_the_composition_of_local_and_frozen_stages_with_each_activation_once() -> None:
    model, frozen = tanh_net(), tanh_net()
    phi = moved(model, 0.7)
    nn.utils.vector_to_parameters(phi, frozen.parameters())
    (one, two), (_, later) = model.stages, frozen.stages
    x, y = BATCH
    branches = [frozen.head(later(one(x))), frozen.head(two(one(x)))]
    ce = sum(nn.functional.cross_entropy(z, y) for z in branches) / 2
    value, gradient = asked(Branches(1.0, 0.0, 1.0), model, BATCH, phi=phi)
    assert value == pytest.approx(ce.item(), abs=1e-14)
    expected = torch.autograd.grad(ce, list(model.stages.parameters()))
    torch.testing.assert_close(gradient[:41], torch.cat([g.reshape(-1) for g in expected]), rtol=0, atol=1e-14)
    p, q = model(x).softmax(dim=1), [z.softmax(dim=1) for z in branches]
    kl = sum((b * (b / p).log()).sum(dim=1).mean() for b in q) / 2
    reverse = sum((p * (p / b).log()).sum(dim=1).mean() for b in q) / 2
    value, _ = asked(Branches(0.0, 1.0, 1.0), model, BATCH, phi=phi)
    assert value == pytest.approx(kl.item(), abs=1e-14)
    assert abs((kl - reverse).item()) > 1e-4, "the other direction would be seen"


# FedDecorr


@pytest.mark.parametrize("size", [2, 3, 6])
def test_feddecorr_has_the_scale_of_its_authors_code(size: int) -> None:
    # With variances over B − 1, (XᵀX)_ab = (B − 1)·r_ab, r the correlation. The authors take the mean over the
    # d(d − 1) pairs and divide by B; the paper has (1/d²)·Σ_{a≠b} r²_ab. So the code is (B − 1)²/B · d/(d − 1)
    # times the paper: not B but B − 2 + 1/B, and the mean over pairs in place of d² besides.
    model, (x, y) = tanh_net(), (BATCH[0][:size], BATCH[1][:size])
    r = torch.corrcoef(model.features(x).T)
    width = len(r)
    paper = ((r.square().sum() - width) / width**2).item()
    value, _ = asked(Decorrelation(1.0), model, (x, y))
    assert value == pytest.approx((size - 1) ** 2 / size * width / (width - 1) * paper, rel=1e-5)


def test_feddecorr_adds_nothing_to_a_batch_of_one() -> None:
    x, y = BATCH
    value, gradient = asked(Decorrelation(1.0), tanh_net(), (x[:1], y[:1]))
    assert value == 0
    assert not gradient.any()
    clients = [(x[:1], y[:1]), BATCH]
    (decorrelated,), (plain,) = (
        rounds(job(tanh_net(), clients[::-1], m, {}, steps=3), [[1]]) for m in ("feddecorr", "fedavg")
    )
    assert torch.equal(decorrelated["theta"], plain["theta"])


@pytest.mark.parametrize("constant", [[2], [0, 1, 2, 3, 4]])
def test_feddecorr_is_finite_for_features_that_do_not_vary(constant: list[int]) -> None:
    model = tanh_net()
    with torch.no_grad():
        model.stages[1][0].weight[constant] = 0.0  # type: ignore[index]
    value, gradient = asked(Decorrelation(1.0), model, BATCH)
    assert bool(gradient.isfinite().all())
    assert (value == pytest.approx(0, abs=1e-20)) == (len(constant) == 5)


# All that compare with φ


@pytest.mark.parametrize("method", ["fedntd", "moon", "fedmlb"])
def test_with_the_lookahead_the_broadcast_point_is_what_is_compared_with(method: str, spy: type[Spy]) -> None:
    lam = 0.7
    work = job(tanh_net(), dealt([0, 1, 2], [3, 3, 1]), f"{method}+acg", {"lam": lam}, steps=2)
    start = vector_of(work.module)
    states = [{"theta": start, "m": torch.zeros_like(start)}, *rounds(work, [[0], [1], [0]])]
    found = [vector for name, vector in spy.loads if name == "phi"]
    for state, phi in zip(states, found, strict=False):
        torch.testing.assert_close(phi, state["theta"] + lam * state["m"], rtol=0, atol=1e-15)
    assert all((phi - state["theta"]).norm() > 1e-3 for state, phi in zip(states[1:], found[1:], strict=False))


@pytest.mark.parametrize(("method", "copies"), [("moon", 2), ("fedmlb", 1), ("fedntd", 1), ("fedlc", 0)])
def test_frozen_copies_are_made_once_a_worker_and_overwritten(
    method: str, copies: int, spy: type[Spy], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Counted(FlatModel):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            made.append(self)

    for module in (resident, worker):
        monkeypatch.setattr(module, "FlatModel", Counted)
    clients = dealt(*[[0, 1, 2, 3]] * 8)
    work = job(tanh_net(), clients, method, {})
    *_, _ = rounds(work, [range(8), range(8), range(0, 8, 2)])
    assert len(made) == 1 + copies
    assert len(spy.made) == 1
    assert [flat.g.numel() for flat in made[1:]] == [0] * copies, "they have no gradients"
    loads = 20 * min(copies, 1) + (12 if method == "moon" else 0)
    assert len(spy.loads) == loads
