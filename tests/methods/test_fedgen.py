"""FedGen: its two sides worked out by hand in float64, what it is equal to, and its mistakes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedacg import methods
from fedacg.core.round import Round
from fedacg.errors import InputError
from fedacg.methods import fedgen
from fedacg.methods.fedgen import GeneratedFeatures, Generator, TrainedGenerator, distinct, draw_noise, taught
from fedacg.methods.parts import Forward
from fedacg.methods.reply import Reply
from fedacg.methods.rules import Average, Lookahead, Totals
from fedacg.models import StagedModel
from fedacg.simulation.engine import Network
from support.staged import dealt, job, rounds, tanh_net
from support.visits import visit

CLIENTS = dealt([0, 0, 1, 1, 2], [1, 2, 2, 0], [0, 1, 1, 2, 2, 2], [3])
"""The last one, who alone has class 3, is never asked."""
LABELS = ([2, 2, 1, 0], [1, 1, 2, 0], [1, 2, 3, 0])
OPTIONS = {"steps": 3.0, "generator_lr": 0.01}
ROUND = Round(number=3, clients=3, expected=3, lr=0.5, seed=5)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator with few enough numbers to move one by one."""
    monkeypatch.setattr(fedgen, "NOISE", 2)
    monkeypatch.setattr(fedgen, "HIDDEN", 3)
    monkeypatch.setattr(fedgen, "BATCH", 6)


def by_hand(vector: Tensor, label: int, noise: Tensor, classes: int = 4, width: int = 5) -> list[float]:
    """G(y, ε), number by number."""
    numbers, h, z = vector.tolist(), fedgen.HIDDEN, len(noise)
    inputs = [float(k == label) for k in range(classes)] + noise.tolist()
    row = classes + z
    hidden = [
        max(0.0, sum(numbers[row * unit + k] * inputs[k] for k in range(row)) + numbers[row * h + unit])
        for unit in range(h)
    ]
    start = (row + 1) * h
    return [
        sum(numbers[start + h * out + unit] * hidden[unit] for unit in range(h)) + numbers[start + h * width + out]
        for out in range(width)
    ]


def log_probability(model: StagedModel, features: Sequence[float], label: int) -> float:
    head = model.head
    assert isinstance(head, nn.Linear)
    scores = [sum(w * f for w, f in zip(r, features, strict=True)) for r in head.weight.tolist()]
    scores = [score + b for score, b in zip(scores, head.bias.tolist(), strict=True)]
    return scores[label] - math.log(sum(math.exp(score) for score in scores))


def trained(classes: int = 4, width: int = 5) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return Generator(classes, width).start(random, torch.zeros(1, dtype=torch.float64))


def test_the_generator_is_two_layers_worked_out_number_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    vector, noise = trained(), torch.tensor([[0.5, -1.0], [2.0, 0.25]], dtype=torch.float64)
    made = Generator.of(vector, classes=4)
    assert (made.width, made.size) == (5, len(vector))
    found = made(vector, torch.tensor([2, 0]), noise)
    for row, label in enumerate((2, 0)):
        assert found[row].tolist() == pytest.approx(by_hand(vector, label, noise[row]), abs=1e-14)


def client_loss(model: StagedModel, vector: Tensor, number: int, part: GeneratedFeatures) -> tuple[float, Tensor]:
    """What a client's second step of this round adds to its loss, and its gradient."""
    streams = [lambda purpose: torch.Generator().manual_seed(11)]
    assignment = visit(model, {"generator": vector}, round=number, counts=(2, 2, 1, 0))
    part.begin(replace(assignment, randoms=streams))
    flat = assignment.flat
    for _ in range(2):
        flat.g.zero_()
        loss = part(Forward(flat.module, *CLIENTS[0]))
        loss.backward()
        part.correct(flat.g, flat.w)
    return float(loss.detach()), flat.g


