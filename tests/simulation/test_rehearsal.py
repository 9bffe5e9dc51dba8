"""What a rehearsal of one step says of a method's messages is what real rounds send and keep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedacg import methods, models
from fedacg.config.participation import CohortSettings
from fedacg.config.sections import EvaluateSettings, LocalSettings
from fedacg.core.round import Kinds, Message, Round, kind_bytes, kinds, message_bytes
from fedacg.data.own_data import from_pairs
from fedacg.engines.serial import SerialEngine
from fedacg.methods import METHODS, Method
from fedacg.methods.parts import Empirical
from fedacg.methods.rules import Average, State, Totals
from fedacg.methods.upload import ErrorFeedback
from fedacg.runs.build import traffic_of
from fedacg.runs.client_states import ClientStates
from fedacg.simulation.engine import Answer, ClientMemory, Job, Task, Training
from fedacg.simulation.federation import Federation
from fedacg.simulation.sampling import Sampling

COMBINATIONS = ["fedavg+paq", "fedcm+paq", "feddyn+paq", "feddc+paq", "moon+acg+paq", "fedmlb+acg", "fedacg+paq"]
SIZES = (1, 6, 12, 3)
"""The first client has fewer examples than a rehearsal looks at."""


class Seen(SerialEngine):
    """Notes what goes down, comes up and is kept."""

    def __init__(self) -> None:
        self.down: list[Kinds] = []
        self.first: list[Kinds] = []
        self.answers: list[Answer] = []

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        groups = list(super().train(broadcast, tasks, kept).answers)
        found = [answer for group in groups for answer in group]
        if tasks[0].steps:
            self.down.append(kinds(broadcast))
            self.answers += found
        else:
            self.first += [kinds(answer.upload) for answer in found]
        return Training(iter(groups))


def network(buffers: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if buffers:
            return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
        return models.build("mlp", classes=3, shape=(5,), hidden=[4])


def job(method: Method, module: nn.Module | None = None, sizes: Sequence[int] = SIZES, **more: Any) -> Job:
    source = torch.Generator().manual_seed(1)
    clients = [(torch.randn(n, 5, generator=source), torch.arange(n) % 3) for n in sizes]
    return Job(
        module=module or network(),
        channels_last=False,
        data=from_pairs(clients, clients[1]),
        method=method,
        local=LocalSettings(steps=2, batch=4),
        seed=0,
        evaluate_batch=100,
        **more,
    )


def played(work: Job, folder: Path, rounds: int = 2) -> tuple[Seen, list[tuple[int, int]]]:
    """What everybody sent and kept in some rounds, and the bytes that were counted."""
    engine, everybody = Seen(), range(len(work.data.clients))
    federation = Federation(
        work,
        engine,
        rounds=rounds,
        sampling=Sampling(CohortSettings(), clients=len(everybody), seed=0, cohorts=[list(everybody)] * rounds),
        evaluate=EvaluateSettings(),
        memory=ClientStates(folder),
    )
    return engine, [(metrics.bytes_down, metrics.bytes_up) for metrics in federation.run()]


def check(work: Job, folder: Path) -> None:
    """Every message of real rounds is made of what the rehearsal saw."""
    traffic, (seen, counted) = work.traffic, played(work, folder)
    clients = len(work.data.clients)
    assert seen.down == [traffic.down] * 2
    assert seen.first == ([traffic.first] * 2 * clients if traffic.first else [])
    for answer in seen.answers:
        assert kinds(answer.upload) == traffic.up
        assert kinds(answer.keep) == traffic.kept
    assert counted == [(clients * traffic.bytes_down, clients * traffic.bytes_up)] * 2


@pytest.mark.parametrize("method", [*METHODS, *COMBINATIONS])
def test_a_rehearsal_foretells_what_is_sent_and_kept(method: str, tmp_path: Path) -> None:
    check(job(methods.build(method)), tmp_path)


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "fedcm", "feddc+paq"])
def test_buffers_are_foretold_too(method: str, tmp_path: Path) -> None:
    work = job(methods.build(method), network(buffers=True), sizes=(4, 8, 6))
    assert work.traffic.up["buffers"].shape == (9,)
    check(work, tmp_path)


@pytest.mark.parametrize("method", ["fedcm", "feddyn", "feddc+paq"])
def test_a_fused_group_sends_a_row_of_the_same_for_each_client(method: str, tmp_path: Path) -> None:
    check(job(methods.build(method), group=3), tmp_path)


def test_what_links_keep_is_foretold(tmp_path: Path) -> None:
    quantised = methods.build("feddc+paq")
    work = job(Method(quantised.rule, quantised.objective, upload=(ErrorFeedback(), *quantised.upload)))
    assert work.traffic.kept.keys() == {"h", "g", "upload/delta/0/error", "upload/g/0/error"}
    check(work, tmp_path)


class Aimed(Average):
    """Broadcasts the full gradient beside θ, after a first exchange."""

    first_exchange = True

    def init(self, theta: torch.Tensor) -> State:
        return {"theta": theta, "gradient": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, torch.Tensor]:
        return {"phi": state["theta"], "gradient": state["gradient"]}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return {**super().step(state, totals, round), "gradient": state["gradient"]}


def test_a_first_exchange_is_foretold_and_counted(tmp_path: Path) -> None:
    work = job(Method(Aimed(), objective=(Empirical(),)))
    size = message_bytes({"theta": torch.nn.utils.parameters_to_vector(work.module.parameters())})
    assert kind_bytes(work.traffic.first) == size
    assert work.traffic.bytes_up == 2 * size
    check(work, tmp_path)


def test_a_rehearsal_changes_nothing() -> None:
    work = job(methods.build("feddc+paq"), network(buffers=True), sizes=(4, 8))
    before = {name: tensor.clone() for name, tensor in work.module.state_dict().items()}
    draws = torch.get_rng_state()
    assert work.traffic.up
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(before[name], tensor) for name, tensor in work.module.state_dict().items())


def test_what_cannot_work_fails_before_anything_is_begun() -> None:
    narrow = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = job(methods.build("fedavg"), narrow).traffic


@pytest.mark.parametrize(
    ("method", "down", "up", "kept"),
    [("fedavg", 1, 1, 0), ("fedcm", 2, 1, 0), ("feddyn", 1, 1, 1), ("moon", 1, 1, 1), ("feddc", 2, 2, 2)],
)
def test_a_methods_costs_are_told_in_vectors(method: str, down: float, up: float, kept: float) -> None:
    found = traffic_of(method)
    assert (found.down, found.up, found.kept) == (down, up, kept)
    assert traffic_of(f"{method}+paq").up < up / 4
