"""What a poisoned node may send: the round goes on as if it were not there, and the log names it."""

import pickle
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from numpy.testing import assert_allclose, assert_array_equal

from fedacg.flower import FedACG
from fedacg.flower.checks import fault
from support.flower_nodes import Node, Nodes, answer, record, replying

W, B = np.array([[1.0, -2.0], [0.5, 4.0]]), np.array([3.0, 1.0], np.float32)
START = {"w": W, "b": B}
GOOD = [replying({"w": W + 1, "b": B + 1}), replying({"w": W - 3, "b": B}, num_examples=4)]


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def npy(value: Any, allow_pickle: bool = False) -> bytes:
    stream = BytesIO()
    np.save(stream, value, allow_pickle=allow_pickle)
    return stream.getvalue()


def array(data: bytes, stype: str = "numpy.ndarray") -> Array:
    """An array that claims to be what is expected of `w`, whatever its bytes are."""
    return Array(dtype="float64", shape=(2, 2), stype=stype, data=data)


def claiming(shape: tuple[int, ...]) -> bytes:
    """The bytes of w under a header that says something else."""
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue() + W.tobytes()


def archive() -> bytes:
    stream = BytesIO()
    np.savez(stream, w=W)
    return stream.getvalue()


def with_w(make: Callable[[], Any]) -> Callable[[], RecordDict]:
    """A reply in which everything is right but `w`."""

    def content() -> RecordDict:
        w = make()
        arrays = {"w": w if isinstance(w, Array) else Array(w), "b": Array(B)}
        return RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})})

    return content


def with_metrics(**metrics: Any) -> Callable[[], RecordDict]:
    """A reply in which everything is right but the metrics."""
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return lambda: RecordDict({"arrays": record(START), "metrics": MetricRecord(named)})


def with_arrays(**arrays: Any) -> Callable[[], RecordDict]:
    return lambda: RecordDict({"arrays": record(arrays), "metrics": MetricRecord({"num-examples": 1})})


POISON: dict[str, tuple[Callable[[], RecordDict], str]] = {
    "NaN": (with_w(lambda: np.where(W == 4, np.nan, W)), "array 'w' holds values that are not finite"),
    "infinity": (with_w(lambda: W / 0), "array 'w' holds values that are not finite"),
    "a transposed shape": (with_arrays(w=W[:1], b=B), r"array 'w' has shape \(1, 2\), expected \(2, 2\)"),
    "a flat shape": (with_w(lambda: W.ravel()), r"array 'w' has shape \(4,\)"),
    "a huge vector": (with_w(lambda: np.zeros(10**6)), r"array 'w' has shape \(1000000,\)"),
    "integers": (with_w(lambda: W.astype(np.int64)), "array 'w' has type int64, expected float64"),
    "narrow floats": (with_w(lambda: W.astype(np.float16)), "array 'w' has type float16, expected float64"),
    "floats too great": (with_arrays(w=W, b=np.array([1e300, 0])), "array 'b' holds values that are not finite"),
    "text": (with_w(lambda: np.array([["a", "b"], ["c", "d"]])), "array 'w' has type <U1"),
    "an array less": (with_arrays(w=W), "array 'b' is missing"),
    "an array more": (with_arrays(w=W, b=B, c=B), "array 'c' was not asked for"),
    "an array with a long name": (with_arrays(w=W, b=B, **{"c" * 10**5: B}), "array 'c{190,200}…$"),
    "no array": (with_arrays(), "array '[wb]' is missing"),
    "a type of its own": (with_w(lambda: array(npy(W), "torch.Tensor")), "array 'w' is a 'torch.Tensor'"),
    "garbage": (with_w(lambda: array(b"\x93NUMPY garbage")), "array 'w' is not in NumPy's format"),
    "nothing": (with_w(lambda: array(b"")), "array 'w' is not in NumPy's format"),
    "an archive": (with_w(lambda: array(archive())), "array 'w' is not in NumPy's format"),
    "a header of terabytes": (
        with_w(lambda: array(claiming((10**12, 2)))),
        r"array 'w' has shape \(1000000000000, 2",
    ),
    "bytes missing": (with_w(lambda: array(npy(W)[:-8])), "array 'w' has 24 bytes of numbers"),
    "bytes behind": (with_w(lambda: array(npy(W) + b"more")), "array 'w' has 36 bytes of numbers"),
    "no examples": (with_metrics(num_examples=0), "num-examples is 0, expected a number above 0"),
    "examples below zero": (with_metrics(num_examples=-5), "num-examples is -5"),
    "absurdly many examples": (with_metrics(num_examples=10**15), "num-examples is 1000000000000000, .* 1e.09"),
    "infinitely many examples": (with_metrics(num_examples=float("inf")), "num-examples is inf"),
    "NaN examples": (with_metrics(num_examples=float("nan")), "num-examples is nan"),
    "a list of examples": (with_metrics(num_examples=[1, 2]), r"num-examples is \[1, 2\]"),
    "no count": (with_metrics(loss=1.0), "num-examples is None"),
    "no metrics": (lambda: RecordDict({"arrays": record(START)}), "0 records of metrics, expected 1"),
    "metrics of its own": (with_metrics(num_examples=1, boom=1.0), "named unlike the others'"),
    "metrics twice": (
        lambda: RecordDict({**with_metrics(num_examples=1)(), "more": MetricRecord({"num-examples": 1})}),
        "2 records of metrics, expected 1",
    ),
    "arrays twice": (
        lambda: RecordDict({**with_metrics(num_examples=1)(), "more": record(START)}),
        "2 records of arrays, expected 1",
    ),
    "another name for its arrays": (
        lambda: RecordDict({"weights": record(START), "metrics": MetricRecord({"num-examples": 1})}),
        "named unlike the others'",
    ),
}