def test_a_clients_terms_are_those_worked_out_example_by_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second step of round 3: α_3 = 10·0.5², β_3 = 4·0.5²; y' are drawn from the classes 0, 1, 2 that it has."""
    small(monkeypatch)
    model, vector, (x, y) = tanh_net(), trained(), CLIENTS[0]
    found, g = client_loss(model, vector, 3, GeneratedFeatures(alpha=10, beta=4, decay=0.5))

    source = torch.Generator().manual_seed(11)
    for _ in range(2):  # the first step has its own draws
        drawn = torch.randint(3, (5,), generator=source).tolist()
        noise = draw_noise(10, source, vector)
    with torch.no_grad():
        z = torch.log_softmax(model(x), dim=1).tolist()
    divergence = generated = 0.0
    for row, label in enumerate(y.tolist()):
        teacher = [log_probability(model, by_hand(vector, label, noise[row]), k) for k in range(4)]
        divergence += sum(math.exp(t) * (t - z[row][k]) for k, t in enumerate(teacher)) / 5
        made = by_hand(vector, drawn[row], noise[5 + row])
        generated -= log_probability(model, made, drawn[row]) / 5
    assert found == pytest.approx(2.5 * generated + 1.0 * divergence, abs=1e-12)

    # The teacher has no gradient: with α = 0, the head's bias is moved by softmax(z) − softmax(teacher) alone.
    _, g = client_loss(model, vector, 3, GeneratedFeatures(alpha=0, beta=4, decay=0.5))
    wanted = [0.0] * 4
    for row, label in enumerate(y.tolist()):
        made = by_hand(vector, label, noise[row])
        for k in range(4):
            wanted[k] += (math.exp(z[row][k]) - math.exp(log_probability(model, made, k))) / 5
    assert g[-4:].tolist() == pytest.approx(wanted, abs=1e-12)


def test_all_gradients_of_a_step_see_the_same_features_and_the_next_step_sees_others() -> None:
    model, part = tanh_net(), GeneratedFeatures(1, 1, 1)
    streams = [lambda purpose: torch.Generator().manual_seed(11)]
    part.begin(replace(visit(model, {"generator": trained()}, counts=(2, 2, 1, 0)), randoms=streams))
    forward = Forward(model, *CLIENTS[0])
    first, again = float(part(forward).detach()), float(part(forward).detach())
    part.correct(torch.empty(0), torch.empty(0))
    assert first == again != float(part(forward).detach())


def replies(*labels: Sequence[int]) -> list[Reply]:
    """Clients with these label counts and heads of their own."""
    source = torch.Generator().manual_seed(4)
    size = sum(p.numel() for p in tanh_net().parameters())
    return [
        Reply(
            client=number,
            weight=1 / len(labels),
            share=1 / len(labels),
            examples=sum(counts),
            steps=1,
            total_lr=0.5,
            loss=0.0,
            delta=torch.randn(size, generator=source, dtype=torch.float64),
            extras={"labels": torch.tensor(counts, dtype=torch.float64)},
        )
        for number, counts in enumerate(labels)
    ]


def after_a_round(sent: Sequence[Reply], vector: Tensor, steps: int = 1, lr: float = 0.01) -> Mapping[str, Tensor]:
    model = tanh_net()
    rule = TrainedGenerator(Average(), steps, lr)
    totals = Totals(rule, Network(job(model, CLIENTS, "fedgen", {})))
    for reply in sent:
        totals.add(reply)
    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    return rule.step({"theta": theta, "generator": vector}, totals, ROUND)


def on_its_own(sent: Sequence[Reply], vector: Tensor, steps: int, lr: float) -> Tensor:
    """The same training by PyTorch's Adam, on the loss written out client by client and example by example."""
    source, total = ROUND.random("generator"), [sum(r.extras["labels"][c].item() for r in sent) for c in range(4)]
    models = [tanh_net() for _ in sent]
    for model, reply in zip(models, sent, strict=True):
        w_i = nn.utils.parameters_to_vector(model.parameters()).detach() + reply.delta
        nn.utils.vector_to_parameters(w_i, model.parameters())
    own = nn.Parameter(vector.clone())
    adam = torch.optim.Adam([own], lr=lr)
    for _ in range(steps):
        y = torch.multinomial(torch.tensor(total, dtype=torch.float64), 6, replacement=True, generator=source)
        noise = draw_noise(6, source, vector)
        made = Generator(4, 5)(own, y, noise)
        loss = torch.zeros((), dtype=torch.float64)
        for model, reply in zip(models, sent, strict=True):
            for a, label in enumerate(y.tolist()):
                share = reply.extras["labels"][label].item() / total[label]
                loss = loss - share * model.head(made[a]).log_softmax(dim=0)[label] / 6
        pairs = [(a, b) for a in range(6) for b in range(6)]
        apart = sum(
            ((noise[a] - noise[b]) ** 2).mean() * (made[a] - made[b]).abs().mean() / 36 for a, b in pairs if a != b
        )
        adam.zero_grad()
        (loss + torch.exp(-torch.as_tensor(apart))).backward()
        adam.step()
    return own.detach()


