"""Checks of a reply before its numbers are used: names, shapes, types, finite values, counts, size.

A reply comes from a machine that may be broken or hostile. Nothing here unpickles or allocates by what a reply
claims: the header of every array is compared with what was sent before its bytes are read as numbers. The strategy
decides what to do with valid replies.

A number that a node sends is compared with medians: of this round, and of what was accepted in each of the last
rounds with three or more replies. The largest of them is the usual value: so a minority of nodes decides nothing,
and a round in which most clients had nothing left to learn does not make the next update too long. Where three
have never replied, nobody could say which of two is wrong, and only what the server knows itself counts.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from statistics import median_high
from typing import Any, Protocol, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

MAX_EXAMPLES = 1e9
"""Most examples that a node is believed to have, whatever the others say."""
EXAMPLES_FACTOR = 100.0
"""Most examples relative to the usual number, unless a bound is set."""
MAX_NORM = 1e6
"""Largest norm of a vector that is accepted, whatever the others'."""
NORM_FACTOR = 20.0
"""Largest norm of an update relative to the usual one, unless a factor is set."""

_NUMPY = "numpy.ndarray"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MOST_WORDS = 200
"""Most characters of a name from a reply that are logged."""
_LONGEST = 300
"""Most characters of a reason that are logged."""


class Shaped(Protocol):
    """An array, or anything that says which array is expected."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Refused(ValueError):
    """Why something in a reply was rejected, in words that are safe to log."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain(reason, _LONGEST))


def plain(text: str, most: int = _MOST_WORDS) -> str:
    """Text from a node as one line without control characters, cut to a length."""
    seen = text[: 4 * most]
    words = " ".join("".join(c if c.isprintable() else " " for c in seen).split())
    return words if len(words) <= most and len(seen) == len(text) else f"{words[:most]}…"


@dataclass(frozen=True)
class Sorted:
    """The replies to one message that was sent to many nodes, sorted by the server."""

    sound: list[Message]
    """Those that can be averaged, one per node."""
    refused: list[tuple[int, str]]
    """The others: the node, and why."""
    usual: Hashable
    """The names of records and metrics that most replies use, to be remembered; None without a majority."""


def sort_out(
    replies: Iterable[Message],
    expected: Mapping[str, Shaped] | None,
    *,
    asked: Collection[int] | None = None,
    usual: Hashable = None,
    same_lengths: bool = True,
    weighted_by: str = "num-examples",
    **limits: Any,
) -> Sorted:
    """Separate the replies that can be averaged from refused ones; errors that nodes report are neither.

    A node has one reply, and only if it was `asked`. `limits` are those of `fault`. Replies whose records or
    metrics are named unlike those of more than half are refused, and with `same_lengths` those whose metrics are
    lists of other lengths, as Flower cannot average them. Without a majority, the `usual` naming of earlier rounds
    counts; if there is none yet, nobody can say who is wrong, and all are taken under common names, without
    metrics other than the number of examples.
    """
    sound: list[Message] = []
    refused: list[tuple[int, str]] = []
    heard: set[int] = set()
    for reply in replies:
        if reply.has_error():
            continue
        node = reply.metadata.src_node_id
        if asked is not None and node not in asked:
            refused.append((node, "it was not asked"))
            continue
        if node in heard:
            refused.append((node, "it has answered already"))
            continue
        heard.add(node)
        reason = fault(reply, expected, weighted_by=weighted_by, **limits)
        if reason is None:
            sound.append(reply)
        else:
            refused.append((node, reason))
    layouts = [_layout(reply.content, same_lengths) for reply in sound]
    ((common, count),) = Counter(layouts).most_common(1) or [(None, 0)]
    if 2 * count <= len(sound):
        if usual not in layouts:
            for reply in sound:
                reply.content = _bare(reply.content, weighted_by)
            return Sorted(sound, refused, None)
        common = usual
    odd = [reply for reply, its in zip(sound, layouts, strict=True) if its != common]
    refused += [
        (reply.metadata.src_node_id, "its records and metrics are named unlike the others'") for reply in odd
    ]
    return Sorted([r for r, its in zip(sound, layouts, strict=True) if its == common], refused, common)


