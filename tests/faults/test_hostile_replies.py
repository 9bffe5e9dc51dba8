"""Whatever one node replies, it is refused by name and the round goes on with the honest; nothing is believed.

Replies are generated: wrong types, shapes, kinds and counts, numbers that are not finite or far too large, sizes
that are only claimed, control characters, duplicates, other orders.
"""

import io
import json
import logging
import random
import resource
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from fedacg.config.experiment import Experiment
from fedacg.core.round import Round
from fedacg.flower import FedACG
from fedacg.flower.checks import Refused
from fedacg.flower.records import UploadReader, read_announcement, read_tested
from fedacg.runs.build import make_job, prepare
from fedacg.runs.runner import play
from fedacg.simulation.engine import Task
from support.flower_grid import OWN, TINY, LoopGrid, Node, Trial, node_id, write_clients
from support.flower_nodes import Nodes, record, replying

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\nINFO :      round 9 of 9: all well\u202e"
LIAR = 1
MOST_MEMORY = 300 * 2**20
"""Bytes that a server may take for all replies of a liar, which are of a few kilobytes."""

# Replies that are never right


def npy(descr: str, shape: Any, data: bytes = b"") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


names = st.sampled_from(["delta", "buffers", "arrays", "", "x" * 2000, ESCAPES, "../../etc/passwd", "𝔡"])
numbers = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(),
    st.sampled_from([0, -1, 10**9, 1e30, float("inf"), float("nan"), 2**62, 0.5, -0.0]),
)
small_arrays = st.builds(
    lambda kind, shape, value: np.full(shape, value).astype(kind),
    st.sampled_from(["f2", "f4", "f8", "i4", "i8", "u1", "?", "c8", "S4", "U2"]),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
    st.sampled_from([0, 1, 255]),
)
claimed_arrays = st.builds(
    lambda descr, shape, data, stype: Array("uint8", (1,), stype, npy(descr, shape, data)),
    st.sampled_from(["|u1", "<f4", "<f8", "|O", "<U9", "|V8"]),
    st.sampled_from([(2**42,), (10**13,), (2**31, 2**31), (-1,), (0,), (), (1,) * 40]),
    st.binary(max_size=64),
    st.sampled_from(["numpy.ndarray", "numpy.ndarray", "pickle", ESCAPES]),
)
raw_arrays = st.builds(lambda data: Array("uint8", (1,), "numpy.ndarray", data), st.binary(max_size=200))
arrays = st.one_of(small_arrays.map(Array), claimed_arrays, raw_arrays)
array_records = st.dictionaries(names, arrays, max_size=4).map(ArrayRecord)
metric_values = st.one_of(numbers, st.lists(st.floats(), min_size=1, max_size=5))
metric_records = st.dictionaries(
    st.one_of(st.sampled_from(["num-examples", "loss", "correct"]), names.filter(bool)), metric_values, max_size=5
).map(MetricRecord)
config_values = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(),
    st.booleans(),
    st.text(max_size=80),
    st.just(ESCAPES),
    st.binary(max_size=80),
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=12),
)
config_records = st.dictionaries(
    st.sampled_from(["client", "examples", "tests", "classes", "shape", "version", "more"]),
    config_values,
    max_size=7,
).map(ConfigRecord)
contents = st.dictionaries(
    st.one_of(st.sampled_from(["arrays", "metrics", "client", "order"]), names.filter(bool)),
    st.one_of(array_records, metric_records, config_records),
    max_size=4,
).map(RecordDict)


def assert_readable(reason: str) -> None:
    assert reason.isprintable()
    assert len(reason) <= 301


@lru_cache
def reader() -> UploadReader:
    experiment = Experiment.parse(tomllib.loads(TINY))
    return UploadReader(make_job(experiment, prepare(experiment)), max_norm=1e6)


@given(contents)
@settings(max_examples=400)
def test_what_was_not_asked_for_is_refused_in_words_that_can_be_logged(content: RecordDict) -> None:
    for read in (
        lambda: reader().read(content, Task(Round(1, 3, 2, 0.1, 0), 0, 5), 480),
        lambda: read_tested(content, 10),
        lambda: read_announcement(content),
    ):
        try:
            read()
        except Refused as reason:
            assert_readable(str(reason))


# The complete app


Tamper = Callable[[Message], Message]