@pytest.mark.parametrize("steps", [1, 3])
def test_the_generator_is_trained_by_adam_on_the_loss_worked_out_by_hand(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    vector, sent = trained(), replies(*LABELS)
    after = after_a_round(sent, vector, steps=steps, lr=0.02)
    torch.testing.assert_close(after["generator"], on_its_own(sent, vector, steps, 0.02), rtol=1e-9, atol=1e-10)
    # θ is FedAvg's.
    theta = nn.utils.parameters_to_vector(tanh_net().parameters()).detach()
    torch.testing.assert_close(after["theta"], theta + sum(r.delta for r in sent) / 3, rtol=1e-12, atol=1e-12)


def test_heads_are_weighed_by_their_share_of_the_examples_of_a_class() -> None:
    """Two examples of classes 0 and 1, two heads: a_i0 = 3/4, 1/4 and a_i1 = 0, 1."""
    y, shares = torch.tensor([0, 1]), torch.tensor([[0.75, 0.0], [0.25, 1.0]], dtype=torch.float64)
    one = torch.tensor([[math.log(3), 0.0], [5.0, 5.0]], dtype=torch.float64)  # probabilities ¾ ¼ and ½ ½
    other = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]], dtype=torch.float64)  # ½ ½ and ¼ ¾
    by_hand = (0.75 * math.log(4 / 3) + 0.25 * math.log(2) + math.log(4 / 3)) / 2
    assert float(taught([one, other], y, shares)) == pytest.approx(by_hand, abs=1e-14)


def test_a_client_without_a_class_says_nothing_about_it() -> None:
    """Only client 0 has class 0, and the others have nothing at all: their heads do not matter."""
    vector = trained()
    one, *others = replies([4, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0])
    twisted = [replace(reply, delta=reply.delta * -7) for reply in others]
    plain, other = (after_a_round([one, *rest], vector)["generator"] for rest in (others, twisted))
    assert torch.equal(plain, other)


def test_without_the_term_that_keeps_features_apart_noise_would_not_matter() -> None:
    noise = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    same = torch.ones(2, 3, dtype=torch.float64)
    assert float(distinct(noise, same)) == 1.0
    # d² = 4/2 = 2, d¹ = (1 + 2 + 3)/3 = 2, each pair twice of four: exp(−2·2·2/4) = e^−2
    apart = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 3.0]], dtype=torch.float64)
    assert float(distinct(noise, apart)) == pytest.approx(math.exp(-2))


def test_neutral_settings_are_fedavg_to_the_bit() -> None:
    cohorts = [[0, 1], [1, 2], [0, 2]]
    run, plain = (
        list(rounds(job(tanh_net(), CLIENTS, name, given, batch=2, epochs=2), cohorts))[-1]["theta"]
        for name, given in (("fedgen", {"alpha": 0, "beta": 0, **OPTIONS}), ("fedavg", {}))
    )
    assert torch.equal(run, plain)


def test_the_first_round_is_fedavgs_as_there_is_no_generator_yet_and_the_second_is_not() -> None:
    (first, second), plain = (
        list(rounds(job(tanh_net(), CLIENTS, name, given), [[0, 1, 2], [0, 1]]))
        for name, given in (("fedgen", OPTIONS), ("fedavg", {}))
    )
    assert torch.equal(first["theta"], plain[0]["theta"])
    assert first["generator"].any()
    assert not torch.equal(second["generator"], first["generator"])
    assert not torch.allclose(second["theta"], plain[1]["theta"], rtol=1e-3)


def test_heads_are_those_of_the_broadcast_point_and_not_of_theta() -> None:
    """With a lookahead φ ≠ θ from the second round on; a client's head is that of φ + Δ_i."""
    method = methods.build("fedgen+acg", {"lam": 0.7})
    rule = method.rule
    assert isinstance(rule, TrainedGenerator)
    assert isinstance(rule.inner, Lookahead)
    sent, vector, network = replies(*LABELS), trained(), Network(job(tanh_net(), CLIENTS, "fedgen", {}))
    theta = nn.utils.parameters_to_vector(tanh_net().parameters()).detach()
    found = []
    for m in (torch.zeros_like(theta), theta.sin()):
        totals = Totals(rule, network)
        for reply in sent:
            totals.add(replace(reply, delta=reply.delta - 0.7 * m))  # the same w_i either way
        found.append(rule.step({"theta": theta, "m": m, "generator": vector}, totals, ROUND)["generator"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def test_what_it_sends_and_needs() -> None:
    traffic = job(tanh_net(), CLIENTS, "fedgen", {}).traffic
    generator = Generator(4, 5)
    assert traffic.bytes_down == 8 * (65 + generator.size)
    assert traffic.bytes_up == 8 * (65 + 4), "Δ_i and how many of each of four classes"
    assert not traffic.kept
    assert methods.build("fedgen").needs == {"single updates", "stages"}


def test_a_head_with_statistics_is_refused_before_the_first_round() -> None:
    model = StagedModel([nn.Linear(3, 5)], nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4))).double()
    with pytest.raises(InputError, match="its head has buffers"):
        _ = job(model, CLIENTS, "fedgen", {}).traffic