def _bare(content: RecordDict, weighted_by: str) -> RecordDict:
    """The arrays of a valid reply and their weight, under common names."""
    (metrics,) = content.metric_records.values()
    arrays = dict(zip(["arrays"], content.array_records.values(), strict=False))
    return RecordDict({**arrays, "metrics": MetricRecord({weighted_by: metrics[weighted_by]})})


def fault(
    reply: Message,
    expected: Mapping[str, Shaped] | None,
    *,
    weighted_by: str = "num-examples",
    max_examples: float = MAX_EXAMPLES,
    max_bytes: int | None = None,
) -> str | None:
    """What is wrong with a reply that is not an error, or None.

    Args:
        expected: The arrays that one record of the reply must hold, no more and no fewer; None where a reply
            carries metrics only.
        weighted_by: The metric that says how many examples the reply stands for, above 0.
        max_examples: The most of them that is believed.
        max_bytes: The most that all records of the reply may take.
    """
    try:
        check_size(reply.content, max_bytes)
        check_metrics(reply.content, weighted_by, max_examples)
        if expected is not None:
            read_arrays(reply.content, expected)
    except Refused as reason:
        return plain(str(reason))
    return None


def _layout(content: RecordDict, lengths: bool) -> Hashable:
    """How the records of a reply and its metrics are named, and how long the lists among them are."""
    return (
        frozenset(content.array_records),
        frozenset(
            (name, key, len(value) if lengths and isinstance(value, list) else None)
            for name, record in content.metric_records.items()
            for key, value in record.items()
        ),
    )


def check_size(content: RecordDict, max_bytes: int | None) -> None:
    size = sum(_bytes_of(record) for record in content.values())
    if max_bytes is not None and size > max_bytes:
        raise Refused(f"it has {size} bytes, at most {max_bytes} are accepted")