@st.composite
def tampers(draw: st.DrawFn) -> Tamper:
    """Something that makes an honest reply one that must be refused."""
    kind = draw(st.sampled_from(["content", "delta", "array", "metric", "record", "raise"]))
    if kind == "content":
        content = draw(contents.filter(lambda found: set(found) != {"arrays", "metrics"}))
        return lambda reply: changed(reply, content)
    if kind == "delta":
        value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e30, 3e38, -1e30, 1000.0, 1e6]))
        return lambda reply: with_delta(reply, value)
    if kind == "array":
        name = draw(st.sampled_from(["delta", "buffers", "more", ESCAPES]))
        # The model has no buffers, so that an empty vector of them is the honest one.
        array = draw(claimed_arrays.filter(lambda array: b"'shape': (0,)" not in array.data))
        return lambda reply: with_array(reply, name, array)
    if kind == "metric":
        name = draw(st.sampled_from(["num-examples", "loss"]))
        bad = [-1e30, 1e30, float("nan"), float("inf"), [1.0, 2.0], 10**9 if name == "num-examples" else 1e7]
        value = draw(st.sampled_from(bad))
        return lambda reply: with_metric(reply, name, value)
    if kind == "record":
        name, extra = draw(names.filter(bool)), draw(st.one_of(array_records, metric_records, config_records))
        if name in ("arrays", "metrics"):
            name = "more"
        return lambda reply: changed(reply, RecordDict({**reply.content, name: extra}))
    return lambda reply: Message(Error(code=1, reason=ESCAPES * 50), reply_to=reply)


def changed(reply: Message, content: RecordDict) -> Message:
    reply.content = content
    return reply


def with_delta(reply: Message, value: float) -> Message:
    size = reply.content.array_records["arrays"]["delta"].numpy().size // 4
    return with_array(reply, "delta", Array(np.full(size, value, np.float32).view(np.uint8)))


def with_array(reply: Message, name: str, array: Array) -> Message:
    found = dict(reply.content.array_records["arrays"])
    return changed(reply, RecordDict({**reply.content, "arrays": ArrayRecord({**found, name: array})}))


def with_metric(reply: Message, name: str, value: Any) -> Message:
    found = dict(reply.content.metric_records["metrics"])
    return changed(reply, RecordDict({**reply.content, "metrics": MetricRecord({**found, name: value})}))


ROUNDS = 15


@lru_cache
def honest_digest(experiment: str) -> str:
    described = Experiment.parse(tomllib.loads(experiment))
    cohorts = [[0, 2]] * described.rounds
    found: str = play(described, prepare(described), cohorts=cohorts).summary["vector_sha256"]
    return found


@pytest.mark.slow
@given(st.lists(tampers(), min_size=ROUNDS, max_size=ROUNDS))
@settings(max_examples=15)
def test_the_rounds_of_the_complete_app_go_on_with_the_honest(
    tmp_path_factory: pytest.TempPathFactory, lies: list[Tamper]
) -> None:
    trial = Trial(tmp_path_factory.mktemp("trial"), "cohort.size=3", f"rounds={ROUNDS}")
    grid = trial.grid()

    def lie(round: int, node: int) -> None:
        grid.nodes[node_id(LIAR)].tamper = lies[round - 1]

    grid.before_train = lie
    with Listening() as heard:
        trial.federate(grid)
    assert [line["answered"] for line in trial.rounds] == [[0, 2]] * ROUNDS
    assert trial.digest == honest_digest(trial.experiment.to_toml())
    assert len(heard.warnings) == ROUNDS
    for round, (words, line) in enumerate(zip(heard.warnings, trial.rounds, strict=True), start=1):
        assert words.startswith(f"round {round}: nothing from client {LIAR} at node {node_id(LIAR)}: ")
        assert words.isprintable()
        assert_readable(line["lost"][str(LIAR)])


