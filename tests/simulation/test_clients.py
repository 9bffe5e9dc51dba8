"""Single clients: what they are measured on, the figures of all of them, fine-tuning, and the baselines."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import InputError, Result
from fedacg.data import LazyClients, TensorExamples
from fedacg.data.held_out import JoinedExamples, hold_out_tests, pool
from fedacg.simulation.clients import ClientFigures, from_csv, scores, to_csv

SIZES = (8, 5, 12, 9)
STEPS, LR = 3, 0.1


def pairs(sizes: tuple[int, ...] = SIZES, seed: int = 3) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(n, 4, generator=source, dtype=torch.float64) for n in sizes]
    return [(x, (x.sum(1) + 0.5 * x[:, 0] > 0).long()) for x in inputs]


PAIRS, TEST = pairs(), pairs((30,), 4)[0]
OWN_TESTS = {f"u{client}": pair for client, pair in enumerate(pairs((4, 3, 6, 5), 5))}
NAMED = {f"u{client}": pair for client, pair in enumerate(PAIRS)}


def network(norm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 3), *([nn.BatchNorm1d(3)] if norm else []), nn.Tanh(), nn.Linear(3, 2)
        ).double()


def run(clients: Any = PAIRS, test: Any = TEST, **options: Any) -> Result:
    """Full batches, so that a naive loop takes the same steps."""
    settings: dict[str, Any] = {
        "model": network(),
        "rounds": 4,
        "participation": 0.5,
        "local_steps": STEPS,
        "batch_size": 1000,
        "lr": LR,
    }
    return fedacg.run(clients=clients, test=test, **(settings | options))


def naive_steps(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()


@torch.no_grad()
def naive_figures(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    outputs = model.eval()(x)
    return float((outputs.argmax(1) == y).double().mean()), float(nn.functional.cross_entropy(outputs, y))


# Figures


def one(client: int, accuracy: float | None, loss: float = 1.0) -> ClientFigures:
    return ClientFigures(client, f"c{client}", 10, 5, accuracy, loss)


def test_the_figures_of_all_clients_by_hand() -> None:
    found = scores([one(i, i / 10) for i in range(11)])  # 0, 0.1, …, 1: the worst tenth is two of eleven
    assert found["clients/mean"] == pytest.approx(0.5)
    assert found["clients/worst_tenth"] == pytest.approx(0.05)
    assert found["clients/spread"] == pytest.approx(0.1**0.5)
    assert found["clients/loss"] == 1.0
    assert scores([]) == {}


def test_without_classes_the_figures_are_of_losses_and_the_worst_are_the_largest() -> None:
    found = scores([one(i, None, float(i)) for i in range(10)])
    assert (found["clients/mean"], found["clients/worst_tenth"]) == (4.5, 9.0)


def test_a_table_is_read_back_as_it_was_written() -> None:
    table = [one(0, 0.25, 1 / 3), ClientFigures(1, 'a "b", c', 3, 2, 0.5, 0.1, 1.0, 1e-17)]
    assert from_csv(to_csv(table[:1])) == table[:1]
    assert from_csv(to_csv(table[1:])) == table[1:]
    plain = [one(0, None)]
    assert "accuracy" not in to_csv(plain).splitlines()[0]
    assert from_csv(to_csv(plain)) == plain


# What is measured


@pytest.mark.parametrize("which", ["train", "own"])
def test_clients_are_measured_on_their_own_examples_before_and_after_fine_tuning(which: str) -> None:
    result = run(NAMED, OWN_TESTS, evaluate={"clients": which, "client_steps": 5})
    assert [each.name for each in result.clients] == list(NAMED)
    for each in result.clients:
        x, y = (OWN_TESTS if which == "own" else NAMED)[each.name]
        model = network()
        model.load_state_dict(result.model.state_dict())
        assert (each.examples, each.tested) == (len(NAMED[each.name][1]), len(y))
        assert (each.accuracy, each.loss) == pytest.approx(naive_figures(model, x, y), abs=1e-12)
        naive_steps(model, *NAMED[each.name], steps=5)
        assert (each.personal_accuracy, each.personal_loss) == pytest.approx(naive_figures(model, x, y), abs=1e-12)
    mean = sum(each.accuracy or 0 for each in result.clients) / 4
    assert result.history.series("clients/mean") == {4: pytest.approx(mean)}


def test_a_client_without_test_examples_is_not_measured() -> None:
    result = run(NAMED, {"u2": OWN_TESTS["u2"], "u0": OWN_TESTS["u0"]}, evaluate={"clients": "own"})
    assert [each.name for each in result.clients] == ["u0", "u2"]


def test_what_is_held_out_is_not_trained_on_and_differs_by_client_and_seed() -> None:
    data = fedacg.data.from_pairs([(torch.arange(20.0)[:, None], torch.zeros(20).long())] * 3, None)
    apart = hold_out_tests(data, 0.25, seed=0)
    assert apart.own_tests is not None
    everything = torch.arange(20)
    kept = [apart.clients[i].fetch(torch.arange(15))[0] for i in range(3)]
    held = [apart.own_tests[i].fetch(torch.arange(5))[0] for i in range(3)]
    for one_kept, one_held in zip(kept, held, strict=True):
        assert torch.equal(torch.cat([one_kept, one_held]).flatten().sort().values.long(), everything)  # type: ignore[list-item]
    assert not torch.equal(held[0], held[1])  # type: ignore[arg-type]
    assert [apart.clients.size(0), apart.own_tests.size(0)] == [15, 5]
    single = hold_out_tests(fedacg.data.from_pairs([(torch.ones(1, 1), torch.zeros(1).long())], None), 0.5, 0)
    assert (single.clients.size(0), len(single.clients[0]), single.own_tests and single.own_tests.size(0)) == (
        1,
        1,
        0,
    )


def test_measuring_leaves_the_run_as_it_was() -> None:
    plain = run()
    measured = run(evaluate={"clients": "train", "client_every": 1, "client_steps": 2})
    assert torch.equal(plain.vector, measured.vector)
    assert plain.history.accuracy == measured.history.accuracy
    assert plain.history.score_names == []
    assert list(measured.history.series("clients/personal_mean")) == [1, 2, 3, 4]
    assert list(run(evaluate={"clients": "train", "client_every": 3}).history.series("clients/mean")) == [3, 4]


@pytest.mark.parametrize("method", ["fedacg", "local-only", "centralised"])
def test_workers_measure_the_same_bits(method: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "method": method,
        "evaluate": {"clients": "held-out", "client_steps": 2, "held_out": 0.3},
    }
    options["model"] = network(norm=True)
    alone = run(NAMED, out=tmp_path / "alone", **options)
    workers = run(NAMED, out=tmp_path / "workers", workers=2, **options)
    assert alone.clients == workers.clients
    assert alone.history[-1].scores == workers.history[-1].scores
    assert alone.history.accuracy == workers.history.accuracy
    assert torch.equal(alone.vector, workers.vector)
    tables = [(tmp_path / name / "clients.csv").read_text() for name in ("alone", "workers")]
    assert tables[0] == tables[1]
    assert [line["name"] for line in csv.DictReader(tables[0].splitlines())] == list(NAMED)


@pytest.mark.parametrize("method", ["fedacg", "local-only", "centralised"])
@pytest.mark.parametrize("last", [2, 4])
def test_a_run_that_was_stopped_measures_the_same_bits(method: str, last: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "method": method,
        "model": network(norm=True),
        "evaluate": {"clients": "train", "client_every": 2, "client_steps": 1},
        "save": {"seconds": 0},
    }
    whole = run(out=tmp_path / "whole", **options)

    def stop(metrics: Any) -> None:
        if metrics.round == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "parts", on_round=stop, **options)
    parts = run(out=tmp_path / "parts", resume=True, **options)
    assert [m.scores for m in parts.history] == [m.scores for m in whole.history]
    assert parts.history.accuracy == whole.history.accuracy
    assert torch.equal(parts.vector, whole.vector)
    tables = [(tmp_path / name / "clients.csv").read_text() for name in ("whole", "parts")]
    assert tables[0] == tables[1]


def test_lazy_clients_bring_their_own_tests() -> None:
    lazy = LazyClients(
        4, lambda i: PAIRS[i], SIZES, names=list(NAMED), load_test=lambda i: list(OWN_TESTS.values())[i]
    )
    options: dict[str, Any] = {"evaluate": {"clients": "own"}}
    assert run(lazy, **options).clients == run(NAMED, OWN_TESTS, **options).clients


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evaluate": {"clients": "own"}}, "evaluate.clients = 'own': the test examples have no owners"),
        (
            {"evaluate": {"client_every": 2}},
            "evaluate.client_every = 2: has no effect, as evaluate.clients is none",
        ),
        ({"evaluate": {"client_steps": 2}}, "evaluate.client_steps = 2: has no effect"),
        ({"evaluate": {"clients": "own", "held_out": 0.2}}, "evaluate.held_out = 0.2: has no effect"),
        ({"evaluate": {"clients": "all"}}, "evaluate.clients = 'all'"),
        ({"method": "centralised+acg"}, r"centralised is a baseline and takes no \+acg"),
        ({"method": "local-only+prox"}, r"local-only is a baseline and takes no \+prox"),
        ({"method": "centralised", "cohorts": [[0]] * 4}, "cohorts: have no effect"),
    ],
)
def test_what_has_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(**options)


# Baselines


def test_centralised_takes_the_steps_of_a_cohort_on_all_data() -> None:
    """Two of four clients take part, three steps each: six steps per round on all examples, by a naive loop."""
    result = run(method="centralised")
    model = network()
    x, y = torch.cat([x for x, _ in PAIRS]), torch.cat([y for _, y in PAIRS])
    for round in range(4):
        naive_steps(model, x, y, steps=2 * STEPS)
        assert result.history[round].test_loss == pytest.approx(naive_figures(model, *TEST)[1], abs=1e-12)
    assert torch.allclose(result.vector, nn.utils.parameters_to_vector(model.parameters()), atol=1e-12, rtol=0)
    assert result.history.total_bytes == 0


def test_centralised_counts_the_steps_of_unequal_clients_on_average() -> None:
    """Epochs of batches of 4 over 8, 5, 12 and 9 examples are 2, 2, 3 and 3 steps: five for two clients."""
    many = run(method="centralised", local_steps=0, local_epochs=1, batch_size=4, rounds=1)
    five = run([(torch.cat([x for x, _ in PAIRS]), torch.cat([y for _, y in PAIRS]))], local_steps=5, batch_size=4,
               rounds=1, participation=1.0, method="fedavg")  # fmt: skip
    assert torch.equal(many.vector, five.vector)


def test_local_only_lets_every_client_train_alone() -> None:
    cohorts = [[0, 1], [1, 2], [0, 1], [1, 2]]  # client 3 never takes part
    result = run(method="local-only", cohorts=cohorts, model=network(norm=True), evaluate={"clients": "train"})
    models = [network(norm=True) for _ in PAIRS]
    for round, cohort in enumerate(cohorts):
        for client in cohort:
            naive_steps(models[client], *PAIRS[client], steps=STEPS)
        figures = [naive_figures(model, *TEST) for model in models]
        metrics = result.history[round]
        assert metrics.test_accuracy == pytest.approx(sum(accuracy for accuracy, _ in figures) / 4, abs=1e-12)
        assert metrics.test_loss == pytest.approx(sum(loss for _, loss in figures) / 4, abs=1e-12)
    for each in result.clients:
        assert (each.accuracy, each.loss) == pytest.approx(
            naive_figures(models[each.client], *PAIRS[each.client]), abs=1e-12
        )
    assert result.history.total_bytes == 0


def test_examples_in_one_place_are_those_of_the_clients() -> None:
    parts = [TensorExamples(x, y) for x, y in PAIRS]
    joined = JoinedExamples(parts)
    index = torch.tensor([33, 0, 7, 8, 20, 8])
    x, y = joined.fetch(index)
    assert torch.equal(x, torch.cat([x for x, _ in PAIRS])[index])  # type: ignore[arg-type]
    assert torch.equal(y, torch.cat([y for _, y in PAIRS])[index])
    assert torch.equal(joined.labels(index), y)
    assert len(joined.fetch(index[:0])[1]) == 0
    data = fedacg.data.from_pairs(PAIRS, TEST)
    assert pool(data).clients.size(0) == sum(SIZES)
