"""Whatever a node replies, only what was asked for reaches θ; the rest is refused and logged with its sender."""

import io
import logging
import pickle
import tomllib
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedacg.config.experiment import Experiment
from fedacg.errors import InputError
from fedacg.flower.checks import Refused
from fedacg.flower.records import Order, order, read_announcement, read_order, read_tested
from fedacg.runs.build import prepare
from fedacg.runs.runner import play
from support.flower_grid import LoopGrid, Trial, node_id

COHORT = "cohort.size=3"
POISONED = 1


def with_delta(change: Callable[[NDArray[Any]], Any]) -> Callable[[Message], Message]:
    """The reply with other numbers, or another array, for Δ."""

    def tamper(reply: Message) -> Message:
        arrays = dict(reply.content.array_records["arrays"])
        changed = change(arrays["delta"].numpy().copy())
        arrays["delta"] = changed if isinstance(changed, Array) else Array(changed)
        return with_records(reply, arrays=ArrayRecord(arrays))

    return tamper


def with_metrics(**changes: Any) -> Callable[[Message], Message]:
    def tamper(reply: Message) -> Message:
        metrics = dict(reply.content.metric_records["metrics"])
        metrics.update({key.replace("_", "-"): value for key, value in changes.items()})
        return with_records(reply, metrics=MetricRecord(metrics))

    return tamper


def with_records(reply: Message, **records: Any) -> Message:
    reply.content = RecordDict({**reply.content, **records})
    return reply


def first_float(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(payload: NDArray[Any]) -> NDArray[Any]:
        payload.view(np.float32)[0] = value
        return payload

    return change


def all_floats(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda payload: np.full(payload.size // 4, value, np.float32).view(np.uint8)


class Bomb:
    """Writes a file when it is unpickled."""

    path = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def pickled_objects(payload: NDArray[Any]) -> Array:
    """An object array in NumPy's own format, which is a pickle."""
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()] * payload.size, dtype=object), allow_pickle=True)
    return Array("uint8", payload.shape, "numpy.ndarray", stream.getvalue())


def claims_to_be_huge(payload: NDArray[Any]) -> Array:
    """A header that asks for 4 TB, and no numbers."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (2**42,)})
    return Array("uint8", payload.shape, "numpy.ndarray", stream.getvalue())


def renamed(reply: Message) -> Message:
    arrays = dict(reply.content.array_records["arrays"])
    arrays["gamma"] = arrays.pop("delta")
    return with_records(reply, arrays=ArrayRecord(arrays))


def without_buffers(reply: Message) -> Message:
    arrays = {"delta": reply.content.array_records["arrays"]["delta"]}
    return with_records(reply, arrays=ArrayRecord(arrays))


def one_more_array(reply: Message) -> Message:
    arrays = dict(reply.content.array_records["arrays"])
    return with_records(reply, arrays=ArrayRecord({**arrays, "more": arrays["delta"]}))


POISONS: dict[str, tuple[Callable[[Message], Message], str]] = {
    "NaN": (with_delta(first_float(np.nan)), "has the norm nan"),
    "infinite": (with_delta(first_float(-np.inf)), "has the norm inf"),
    "huge numbers": (with_delta(all_floats(3e38)), "at most 1e+06 is accepted"),
    "one number too few": (with_delta(lambda payload: payload[:-4]), "has shape"),
    "another type": (with_delta(lambda payload: payload.astype(np.int64)), "bytes, at most"),
    "a matrix": (with_delta(lambda payload: payload.reshape(2, -1)), "has shape (2, "),
    "a huge vector": (with_delta(lambda payload: np.zeros(50_000_000, np.uint8)), "bytes, at most"),
    "a huge claim": (with_delta(claims_to_be_huge), "has shape (4398046511104,)"),
    "a pickle": (
        with_delta(lambda payload: Array("uint8", payload.shape, "numpy.ndarray", pickle.dumps(Bomb()))),
        "is not in NumPy's format",
    ),
    "a pickle by name": (
        with_delta(lambda payload: Array("object", payload.shape, "pickle", pickle.dumps(Bomb()))),
        "is a 'pickle'",
    ),
    "an array of pickles": (with_delta(pickled_objects), "has type object"),
    "a wrong name": (renamed, "array 'delta' is missing"),
    "an array missing": (without_buffers, "array 'buffers' is missing"),
    "an array too many": (one_more_array, "array 'more' was not asked for"),
    "a record too many": (
        lambda reply: with_records(reply, more=ConfigRecord({"a": ""})),
        "'arrays, metrics, more'",
    ),
    "a record of another kind": (
        lambda reply: with_records(reply, arrays=ConfigRecord({"a": pickle.dumps(Bomb())})),
        "not what was asked for",
    ),
    "no metrics": (lambda reply: with_records(reply, metrics=MetricRecord()), "its metrics are not"),
    "no examples": (with_metrics(num_examples=0), "num-examples is 0"),
    "fewer than no examples": (with_metrics(num_examples=-5), "num-examples is -5"),
    "too many examples": (with_metrics(num_examples=10**12), "num-examples is 1e+12"),
    "NaN examples": (with_metrics(num_examples=float("nan")), "num-examples is nan"),
    "a list of examples": (with_metrics(num_examples=[100, 100]), "num-examples is [100, 100]"),
    "NaN loss": (with_metrics(loss=float("nan")), "loss is nan"),
}


@lru_cache
def honest_digest(experiment: str, cohort: tuple[int, ...]) -> str:
    """How the experiment ends when only these clients are ever asked."""
    described = Experiment.parse(tomllib.loads(experiment))
    found: str = play(described, prepare(described), cohorts=[cohort] * described.rounds).summary["vector_sha256"]
    return found


def assert_refused(trial: Trial, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """The poisoned client's part is as if it had not been asked; the log and the metrics say why."""
    others = [client for client in range(3) if client != POISONED]
    assert trial.digest == honest_digest(trial.experiment.to_toml(), tuple(others))
    for line in trial.rounds:
        assert line["cohort"] == [0, 1, 2]
        assert line["answered"] == others
        assert list(line["lost"]) == [str(POISONED)]
        assert reason in line["lost"][str(POISONED)]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == trial.experiment.rounds
    assert all(f"client {POISONED} at node {node_id(POISONED)}: " in line and reason in line for line in warnings)