class Listening(logging.Handler):
    """What is logged while it listens."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))

    def __enter__(self) -> "Listening":
        logging.getLogger("flwr").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("flwr").removeHandler(self)

    @property
    def warnings(self) -> list[str]:
        return [words for level, words in self.lines if level >= logging.WARNING]


def test_each_reply_counts_once_and_only_from_the_node_that_was_asked(tmp_path: Path) -> None:
    @dataclass
    class Echoing(LoopGrid):
        """Delivers every reply three times, after one that another node has sent in its place."""

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            found = list(super().pull_messages(message_ids))
            forged = [Message(RecordDict(), reply_to=query(77)) for _ in found]
            return [*forged, *found, *found, *found]

    def query(node: int) -> Message:
        return Message(RecordDict(), node, MessageType.TRAIN)

    trial = Trial(tmp_path, "cohort.size=3", "rounds=2")
    trial.federate(Echoing(trial.grid().nodes))
    assert [line["answered"] for line in trial.rounds] == [[0, 1, 2]] * 2
    assert trial.digest == trial.simulate().summary["vector_sha256"]


# Nodes that lie about themselves


HONEST = {"client": "z", "examples": 10, "tests": 3, "classes": 3, "shape": [4], "version": "1"}


@dataclass
class Liar:
    """A node that says of itself what it likes, and trains as an honest one."""

    honest: Node
    said: ConfigRecord
    tested: dict[str, float] = field(default_factory=dict)

    def __call__(self, message: Message, context: Any) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return Message(RecordDict({"client": self.said}), reply_to=message)
        reply = self.honest.app(message, context)
        if message.metadata.message_type == MessageType.EVALUATE and self.tested:
            reply.content = RecordDict({"metrics": MetricRecord(self.tested)})
        return reply


def with_liar(folder: Path, lies: dict[str, Any], *settings: str, others: int = 3) -> tuple[Trial, LoopGrid]:
    write_clients(folder / "data", dict.fromkeys(("c", "d", "e", "z")[-1 - others :], 10))
    trial = Trial(folder, *settings, text=OWN)
    nodes = {
        number: trial.node(data=str(path))
        for number, path in enumerate(sorted((folder / "data").iterdir()), start=5)
    }
    grid = LoopGrid(nodes)
    *_, last = nodes
    said = {**HONEST, **lies}
    honest = trial.node(data=str(folder / "data" / "z"))
    grid.nodes[last].app = Liar(honest, ConfigRecord({key: value for key, value in said.items() if value != []}))  # type: ignore[assignment]
    return trial, grid


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "a million classes": ({"classes": 10**6}, "it has 1000000 classes, the federation 3"),
    "ten thousand classes": ({"classes": 10**4}, "it has 10000 classes, the federation 3"),
    "a billion examples": ({"examples": 10**9}, "it has 1000000000 examples, at most 1000 are accepted"),
    "a billion tests": ({"tests": 10**9}, "it has 1000000000 test examples, at most 300 are accepted"),
    "inputs of 10^13 numbers": ({"shape": [10**13]}, "numbers are accepted"),
    "inputs that overflow": ({"shape": [2**62, 2**62]}, "numbers are accepted"),
    "inputs for a huge network": ({"shape": [9 * 10**7]}, "the network has 2.7e+08 parameters, at most 1e+08"),
    "no inputs": ({"shape": [0]}, "the shape of its examples is not one to"),
    "control characters in its name": ({"client": f"z{ESCAPES}"}, "its name is not one of 1 to 64 printable"),
    "a number for a name": ({"client": 3}, "it is client 3, expected a node with its own data"),
    "no version": ({"version": []}, "its version is not a string"),
}


@pytest.mark.parametrize("others", [2, 3])
@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_about_itself_is_left_out_and_named(lie: str, others: int, tmp_path: Path) -> None:
    lies, reason = LIES[lie]
    trial, grid = with_liar(tmp_path, lies, "rounds=2", others=others)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Listening() as heard:
        trial.federate(grid, nodes=others)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY / 1024
    assert [len(line["answered"]) for line in trial.rounds] == [others] * 2
    assert all("lost" not in line for line in trial.rounds)
    members = json.loads((trial.out / "federation.json").read_text())
    assert (members["classes"], members["shape"]) == (3, [4])
    named = [words for words in heard.warnings if words.startswith(f"node {5 + others} cannot take part: ")]
    assert len(named) == 1
    assert reason in named[0]
    assert all(words.isprintable() for _, words in heard.lines)


def test_of_two_nodes_a_first_one_with_absurd_classes_does_not_keep_the_other_out(tmp_path: Path) -> None:
    trial, grid = with_liar(tmp_path, {"client": "a", "classes": 10**6}, "rounds=1", others=1)
    trial.federate(grid, nodes=2)
    assert trial.rounds[0]["answered"] == [0]
    assert json.loads((trial.out / "federation.json").read_text())["classes"] == 3


def test_two_nodes_that_disagree_on_the_shape_end_in_a_question_and_an_option_answers_it(tmp_path: Path) -> None:
    trial, grid = with_liar(tmp_path, {"client": "a", "shape": [5]}, "rounds=1", others=1)
    with pytest.raises(ValueError, match=r"client 'a' has \(5,\); client 'e' has \(4,\); set shape="):
        trial.federate(grid, nodes=2)
    trial.federate(grid, nodes=2, shape="4")
    assert trial.rounds[0]["answered"] == [0]


def test_control_characters_in_a_version_do_not_reach_the_log(tmp_path: Path) -> None:
    trial, grid = with_liar(tmp_path, {"version": f"9{ESCAPES}" + "x" * 1000}, "rounds=1")
    with Listening() as heard:
        trial.federate(grid, nodes=4)
    (words,) = [words for words in heard.warnings if "has fedacg 9" in words]
    assert words.isprintable()
    assert len(words) < 150


@pytest.mark.parametrize(
    ("tested", "reason"),
    [
        (
            {"num-examples": 10**9, "loss": 1.0, "correct": 10**9},
            "num-examples is 1e+09, the node announced 3 tests",
        ),
        ({"num-examples": 3, "loss": 1e30, "correct": 0}, "loss is 1e+30"),
        ({"num-examples": 3, "loss": 1.0, "correct": 4}, "4 of 3 examples cannot be right"),
    ],
)
def test_a_lie_about_a_test_is_left_out_and_named(tested: dict[str, float], reason: str, tmp_path: Path) -> None:
    trial, grid = with_liar(tmp_path, {}, "rounds=1")
    grid.nodes[8].app.tested = tested  # type: ignore[attr-defined]
    with Listening() as heard:
        trial.federate(grid, nodes=4)
    (words,) = [words for words in heard.warnings if words.startswith("no test result from client 3 at node 8: ")]
    assert reason in words
    assert trial.rounds[0]["test_accuracy"] * 9 == pytest.approx(round(trial.rounds[0]["test_accuracy"] * 9))


def test_one_long_update_is_refused_by_name_also_after_a_restart(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "cohort.size=3", "rounds=3")
    grid = trial.grid()

    class Stopped(BaseException):
        """Stands for a server that is killed."""

    def stop(round: int, node: int) -> None:
        if round == 3:
            raise Stopped

    grid.before_train = stop
    with pytest.raises(Stopped):
        trial.federate(grid)
    again = trial.grid([0, LIAR])
    again.nodes[node_id(LIAR)].tamper = lambda reply: with_delta(
        reply, 1.0
    )  # of norm √610, some 30 times too long
    with Listening() as heard:
        trial.federate(again, nodes=2)
    assert trial.rounds[2]["answered"] == [0]
    assert "more than 20 times the usual" in trial.rounds[2]["lost"][str(LIAR)]
    assert any(
        f"client {LIAR} at node {node_id(LIAR)}: the norm of array 'delta' is " in w for w in heard.warnings
    )


def test_the_bound_on_norms_can_be_switched_off(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "cohort.size=3", "rounds=1")
    grid = trial.grid()
    grid.nodes[node_id(LIAR)].tamper = lambda reply: with_delta(reply, 40.0)
    trial.federate(grid, norm_factor=0)
    assert trial.rounds[0]["answered"] == [0, 1, 2]


# The strategy for other apps


W = np.array([[1.0, -2.0], [0.5, 4.0]])
START = {"w": W, "n": np.array([3], np.int64), "bn.running_mean": np.array([0.5, 1.0], np.float32)}


def moved(by: float) -> dict[str, Any]:
    return {"w": W + by, "n": START["n"] + 5, "bn.running_mean": START["bn.running_mean"] + np.float32(0.1)}


GOOD = [replying(moved(0.1)), replying(moved(-0.3), num_examples=4)]


def outcome(nodes: list[Any], shuffle: random.Random | None = None, copies: int = 1, **options: Any) -> list[Any]:
    """Arrays and momentum of a federation after three rounds, in whatever order and number replies come."""

    class Grid(Nodes):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            replies = [reply for reply in super().send_and_receive(messages) for _ in range(copies)]
            if shuffle:
                shuffle.shuffle(replies)
            return replies

    strategy = FedACG(**options)
    result = strategy.start(grid=Grid(nodes), initial_arrays=record(START), num_rounds=3)
    return [*(result.arrays[name].numpy() for name in START), strategy.momentum["w"]]


@st.composite
def lying(draw: st.DrawFn) -> RecordDict:
    """What a node may send in place of the arrays, that must never count."""
    kind = draw(st.sampled_from(["content", "values", "array", "metric", "count", "more"]))
    metrics: dict[str, Any] = {"num-examples": 1}
    values: dict[str, Any] = {name: Array(value) for name, value in moved(0.1).items()}
    if kind == "content":
        return draw(contents)
    if kind == "values":
        name = draw(st.sampled_from(["w", "bn.running_mean", "n"]))
        bad = [10**15, 2**61] if name == "n" else [1e30, -1e30, 1e12, 1000.0, np.nan, np.inf]
        value = draw(st.sampled_from(bad))
        values[name] = Array(np.full_like(START[name], value))
    elif kind == "array":
        values[draw(st.sampled_from(["w", "n", "more", ESCAPES]))] = draw(claimed_arrays)
    elif kind == "metric":
        metrics["loss"] = draw(st.sampled_from([float("nan"), float("inf"), [1.0, float("nan")]]))
    elif kind == "count":
        metrics["num-examples"] = draw(st.sampled_from([0, -1, 10**9, 10**6, 1e30, float("nan"), [1.0]]))
    else:
        metrics[draw(st.sampled_from(["boom", ESCAPES]))] = 1.0
    return RecordDict({"arrays": ArrayRecord(values), "metrics": MetricRecord(metrics)})


@pytest.mark.slow
@given(lying())
@settings(max_examples=120)
def test_a_strategy_goes_on_with_the_honest(content: RecordDict) -> None:
    def liar(message: Message) -> Message:
        return Message(content, reply_to=message)

    with Listening() as heard:
        found = outcome([*GOOD, liar])
    for value, expected in zip(found, outcome([*GOOD]), strict=True):
        assert_array_equal(value, expected)
    named = [words for words in heard.warnings if words.startswith("refused the reply of node 103: ")]
    assert len(named) >= 3
    assert all(words.isprintable() for words in named)


def test_the_order_of_replies_is_nothing_to_a_strategy_and_copies_of_them_count_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = outcome([*GOOD])
    for seed in range(5):
        for value, same in zip(outcome([*GOOD], random.Random(seed), copies=3), expected, strict=True):
            np.testing.assert_allclose(value, same, rtol=1e-12)
    assert "refused the reply of node 102: it has answered already" in caplog.text


def test_a_reply_of_a_node_that_was_not_asked_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    class Grid(Nodes):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            stranger = Message(RecordDict(), 666, MessageType.TRAIN)
            return [GOOD[1](stranger), *super().send_and_receive(messages)]

    strategy = FedACG(fraction_evaluate=0.0)
    result = strategy.start(grid=Grid(GOOD), initial_arrays=record(START), num_rounds=3)
    assert_array_equal(result.arrays["w"].numpy(), outcome([*GOOD], fraction_evaluate=0.0)[0])
    assert "refused the reply of node 666: it was not asked" in caplog.text


@pytest.mark.parametrize("first", [True, False])
def test_a_hostile_naming_of_metrics_does_not_have_the_one_honest_node_refused(first: bool) -> None:
    hostile = replying(moved(0.1), boom=1.0)
    honest = replying(moved(-0.3), num_examples=4, loss=0.5)
    expected = outcome([*GOOD])
    for value, same in zip(outcome([hostile, honest] if first else [honest, hostile]), expected, strict=True):
        np.testing.assert_allclose(value, same, rtol=1e-12)


def test_errors_of_nodes_reach_the_log_of_flower_without_control_characters() -> None:
    def failing(message: Message) -> Message:
        return Message(Error(code=1, reason=ESCAPES * 100), reply_to=message)

    with Listening() as heard:
        outcome([*GOOD, failing])
    errors = [words for _, words in heard.lines if "node 103" in words]
    assert len(errors) >= 3
    assert all(words.strip().isprintable() and len(words) < 300 for words in errors)
