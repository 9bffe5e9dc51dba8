"""Which models the methods with losses of their own take, and what becomes of normalisation and of workers."""

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg.methods import METHODS, build
from fedacg.models import StagedModel
from support.staged import Pair, dealt, job, rounds, tanh_net

OWN_LOSS = ("moon", "fedmlb", "fedlc", "fedntd", "feddecorr")
CLIENTS = dealt([0, 1, 2, 3, 0, 2], [3, 3, 1], [2, 0], [1, 1, 0, 0, 0])


def plain() -> nn.Module:
    """The network of `tanh_net` as a module of PyTorch's own, with the same parameters."""
    staged = tanh_net()
    return nn.Sequential(*(layer for stage in staged.stages for layer in stage), staged.head)  # type: ignore[misc]


def final(model: nn.Module, method: str, clients: list[Pair] = CLIENTS, **settings: object) -> Tensor:
    options = {"rounds": 3, "participation": 0.75, "local_epochs": 2, "batch_size": 4, **settings}
    return fedacg.run(model=model, clients=clients, test=clients[0], method=method, **options).vector  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fedlc", "fedntd", "fedlc+acg", "fedntd+prox"])
def test_methods_that_need_only_logits_take_any_module(method: str) -> None:
    assert torch.equal(final(plain(), method), final(tanh_net(), method))


@pytest.mark.parametrize("method", ["moon", "fedmlb", "feddecorr", "moon+acg"])
def test_methods_that_look_at_features_say_what_they_need(method: str) -> None:
    reason = r"model: is a Sequential, but this method uses features, so it must be a fedacg.models.StagedModel"
    with pytest.raises(fedacg.InputError, match=reason):
        final(plain(), method)


@pytest.mark.parametrize("method", ["moon", "fedmlb", "feddecorr"])
def test_a_staged_model_without_stages_has_no_features(method: str) -> None:
    bare = StagedModel([], nn.Linear(3, 4).double())
    with pytest.raises(fedacg.InputError, match="model: has no stages, but this method uses the features"):
        final(bare, method)
    assert final(bare, "fedntd").isfinite().all()


@pytest.mark.parametrize("method", ["fedlc", "fedntd", "fedntd+acg"])
def test_a_loss_of_the_users_own_is_refused_where_the_method_defines_it(method: str) -> None:
    with pytest.raises(fedacg.InputError, match="this method defines its own loss on the logits; leave loss out"):
        final(tanh_net(), method, loss=nn.functional.multi_margin_loss)


@pytest.mark.parametrize("method", ["moon", "fedmlb", "feddecorr"])
def test_a_loss_of_the_users_own_takes_the_place_of_cross_entropy_elsewhere(method: str) -> None:
    own, usual = final(tanh_net(), method, loss=nn.functional.multi_margin_loss), final(tanh_net(), method)
    assert (own - usual).norm() > 1e-3


class Wide(nn.Module):
    """A user's own stage: three maps of the input side by side, and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([each(x) for each in self.maps], dim=1).relu()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_staged_model_of_the_users_own_works_with_every_method(method: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = StagedModel([Wide(), nn.Sequential(nn.Linear(6, 5), nn.Sigmoid())], nn.Linear(5, 4)).double()
    everybody = "full participation" in build(method).needs
    found = final(model, method, participation=1.0 if everybody else 0.75)
    assert bool(found.isfinite().all())
    assert (found - nn.utils.parameters_to_vector(model.parameters())).norm() > 1e-3


class Watched(nn.BatchNorm1d):
    """Remembers, over all its copies, whether it was frozen and whether it was training when it was used."""

    seen: set[tuple[bool, bool]]

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            Watched.seen.add((not self.weight.requires_grad, self.training))
        return super().forward(x)


def normalised(layer: type[nn.BatchNorm1d] = nn.BatchNorm1d) -> StagedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stages = [nn.Sequential(nn.Linear(i, o), layer(o), nn.Tanh()) for i, o in ((3, 4), (4, 5))]
        model = StagedModel(stages, nn.Linear(5, 4)).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.fill_(0.3)  # type: ignore[union-attr]
            module.running_var.fill_(2.0)  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize("method", OWN_LOSS)
def test_running_statistics_are_those_of_the_local_model_alone(method: str) -> None:
    # One step from φ: whatever the loss, the local model has seen its batch once, as FedAvg's has.
    found, expected = (next(rounds(job(normalised(), CLIENTS, m, {}), [[0]])) for m in (method, "fedavg"))
    assert torch.equal(found["buffers"], expected["buffers"])
    # Batches are counted too, once for every step.
    (first, second) = rounds(job(normalised(), CLIENTS, method, {}, steps=5), [[0], [1]])
    counts = [[state["buffers"][i].item() for i in (8, 19)] for state in (first, second)]
    assert counts == [[5, 5], [10, 10]]


@pytest.mark.parametrize("method", OWN_LOSS)
def test_the_local_model_trains_and_frozen_ones_do_not(method: str) -> None:
    Watched.seen = set()
    *_, _ = rounds(job(normalised(Watched), CLIENTS, method, {}, steps=2), [[0, 1], [0, 1]])
    with_frozen_gradients = {(True, False)} if method == "fedmlb" else set()
    assert Watched.seen == {(False, True)} | with_frozen_gradients


def test_a_frozen_teacher_normalises_with_the_broadcast_statistics() -> None:
    # β = 1: only distillation, and it is not zero at w = φ, as the local model normalises by its batch and the
    # teacher by φ's running statistics. Its value is the one of the plain composition.
    model = normalised()
    x, y = CLIENTS[1]
    teacher, student = (normalised().train(training) for training in (False, True))
    total = 0.0
    with torch.no_grad():
        for t, s, label in zip(teacher(x), student(x), y, strict=True):
            others = [c for c in range(4) if c != label]
            p, q = t[others].softmax(dim=0), s[others].softmax(dim=0)
            total += float((p * (p / q).log()).sum())
    result = fedacg.run(
        model=model,
        clients=CLIENTS,
        test=CLIENTS[0],
        method="fedntd",
        options={"beta": 1.0},
        rounds=1,
        cohorts=[[1]],
        local_epochs=1,
    )
    assert result.history[0].train_loss == pytest.approx(total / 3, abs=1e-12)
    assert total > 0.01
