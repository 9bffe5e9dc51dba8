"""What a server asks of a reply before it looks at the numbers: names, shapes, types, finite values, counts, size.

A reply comes from a machine that may be broken or hostile. Nothing here unpickles or allocates by what a reply
claims: the header of every array is read and held against what was sent before its bytes are taken as numbers.
What a round makes of the sound replies is the strategy's business.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

MAX_EXAMPLES = 1e9
"""A node that says it has more examples is not believed, whatever the others say."""
EXAMPLES_FACTOR = 100.0
"""Nor is one that says it has more than so many times what is usual, unless a bound is set."""
MAX_NORM = 1e6
"""No longer vector is taken, however long the others are."""
NORM_FACTOR = 20.0
"""An update that is longer than so many times the usual is not taken, unless a factor is set."""

_NUMPY = "numpy.ndarray"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MOST_WORDS = 200
"""Names in a reply are the sender's, and a log line has an end."""
_LONGEST = 300
"""Of any reason, so many characters are passed on."""


class Shaped(Protocol):
    """An array, or anything that says which array is expected."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Refused(ValueError):
    """Why something in a reply is not taken, in words that can be logged whoever they come from."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain(reason, _LONGEST))


def plain(text: str, most: int = _MOST_WORDS) -> str:
    """Somebody else's words as one line without control characters, cut where they are more than so many."""
    seen = text[: 4 * most]
    words = " ".join("".join(c if c.isprintable() else " " for c in seen).split())
    return words if len(words) <= most and len(seen) == len(text) else f"{words[:most]}…"


@dataclass(frozen=True)
class Sorted:
    """The replies to one message that was sent to many nodes, as a server takes them."""

    sound: list[Message]
    """Those that can be averaged, one a node."""
    refused: list[tuple[int, str]]
    """Of the others the node, and why."""
    usual: Hashable
    """How the records and metrics of most are named, to be remembered; None where no way is that of most."""


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
    """Tell the replies that can be averaged from those that are refused; errors that nodes report are neither.

    A node has one reply, and only if it was `asked`. `limits` are those of `fault`. Replies whose records or
    metrics are named unlike those of more than half are refused, and with `same_lengths` those whose metrics are
    lists of other lengths, as Flower can take no average of them. Where no naming is that of more than half, the
    `usual` one of earlier rounds counts; where there is none yet, nobody can say who is wrong, and all are taken
    under common names, without metrics other than the number of examples.
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
    refused += [(reply.metadata.src_node_id, "its records and metrics are not named as others'") for reply in odd]
    return Sorted([r for r, its in zip(sound, layouts, strict=True) if its == common], refused, common)


def _bare(content: RecordDict, weighted_by: str) -> RecordDict:
    """The arrays of a sound reply and what they weigh, under names that are everybody's."""
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
    size = sum(record.count_bytes() for record in content.values())
    if max_bytes is not None and size > max_bytes:
        raise Refused(f"it has {size} bytes, at most {max_bytes} are taken")


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
    except Exception:  # whatever reading a stranger's header raises, it is not a header
        raise Refused(f"array {name!r} is not in NumPy's format") from None
    return shape, "F" if fortran else "C", dtype, stream.tell()
