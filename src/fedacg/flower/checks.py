"""What a server asks of a reply before it looks at the numbers: names, shapes, types, finite values, counts, size.

A reply comes from a machine that may be broken or hostile. Nothing here unpickles or allocates by what a reply
claims: the header of every array is read and held against what was sent before its bytes are taken as numbers.
What a round makes of the sound replies is the strategy's business.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from io import BytesIO
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, Message, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

MAX_EXAMPLES = 1e9
"""A node that says it trained on more is not believed, unless a strategy is told otherwise."""

_NUMPY = "numpy.ndarray"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MOST_WORDS = 200
"""Names in a reply are the sender's, and a log line has an end."""


class Shaped(Protocol):
    """An array, or anything that says which array is expected."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Refused(ValueError):
    """Why something in a reply is not taken."""


def sort_out(
    replies: Iterable[Message], expected: Mapping[str, Shaped] | None, *, same_lengths: bool = True, **limits: Any
) -> tuple[list[Message], list[tuple[int, str]]]:
    """The replies that can be averaged, and (node, reason) of those that are refused.

    Errors that nodes report are neither. `limits` are those of `fault`. Replies whose records or metrics are
    named unlike those of most others are refused too, and with `same_lengths` those whose metrics are lists of
    other lengths, as Flower can take no average of them.
    """
    sound: list[Message] = []
    refused: list[tuple[int, str]] = []
    for reply in replies:
        if reply.has_error():
            continue
        reason = fault(reply, expected, **limits)
        if reason is None:
            sound.append(reply)
        else:
            refused.append((reply.metadata.src_node_id, reason))
    layouts = [_layout(reply.content, same_lengths) for reply in sound]
    ((usual, _),) = Counter(layouts).most_common(1) or [(None, 0)]
    odd = [reply for reply, its in zip(sound, layouts, strict=True) if its != usual]
    refused += [(reply.metadata.src_node_id, "its records and metrics are not named as others'") for reply in odd]
    return [reply for reply, its in zip(sound, layouts, strict=True) if its == usual], refused


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
        check_examples(reply.content, weighted_by, max_examples)
        if expected is not None:
            read_arrays(reply.content, expected)
    except Refused as reason:
        words = str(reason)
        return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…"
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


def check_examples(content: RecordDict, weighted_by: str, max_examples: float) -> None:
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise Refused(f"it has {len(records)} records of metrics, expected 1")
    count = records[0].get(weighted_by)
    if not isinstance(count, int | float) or not math.isfinite(count) or not 0 < count <= max_examples:
        raise Refused(f"{weighted_by} is {count!r}, expected a number above 0 and at most {max_examples:g}")


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
