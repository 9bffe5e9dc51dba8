"""Messages: bytes per round of every method, as METHODS has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedacg
from fedacg import models
from fedacg.core.round import message_bytes
from fedacg.engines.serial import SerialEngine
from fedacg.methods import METHODS, build
from fedacg.runs.build import prepare, traffic_of
from fedacg.runs.runner import play
from fedacg.simulation.engine import Answer, Answers, Task, Training
from support.command import Command
from support.runs import tiny

TWO_DOWN = ("fedcm", "mofedsam", "fedadc", "ghbm", "fedgmt", "fedgate", "fedcomgate")
TWO_BOTH = ("feddc", "scaffold", "fedgamma", "fedmoswa", "stem", "fedglomo", "fedsmoo", "mimelite", "feddane")
VECTORS = (
    dict.fromkeys(METHODS, (1, 1))
    | dict.fromkeys(TWO_DOWN, (2, 1))
    | dict.fromkeys(TWO_BOTH, (2, 2))
    | {"mime": (3, 2)}
)
"""Model-sized vectors down and up, per client and round; of two exchanges together."""
FIRST = ("mime", "mimelite", "feddane")
"""Methods of which one vector goes up in a first exchange, before there is an update to quantise."""
BESIDE = {
    "fednova": (0, 4),
    "stem": (4, 4),
    "fedproc": (4 * 3 * 4, 4 * 3 * 4 + 4 * 3),
    "fedgen": (4 * (64 * (3 + 32) + 64 + 4 * 64 + 4), 4 * 3),
}
"""Bytes beside the vectors: ‖a_i‖, a length of step, prototypes of three classes with their counts, a generator
of four features from three classes and 32 numbers by 64 hidden units, for counts of labels."""
KEPT = dict.fromkeys(METHODS, 0) | {
    **dict.fromkeys(("feddyn", "moon", "fedspeed", "fedgloss", "fedgmt", "scaffold", "fedgamma", "fedmoswa"), 1),
    **dict.fromkeys(("fedlesam", "fedinit", "fedgate", "fedcams", "fedcomgate"), 1),
    **dict.fromkeys(("feddc", "fedpd", "fedsmoo"), 2),
}
PARAMETERS = 5 * 4 + 4 + 4 * 3 + 3
UNCODED = [name for name in METHODS if not build(name).upload]
"""Methods whose uploads are the vectors' own bytes."""


def everybody(method: str) -> bool:
    return "full participation" in build(method).needs


def history(method: str, workers: int = 0) -> fedacg.Result:
    source = torch.Generator().manual_seed(1)
    clients: list[tuple[Tensor, Tensor]] = [
        (torch.randn(n, 5, generator=source), torch.arange(n) % 3) for n in (6, 4, 9, 5)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.build("mlp", classes=3, shape=(5,), hidden=[4])
    return fedacg.run(
        model=model,
        clients=clients,
        test=clients[0],
        method=method,
        rounds=2,
        cohorts=[range(4)] * 2 if everybody(method) else [[0, 2, 3], [1]],
        local_epochs=1,
        workers=workers,
    )


@pytest.mark.parametrize("method", UNCODED)
def test_bytes_are_vectors_times_four_times_the_cohort(method: str) -> None:
    (down, up), (more_down, more_up) = VECTORS[method], BESIDE.get(method, (0, 0))
    for metrics in history(method).history:
        assert metrics.bytes_down == (down * 4 * PARAMETERS + more_down) * len(metrics.cohort)
        assert metrics.bytes_up == (up * 4 * PARAMETERS + more_up) * len(metrics.cohort)


@pytest.mark.parametrize("method", UNCODED)
def test_a_quantised_upload_has_as_many_vectors_in_fewer_bits(method: str) -> None:
    (down, up), (more_down, more_up) = VECTORS[method], BESIDE.get(method, (0, 0))
    whole = 4 * PARAMETERS if method in FIRST else 0
    bits = (up - (method in FIRST)) * (4 + 512 * 4 // 8)  # one bucket: its scale, and four bits each
    for metrics in history(f"{method}+paq").history:
        assert metrics.bytes_down == (down * 4 * PARAMETERS + more_down) * len(metrics.cohort)
        assert metrics.bytes_up == (whole + bits + more_up) * len(metrics.cohort)


def test_counts_do_not_depend_on_the_engine() -> None:
    here, there = (history("feddc+paq", workers).history for workers in (0, 1))
    assert [(m.bytes_down, m.bytes_up) for m in here] == [(m.bytes_down, m.bytes_up) for m in there]


@pytest.mark.parametrize("method", METHODS)
def test_what_clients_keep_is_as_much_as_is_told(method: str, tmp_path: Path) -> None:
    all_of_them = ["cohort.size=0", "cohort.fraction=1"] if everybody(method) else []
    experiment = tiny(tmp_path, f"method.name={method}", "rounds=1", *all_of_them)
    ingredients = prepare(experiment)
    assert int(traffic_of(method).kept) == KEPT[method]
    answers: list[int] = []

    class Looking(SerialEngine):
        def train(self, broadcast, tasks: list[Task], kept):  # type: ignore[no-untyped-def, override]
            def looked() -> Iterator[Answers]:
                for group in training.answers:
                    if tasks[0].steps:
                        answers.extend(map(_kept_bytes, group))
                    yield group

            training = super().train(broadcast, tasks, kept)
            return Training(looked(), training.lost)

    play(experiment, ingredients, engine=Looking())
    size = 4 * sum(p.numel() for p in ingredients.module.parameters())
    assert {kept // size for kept in answers} == {KEPT[method]}
    assert len(answers) == (len(ingredients.data.clients) if everybody(method) else 3)


def _kept_bytes(answer: Answer) -> int:
    """Bytes that a client keeps."""
    return message_bytes(answer.keep)


@pytest.mark.parametrize("method", METHODS)
def test_the_program_tells_vectors_down_and_up_and_kept(
    method: str, fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = traffic_of(method)
    told = " ".join(fedacg("methods", method).out.split())
    assert f"{traffic.down:.3g} model-sized vectors down and {traffic.up:.3g} up" in told, told