def _bytes_of(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    """The bytes of a record; Flower's own count fails on empty strings, which any node may send."""
    if not isinstance(record, ConfigRecord):
        return record.count_bytes()
    values = [each for value in record.values() for each in (value if isinstance(value, list) else [value])]
    words = sum(len(each) for each in (*record, *values) if isinstance(each, str | bytes))
    return words + 8 * sum(isinstance(each, int | float) for each in values)


def check_metrics(content: RecordDict, weighted_by: str, max_examples: float) -> None:
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise Refused(f"it has {len(records)} records of metrics, expected 1")
    count = records[0].get(weighted_by)
    if not isinstance(count, int | float) or not math.isfinite(count) or not 0 < count <= max_examples:
        raise Refused(f"{weighted_by} is {count!r}, expected a number above 0 and at most {max_examples:g}")
    for name, value in records[0].items():
        if not all(math.isfinite(number) for number in (value if isinstance(value, list) else [value])):
            raise Refused(f"metric {name!r} holds values that are not finite")


def read_arrays(content: RecordDict, expected: Mapping[str, Shaped]) -> dict[str, NDArray[Any]]:
    """The arrays of a reply's one record, with the expected names, shapes and types, all finite."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise Refused(f"it has {len(records)} records of arrays, expected 1")
    (record,) = records
    for name in expected.keys() - record.keys():
        raise Refused(f"array {name!r} is missing")
    for name in record.keys() - expected.keys():
        raise Refused(f"array {name!r} was not asked for")
    return {name: read_array(name, record[name], like) for name, like in expected.items()}


def read_array(name: str, array: Array, like: Shaped) -> NDArray[Any]:
    """The numbers of one array in the expected type; floats may have come wider, as NumPy makes them."""
    shape, order, dtype, start = _header(name, array)
    if shape != like.shape:
        raise Refused(f"array {name!r} has shape {shape}, expected {like.shape}")
    wider = dtype.kind == like.dtype.kind == "f" and dtype.itemsize >= like.dtype.itemsize
    if dtype != like.dtype and not wider:
        raise Refused(f"array {name!r} has type {dtype}, expected {like.dtype}")
    if len(array.data) - start != math.prod(shape) * dtype.itemsize:
        raise Refused(f"array {name!r} has {len(array.data) - start} bytes of numbers, not those of {shape}")
    stored = np.frombuffer(array.data, dtype, offset=start).reshape(shape, order=order)
    with np.errstate(over="ignore", invalid="ignore"):
        values = stored.astype(like.dtype, copy=False)
    if values.dtype.kind in "fc" and not np.isfinite(values).all():
        raise Refused(f"array {name!r} holds values that are not finite")
    return values


def _header(name: str, array: Array) -> tuple[tuple[int, ...], Any, np.dtype[Any], int]:
    """(shape, order, type, where the numbers begin), as the bytes themselves say."""
    if array.stype != _NUMPY:
        raise Refused(f"array {name!r} is a {array.stype!r}, expected a {_NUMPY!r}")
    stream = BytesIO(array.data)
    try:
        shape, fortran, dtype = _HEADERS[npy.read_magic(stream)](stream)
    except Exception:  # whatever reading an untrusted header raises, it is not a header
        raise Refused(f"array {name!r} is not in NumPy's format") from None
    return shape, "F" if fortran else "C", dtype, stream.tell()


# Usual values in a federation: a bound on norms and counts that no single node can move


_ROUNDS = 10
"""Number of past rounds that are remembered."""
_ENOUGH = 3
"""Least number of values whose median no single node decides."""
_UNKNOWN = 1 / 4
"""Of the size that the server knows, what is usual as long as there is nothing to compare with."""
_LEAST = 1 / 20
"""Of that size, the least that is usual, however small the others are."""

Key = TypeVar("Key", bound=Hashable)
Remembered = tuple[int, float, float]
"""A round, and the medians of what was accepted in it: the size, and the steps it took."""


@dataclass(frozen=True)
class Measured:
    """The size of something that a node sent."""

    size: float
    steps: float = 1.0
    """The local steps it took, which the server knows; more of them may make it larger."""
    either_way: bool = False
    """Whether fewer steps may make it larger too, as of a vector that is divided by them."""


class MedianBound:
    """Accepts at most `factor` times the usual value; a factor of 0 accepts everything."""

    def __init__(self, factor: float, option: str, history: dict[str, list[Remembered]] | None = None) -> None:
        self.factor, self._option = factor, option
        self.history = {} if history is None else history

    def judge(
        self, round: int, sent: Mapping[Key, Mapping[str, Measured]], known: Mapping[str, float] | None = None
    ) -> dict[Key, str]:
        """The nodes whose values in a round are too large, and why; the others are remembered.

        Args:
            sent: By node, what is measured and how large it is.
            known: Of what is measured, a size that the server knows: for an update, that of the model.
        """
        if not self.factor:
            return {}
        refused: dict[Key, str] = {}
        names = dict.fromkeys(name for its in sent.values() for name in its)
        for name in names:
            # A server that went back to a checkpoint forgets what came after it.
            self.history[name] = [entry for entry in self.history.get(name, []) if entry[0] < round][-_ROUNDS:]
            size, steps = self._usual(name, [its[name] for its in sent.values()], (known or {}).get(name, 0.0))
            for node, its in sent.items():
                if size and its[name].size > self.factor * size * _slack(its[name], steps):
                    refused.setdefault(
                        node,
                        f"{name} is {its[name].size:g}, more than {self.factor:g} times the usual {size:.3g}; "
                        f"{self._option} sets the limit",
                    )
        for name in names:
            accepted = [its[name] for node, its in sent.items() if node not in refused]
            if len(sent) >= _ENOUGH and accepted:
                self.history[name].append((round, *_median(accepted)))
        return refused

    def _usual(self, name: str, now: list[Measured], known: float) -> tuple[float, float]:
        """The usual size, 0 where nothing is known of it, and the steps that go with it."""
        medians = [(size, steps) for _, size, steps in self.history[name]]
        if len(now) >= _ENOUGH:
            medians.append(_median(now))
        if not medians:
            return _UNKNOWN * known, median_high(one.steps for one in now)
        size, steps = max(medians)
        return max(size, _LEAST * known), steps


def _median(found: list[Measured]) -> tuple[float, float]:
    return median_high(one.size for one in found), median_high(one.steps for one in found)


def _slack(one: Measured, steps: float) -> float:
    """How much larger than usual something may be for its steps, which follow from what its node announced.

    The square root: a walk of K steps gets √K to K steps far, and for the rest there is the factor.
    """
    ratio = math.sqrt(one.steps / steps)
    return max(1.0, ratio, 1 / ratio if one.either_way else 0.0)


def middle(values: Iterable[float]) -> float | None:
    """What most of these are near to; None where there are too few to say."""
    listed = list(values)
    return median_high(listed) if len(listed) >= _ENOUGH else None
