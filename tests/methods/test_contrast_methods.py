"""FedRCL and FedProc: against plain formulas in float64, what they are equal to, and their mistakes."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedacg.methods.fedproc import PrototypeContrast
from fedacg.methods.fedrcl import RelaxedContrast
from fedacg.methods.parts import Forward
from fedacg.models import StagedModel
from support.staged import dealt, job, rounds, tanh_net
from support.visits import visit

TAU, LAM, BETA = 0.5, 0.1, 2.0
CLIENTS = dealt([0, 0, 1, 1, 2], [1, 2, 2, 0], [0, 1, 1, 2, 2, 2])
"""Nobody has class 3."""


def plainly(z: Tensor, y: list[int]) -> float:
    """mean_i L_i, pair by pair."""
    unit = [row / row.norm() for row in z]
    terms = []
    for i, label in enumerate(y):
        same = [float(unit[i] @ unit[j]) for j in range(len(y)) if j != i and y[j] == label]
        others = sorted((float(unit[i] @ unit[j]) for j in range(len(y)) if y[j] != label), reverse=True)
        if not same or not others:
            continue
        p, powers = min(same), [math.exp(n / TAU) for n in others[:2]]
        term = -math.log(math.exp(p / TAU) / (math.exp(p / TAU) + sum(powers)))
        if p >= LAM:
            term += BETA * -math.log(math.exp(1 / TAU) / (math.exp(1 / TAU) + math.exp(p / TAU)))
        terms.append(term)
    return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize("y", [[0, 0, 1, 1, 2], [0, 0, 0, 1], [0, 1, 0, 1, 0, 1, 2, 2], [3, 3, 1]])
def test_fedrcls_term_is_the_one_worked_out_pair_by_pair(y: list[int]) -> None:
    z = torch.randn(len(y), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(len(y)))
    found = RelaxedContrast(1.0, TAU, LAM, BETA).contrast(z, torch.tensor(y))
    assert float(found) == pytest.approx(plainly(z, y), abs=1e-12)


@pytest.mark.parametrize("y", [[0], [0, 1, 2], [1, 1, 1, 1]])
def test_a_sample_alone_in_its_class_and_a_batch_of_one_class_give_no_term(y: list[int]) -> None:
    z = torch.randn(len(y), 3, dtype=torch.float64, requires_grad=True)
    assert float(RelaxedContrast(1.0, TAU, LAM, BETA).contrast(z, torch.tensor(y))) == 0.0


def test_fedrcl_takes_features_before_the_activation_and_lets_go_of_the_network() -> None:
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True)), nn.Sequential(nn.Linear(6, 5), nn.ReLU())]
    model = StagedModel(stages, nn.Linear(5, 4)).double()
    x, y = dealt([0, 0, 1, 1, 2])[0]
    part, assignment = RelaxedContrast(1.0, TAU, LAM, BETA), visit(model)
    part.begin(assignment)
    found = float(part(Forward(assignment.flat.module, x, y)).detach())
    first = stages[0][0](x)
    second = stages[1][0](first.relu())
    labels = y.tolist()
    before = (plainly(first.detach(), labels) + plainly(second.detach(), labels)) / 2
    after = (plainly(first.relu().detach(), labels) + plainly(second.relu().detach(), labels)) / 2
    assert found == pytest.approx(before, abs=1e-12)
    assert abs(before - after) > 1e-3, "the mistake would show"
    part.end(torch.zeros(1), None)  # type: ignore[arg-type]
    assert not any(module._forward_pre_hooks for module in assignment.flat.module.modules())


def test_fedrcl_averages_pictures_over_their_places() -> None:
    part, z = RelaxedContrast(1.0, TAU, LAM, BETA), torch.randn(4, 3, 2, 2, dtype=torch.float64)
    model = StagedModel([nn.Identity()], nn.Sequential(nn.Flatten(), nn.Linear(12, 4))).double()
    part.begin(visit(model))
    found = part(Forward(model, z, torch.tensor([0, 0, 1, 1])))
    assert float(found) == pytest.approx(plainly(z.mean(dim=(2, 3)), [0, 0, 1, 1]), abs=1e-12)


@pytest.mark.parametrize(("method", "options"), [("fedrcl", {"mu": 0}), ("fedproc", {"rounds": 1})])
def test_neutral_settings_are_fedavg_to_the_bit(method: str, options: dict[str, float]) -> None:
    cohorts = [[0, 1], [1, 2], [0, 2]]
    run, plain = (
        list(rounds(job(tanh_net(), CLIENTS, name, given, batch=2, epochs=2), cohorts))[-1]["theta"]
        for name, given in ((method, options), ("fedavg", {}))
    )
    assert torch.equal(run, plain)


def class_means(model: StagedModel, clients: list[int], label: int) -> Tensor:
    with torch.no_grad():
        return torch.cat([model.features(CLIENTS[i][0][CLIENTS[i][1] == label]) for i in clients]).mean(dim=0)


def test_fedprocs_prototypes_are_means_over_examples_and_a_class_that_nobody_has_keeps_its_own() -> None:
    # One step with all examples: the features are those of φ. Clients 0 and 1 first, then one that has only
    # class 2; the only one with class 3 is never asked.
    model = tanh_net()
    clients = [*CLIENTS, *dealt([2, 2], [3], seed=9)]
    first, second = rounds(job(model, clients, "fedproc", {}, steps=1), [[0, 1], [3]])
    start = first["prototypes"].view(4, 5)
    for label in range(3):
        torch.testing.assert_close(start[label], class_means(model, [0, 1], label), rtol=1e-12, atol=1e-12)
    assert not start[3].any(), "nobody has class 3, so it has no prototype"
    # The mistake of averaging the clients' means: they have 2 and 1 examples of class 0.
    wrong = (class_means(model, [0], 0) + class_means(model, [1], 0)) / 2
    assert not torch.allclose(start[0], wrong, rtol=1e-3)
    later = second["prototypes"].view(4, 5)
    assert torch.equal(later[[0, 1, 3]], start[[0, 1, 3]])
    assert not torch.equal(later[2], start[2])


def test_fedprocs_loss_is_the_one_worked_out_example_by_example() -> None:
    model = tanh_net()
    prototypes = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    prototypes[3] = 0  # not seen by anybody so far
    part = PrototypeContrast(100)
    assignment = visit(model, {"prototypes": prototypes.view(-1)}, round=25, counts=(2, 1, 1, 1))
    part.begin(assignment)
    x, y = dealt([0, 0, 1, 2, 3])[0]
    found = float(part(Forward(assignment.flat.module, x, y)).detach())
    terms = []
    with torch.no_grad():
        for one, label in zip(x, y.tolist(), strict=True):
            f = model.features(one.unsqueeze(0))[0]
            z = model(one.unsqueeze(0))[0]
            plain = float(-torch.log_softmax(z, dim=0)[label])
            scores = [float(f @ c / c.norm()) for c in prototypes[:3]]
            if label == 3:
                terms.append(plain)
                continue
            contrast = -scores[label] + math.log(sum(math.exp(s) for s in scores))
            terms.append(0.25 * plain + 0.75 * contrast)
    assert found == pytest.approx(sum(terms) / 5, abs=1e-12)


def test_fedprocs_first_round_is_fedavgs_as_there_are_no_prototypes_yet() -> None:
    (run,), (plain,) = (rounds(job(tanh_net(), CLIENTS, name, {}), [[0, 1, 2]]) for name in ("fedproc", "fedavg"))
    assert torch.equal(run["theta"], plain["theta"])


def test_fedproc_counts_every_example_once_however_many_epochs_and_gradients_a_step_there_are() -> None:
    model = tanh_net()
    x, y = CLIENTS[0]
    part = PrototypeContrast(100)
    zeros = torch.zeros(20, dtype=torch.float64)
    assignment = visit(model, {"prototypes": zeros}, steps=3, counts=(2, 2, 1, 0))
    part.begin(assignment)
    for _ in range(3):  # three epochs of one step each, two gradients a step
        part(Forward(assignment.flat.module, x, y))
        part(Forward(assignment.flat.module, 2 * x, y))
        part.correct(assignment.flat.g, assignment.flat.w)
    sent: dict[str, Tensor] = {}

    class Leaving:
        attach = staticmethod(sent.__setitem__)

    part.end(zeros, Leaving())  # type: ignore[arg-type]
    assert sent["counts"].tolist() == [2, 2, 1, 0]
    with torch.no_grad():
        torch.testing.assert_close(sent["sums"][2], model.features(x)[4])