def poisoned(content: Callable[[], RecordDict]) -> Node:
    def node(message: Message) -> Message:
        with np.errstate(divide="ignore"):
            return Message(content(), reply_to=message)

    return node


def theta_and_momentum(nodes: list[Node], rounds: int = 2, **options: Any) -> list[Any]:
    """The numbers of a federation after some rounds."""
    strategy = FedACG(fraction_evaluate=0.0, **options)
    result = strategy.start(grid=Nodes(nodes), initial_arrays=record(START), num_rounds=rounds)
    return [result.arrays["w"].numpy(), result.arrays["b"].numpy(), strategy.momentum["w"], strategy.momentum["b"]]


@pytest.mark.parametrize("place", [0, 2], ids=["first", "last"])
@pytest.mark.parametrize("name", POISON)
def test_a_poisoned_reply_is_as_if_it_were_not_there_and_the_log_names_its_node(
    name: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    content, reason = POISON[name]
    nodes = [*GOOD]
    nodes.insert(place, poisoned(content))
    for value, expected in zip(theta_and_momentum(nodes), theta_and_momentum([*GOOD]), strict=True):
        assert_array_equal(value, expected)
    refusals = [line.getMessage() for line in caplog.records if "refused" in line.getMessage()]
    assert len(refusals) == 2
    assert all(re.search(f"^refused the reply of node {101 + place}: .*{reason}", line) for line in refusals)


@pytest.mark.parametrize("shape", ["pickle", "array of objects", "array of objects that says it has another type"])
def test_a_pickle_is_refused_and_never_opened(
    shape: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bomb = Bomb(tmp_path / "exploded")
    objects = npy(np.array([[bomb, bomb], [bomb, bomb]]), allow_pickle=True)
    data, stype, reason = {
        "pickle": (pickle.dumps(bomb), "pickle", "array 'w' is a 'pickle'"),
        "array of objects": (objects, "numpy.ndarray", "array 'w' has type object"),
        "array of objects that says it has another type": (
            objects.replace(b"'|O'", b"'<f8'", 1),
            "numpy.ndarray",
            "array 'w' ",
        ),
    }[shape]
    theta_and_momentum([*GOOD, poisoned(with_w(lambda: array(data, stype)))])
    assert f"refused the reply of node 103: {reason}" in caplog.text
    assert not bomb.path.exists()
    pickle.loads(pickle.dumps(bomb))
    assert bomb.path.exists()


def test_what_is_not_in_the_reply_is_not_believed_either() -> None:
    # The bytes are those of a float32 array; what is said beside them is not.
    lie = Array(dtype="float64", shape=(2, 2), stype="numpy.ndarray", data=npy(W.astype(np.float32)))
    reply = answer(Message(RecordDict(), dst_node_id=7, message_type=MessageType.TRAIN), {})
    reply.content["arrays"] = ArrayRecord({"w": lie})
    assert fault(reply, {"w": W}) == "array 'w' has type float32, expected float64"


def test_a_round_in_which_every_reply_is_refused_moves_nothing() -> None:
    strategy = FedACG(fraction_evaluate=0.0)
    bad = poisoned(with_w(lambda: W * np.nan))
    result = strategy.start(grid=Nodes([bad, bad]), initial_arrays=record(START), num_rounds=2)
    assert len(result.arrays) == 0
    assert strategy.momentum == {}


def test_the_most_examples_and_bytes_are_options(caplog: pytest.LogCaptureFixture) -> None:
    big = replying({"w": W + 100, "b": B}, num_examples=50)
    believed = theta_and_momentum([*GOOD, big], max_examples=50, max_bytes=2000, norm_factor=0)
    refused = theta_and_momentum([*GOOD, big], max_examples=49)
    assert believed[0].sum() > refused[0].sum()
    assert_array_equal(refused[0], theta_and_momentum([*GOOD])[0])
    assert "node 103: num-examples is 50, expected a number above 0 and at most 49" in caplog.text

    def talkative(message: Message) -> Message:
        reply = GOOD[0](message)
        reply.content["tale"] = ConfigRecord({"text": b"x" * 3000})
        return reply

    assert_array_equal(theta_and_momentum([*GOOD, talkative], max_bytes=2000)[0], refused[0])
    assert re.search(r"node 103: it has 3\d\d\d bytes, at most 2000 are accepted", caplog.text)


def test_words_of_no_letters_beside_a_sound_reply_are_no_fault() -> None:
    def talkative(message: Message) -> Message:
        reply = GOOD[0](message)
        reply.content["tale"] = ConfigRecord({"text": "", "bytes": b"", "many": ["", "a"]})
        return reply

    said, silent = (theta_and_momentum([GOOD[1], node], max_bytes=2000) for node in (talkative, GOOD[0]))
    assert_array_equal(said[0], silent[0])


def test_a_poisoned_evaluation_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    def node(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            return GOOD[0](message)
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 0, "boom": [1.0]})}), reply_to=message)

    result = FedACG().start(grid=Nodes([*GOOD, node]), initial_arrays=record(START), num_rounds=2)
    assert dict(result.evaluate_metrics_clientapp[2]) == {"loss": 1.0}
    assert "refused the reply of node 103: num-examples is 0" in caplog.text


@pytest.mark.parametrize("own", [False, True], ids=["averaged by Flower", "by the user's own function"])
def test_lists_of_other_lengths_are_refused_unless_the_user_takes_them(own: bool) -> None:
    def both(records: list[RecordDict], weighted_by: str) -> MetricRecord:
        return MetricRecord({"lists": len(records)})

    nodes = [replying({"w": W + n, "b": B}, losses=[1.0] * n) for n in (2, 2, 5)]
    w, *_ = theta_and_momentum(nodes, rounds=1, **({"train_metrics_aggr_fn": both} if own else {}))
    assert_allclose(w, W + (3 if own else 2), rtol=1e-15)


def test_a_sound_reply_has_no_fault_whatever_the_order_of_its_numbers_in_memory() -> None:
    message = Message(RecordDict(), dst_node_id=7, message_type=MessageType.TRAIN)
    assert fault(answer(message, {"w": np.asfortranarray(W), "b": B}), START) is None
    assert fault(answer(message, {"b": B, "w": W.astype(">f8")}), START) is None