@pytest.mark.parametrize("poison", POISONS)
def test_a_poisoned_reply_never_reaches_the_model(
    poison: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bomb, "path", str(tmp_path / "exploded"))
    tamper, reason = POISONS[poison]
    trial = Trial(tmp_path, COHORT, "rounds=2")
    grid = trial.grid()
    grid.nodes[node_id(POISONED)].tamper = tamper
    trial.federate(grid)
    assert_refused(trial, reason, caplog)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("method", ["fedacg+paq", "feddc", "feddyn", "fedcm"])
def test_the_second_vector_quantised_vectors_and_states_are_guarded_too(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """NaN in the last vector that is sent, which for +paq is the scale of a bucket."""

    def tamper(reply: Message) -> Message:
        arrays = {name: array.numpy().copy() for name, array in reply.content.array_records["arrays"].items()}
        last = "g" if "g" in arrays else "delta"
        arrays[last].view(np.float32)[0] = np.nan
        return with_records(reply, arrays=ArrayRecord({name: Array(value) for name, value in arrays.items()}))

    trial = Trial(tmp_path, COHORT, "rounds=3", f"method.name={method}")
    grid = trial.grid()
    grid.nodes[node_id(POISONED)].tamper = tamper
    trial.federate(grid)
    assert_refused(trial, "has the norm nan", caplog)


Parcel = dict[str, bytes]


def kind(part: bytes) -> bytes:
    """What the head of one of Flower's objects says it is."""
    return part.partition(b" ")[0]


def without_chunks(parcel: Parcel) -> Parcel:
    return {key: part for key, part in parcel.items() if kind(part) != b"ArrayChunk"}


def with_other_bodies(of: bytes, body: bytes) -> Callable[[Parcel], Parcel]:
    def change(parcel: Parcel) -> Parcel:
        heads = {key: part.partition(b"\x00")[0] + b"\x00" for key, part in parcel.items()}
        return {key: heads[key] + body if kind(part) == of else part for key, part in parcel.items()}

    return change


def of_no_kind(parcel: Parcel) -> Parcel:
    return {key: part.replace(b"MetricRecord", b"Metric_ecord", 1) for key, part in parcel.items()}


@pytest.mark.parametrize(
    "garble",
    [
        without_chunks,
        of_no_kind,
        with_other_bodies(b"MetricRecord", b"\xff\xff\xff"),
        with_other_bodies(b"Array", b"[1, 2"),
        with_other_bodies(b"Array", b"[]"),
        with_other_bodies(b"Array", b'{"arraychunk_ids": [7], "dtype": 1, "shape": 2, "stype": 3}'),
        with_other_bodies(b"RecordDict", b"\xff"),
        with_other_bodies(b"Message", b"\xff\xff"),
    ],
)
def test_a_reply_that_flower_cannot_read_costs_its_sender_only(
    garble: Callable[[Parcel], Parcel], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Garbled(LoopGrid):
        def _deliver(self, message: Message) -> str:
            identity = super()._deliver(message)
            if (message.metadata.message_type, message.metadata.dst_node_id) == ("train", node_id(POISONED)):
                reply, parcel = self._replies[identity]
                self._replies[identity] = reply, garble(parcel)
            return identity

    trial = Trial(tmp_path, COHORT, "rounds=2")
    trial.federate(Garbled(trial.grid().nodes))
    assert_refused(trial, "it cannot be read: ", caplog)


def test_a_superlink_that_is_gone_is_no_fault_of_a_node(tmp_path: Path) -> None:
    class Gone(LoopGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            raise ConnectionError("no route")

    trial = Trial(tmp_path)
    with pytest.raises(ConnectionError):
        trial.federate(Gone(trial.grid().nodes))


def test_a_node_that_raises_costs_its_update_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def raising(reply: Message) -> Message:
        raise ValueError("out of\nmemory")

    trial = Trial(tmp_path, COHORT, "rounds=2")
    grid = trial.grid()
    grid.nodes[node_id(POISONED)].tamper = raising
    trial.federate(grid)
    assert_refused(trial, "out of memory", caplog)


def test_an_update_may_be_as_long_as_max_norm_and_no_longer(tmp_path: Path) -> None:
    trial = Trial(tmp_path, COHORT, "rounds=1")
    trial.federate(trial.grid(), max_norm=1e-9)
    assert trial.rounds[0]["answered"] == []
    assert all("at most 1e-09 is accepted" in reason for reason in trial.rounds[0]["lost"].values())


def test_a_node_keeps_nothing_outside_its_own_folder() -> None:
    words = Order(federation="../../home", clients=3, client=0, classes=2)
    with pytest.raises(InputError, match="must be letters and digits"):
        read_order(order(ArrayRecord(), words))


GOOD = {"client": 0, "examples": 5, "tests": 2, "classes": 3, "shape": [4], "version": "1"}


@pytest.mark.parametrize(
    "change",
    [
        {"examples": 0},
        {"examples": -1},
        {"examples": 10**10},
        {"examples": 5.0},
        {"examples": True},
        {"tests": -1},
        {"tests": 10**10},
        {"tests": "2"},
        {"classes": -1},
        {"classes": 10**7},
        {"shape": [0]},
        {"shape": [4.5]},
        {"shape": "4"},
        {"shape": [4] * 9},
        {"shape": [10**13]},
        {"shape": [10**5, 10**5]},
        {"client": True},
        {"client": ""},
        {"client": "a\nb"},
        {"client": "x" * 65},
        {"client": b"x"},
        {"version": 1},
    ],
)
def test_an_announcement_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    assert read_announcement(RecordDict({"client": ConfigRecord({**GOOD})})).examples == 5  # type: ignore[dict-item]
    with pytest.raises(Refused):
        read_announcement(RecordDict({"client": ConfigRecord({**GOOD, **change})}))


@pytest.mark.parametrize(
    ("examples", "loss", "correct"),
    [
        (10, 1.0, 11),
        (10, 1.0, -1),
        (-1, 1.0, -1),
        (11, 1.0, 5),
        (9, 1.0, 5),
        (10**9, 1.0, 5),
        (10, float("inf"), 5),
        (10, 1e30, 5),
        (10, -1e30, 5),
        (10.5, 1.0, 5),
        (10, 1.0, 0.5),
    ],
)
def test_a_test_result_that_cannot_be_is_refused(examples: float, loss: float, correct: float) -> None:
    metrics = MetricRecord({"num-examples": examples, "loss": loss, "correct": correct})
    with pytest.raises(Refused):
        read_tested(RecordDict({"metrics": metrics}), tests=10)
