"""What crosses the network: bytes a round for every method, as METHODS has them, counted and told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedacg
from fedacg import models
from fedacg.core.messages import message_bytes
from fedacg.engines.serial import SerialEngine
from fedacg.methods import METHODS
from fedacg.runs.build import prepare
from fedacg.runs.runner import play
from fedacg.runs.traffic import traffic_of
from fedacg.simulation.engine import Answer, Answers, Task, Training
from support.command import Command
from support.runs import tiny

VECTORS = dict.fromkeys(METHODS, (1, 1)) | {"fedcm": (2, 1), "feddc": (2, 2)}
"""Model-sized vectors down and up, per client and round."""
KEPT = dict.fromkeys(METHODS, 0) | {"feddyn": 1, "moon": 1, "feddc": 2}
PARAMETERS = 5 * 4 + 4 + 4 * 3 + 3


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
        cohorts=[[0, 2, 3], [1]],
        local_epochs=1,
        workers=workers,
    )


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_vectors_times_four_times_the_cohort(method: str) -> None:
    down, up = VECTORS[method]
    for metrics, cohort in zip(history(method).history, (3, 1), strict=True):
        assert metrics.bytes_down == down * 4 * PARAMETERS * cohort
        assert metrics.bytes_up == up * 4 * PARAMETERS * cohort


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_upload_has_as_many_vectors_in_fewer_bits(method: str) -> None:
    down, up = VECTORS[method]
    for metrics, cohort in zip(history(f"{method}+paq").history, (3, 1), strict=True):
        assert metrics.bytes_down == down * 4 * PARAMETERS * cohort
        assert metrics.bytes_up == up * (4 + 512 * 4 // 8) * cohort, "one bucket: its scale, and four bits each"


def test_counts_do_not_depend_on_the_engine() -> None:
    here, there = (history("feddc+paq", workers).history for workers in (0, 1))
    assert [(m.bytes_down, m.bytes_up) for m in here] == [(m.bytes_down, m.bytes_up) for m in there]


@pytest.mark.parametrize("method", METHODS)
def test_what_clients_keep_is_as_much_as_is_told(method: str, tmp_path: Path) -> None:
    experiment = tiny(tmp_path, f"method.name={method}", "rounds=1")
    ingredients = prepare(experiment)
    assert traffic_of(method).kept == KEPT[method]
    answers: list[int] = []

    class Looking(SerialEngine):
        def train(self, broadcast, tasks: list[Task], kept):  # type: ignore[no-untyped-def, override]
            def looked() -> Iterator[Answers]:
                for group in training.answers:
                    answers.extend(map(_vectors, group))
                    yield group

            training = super().train(broadcast, tasks, kept)
            return Training(looked(), training.lost)

    play(experiment, ingredients, engine=Looking())
    assert answers == [KEPT[method]] * 3


def _vectors(answer: Answer) -> int:
    """Model-sized vectors that a client keeps."""
    size = message_bytes({"delta": answer.upload["delta"]})
    return message_bytes(answer.keep) // size


@pytest.mark.parametrize("method", METHODS)
def test_the_program_tells_vectors_down_and_up_and_kept(
    method: str, fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    down, up = VECTORS[method]
    (line,) = [line for line in fedacg("methods", "--details").out.splitlines() if line.startswith(f"{method} ")]
    assert line.split()[-2:] == [f"{down}/{up}", str(KEPT[method])]
