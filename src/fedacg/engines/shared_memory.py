"""Memory that processes share: anonymous segments, and objects whose tensors live in one.

A segment has no name and no file that could be left behind: it goes when the last process that maps it ends,
however it ends. Segments travel to other processes over Unix sockets.
"""

import io
import mmap
import os
import pickle
import shutil
import socket
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from fedacg.core.round import Kinds
from fedacg.errors import RunError

_ALIGNMENT = 64
_MEMORY_FOLDER = Path("/dev/shm")


class Segment:
    """A stretch of memory, and the file descriptor it can be passed on by."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size
        self._memory = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, size: int) -> "Segment":
        """A new segment, in memory if it fits, else in an unlinked temporary file."""
        size = max(size, 1)
        roomy = _MEMORY_FOLDER.is_dir() and shutil.disk_usage(_MEMORY_FOLDER).free > 1.1 * size
        folder = _MEMORY_FOLDER if roomy else Path(tempfile.gettempdir())
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                # Reserved in full, so that a full disk is an error here and not a crash on a later access.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                return cls(os.dup(file.fileno()), size)
        except OSError as error:
            raise RunError(f"{folder}: {size} bytes of shared memory cannot be reserved: {error}") from error

    def __del__(self) -> None:
        os.close(self.descriptor)

    def tensor(self, dtype: torch.dtype, offset: int, count: int) -> Tensor:
        """A vector in the segment; it keeps the memory alive."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)

    def bytes(self, offset: int, count: int) -> memoryview:
        return memoryview(self._memory)[offset : offset + count]


@dataclass(frozen=True)
class Place:
    """Where a named vector, or a matrix of rows like it, lies in a segment."""

    name: str
    dtype: torch.dtype
    offset: int
    count: int
    rows: int
    """Rows that it has as a matrix, 0 for a plain vector."""


def write_message(segment: Segment, message: Mapping[str, Tensor], start: int = 0) -> list[Place]:
    """Copy a message's vectors into a segment and return where they are."""
    places, offset = [], start
    for name, vector in message.items():
        offset, count = _aligned(offset), vector.numel()
        segment.tensor(vector.dtype, offset, count).copy_(vector.reshape(-1))
        places.append(Place(name, vector.dtype, offset, count, rows=len(vector) if vector.dim() == 2 else 0))
        offset += count * vector.element_size()
    return places


def end_of(places: Sequence[Place], start: int) -> int:
    """Where the last of a message's vectors ends, `start` if there are none."""
    return max((place.offset + place.count * place.dtype.itemsize for place in places), default=start)


def read_message(segment: Segment, places: Sequence[Place]) -> dict[str, Tensor]:
    """The vectors of a message, as views on the segment."""
    return {place.name: _read(segment, place) for place in places}


def _read(segment: Segment, place: Place) -> Tensor:
    vector = segment.tensor(place.dtype, place.offset, place.count)
    return vector.view(place.rows, place.count // place.rows) if place.rows else vector


def room(rows: int, kinds: Kinds) -> int:
    """Bytes in a segment for the messages of `rows` clients, made of such tensors."""
    return sum(_aligned(rows * kind.bytes) + _ALIGNMENT for kind in kinds.values())


@dataclass(frozen=True)
class Frozen:
    """An object on its way to other processes: its structure here, its arrays in a segment."""

    structure: bytes
    spans: list[tuple[int, int]]


def freeze(value: object) -> tuple[Frozen, Segment]:
    """Put an object's tensors and arrays into one new segment; classes of a script travel by value.

    Tensors that own their memory move there, as `Tensor.share_memory_` would have them do, so that a data set
    is in memory once and not once more for the workers.
    """
    structure, arrays, owners = take_apart(value)
    spans, offset = [], 0
    for array in arrays:
        spans.append((offset, array.nbytes))
        offset = _aligned(offset + array.nbytes)
    segment = Segment.create(offset)
    for (start, length), array in zip(spans, arrays, strict=True):
        segment.bytes(start, length)[:] = array
        owner = owners.pop(_address(array), None) if length else None
        if owner is not None:
            owner.data = segment.tensor(owner.dtype, start, owner.numel()).view(owner.shape)
    return Frozen(structure, spans), segment


def thaw(frozen: Frozen, segment: Segment) -> Any:
    """The object, its tensors and arrays as views on the segment."""
    return put_together(frozen.structure, [segment.bytes(*span) for span in frozen.spans])


def take_apart(value: object) -> tuple[bytes, list[memoryview], dict[int, Tensor]]:
    """An object's structure, the memory of its tensors and arrays, and tensors that own theirs, by its address."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers], pickler.owners


def put_together(structure: bytes, arrays: Sequence[Any]) -> Any:
    """The object that was taken apart, its tensors and arrays as views on this memory, which may be read-only."""
    return pickle.loads(structure, buffers=arrays)


def send_segment(channel: socket.socket, segment: Segment) -> None:
    socket.send_fds(channel, [segment.size.to_bytes(8, "big")], [segment.descriptor])


def receive_segment(channel: socket.socket) -> Segment:
    size, descriptors, _, _ = socket.recv_fds(channel, 8, 1)
    if not descriptors:
        raise EOFError("the other end closed the channel")
    return Segment(descriptors[0], int.from_bytes(size, "big"))


def _address(raw: memoryview) -> int:
    return np.frombuffer(raw, dtype=np.uint8).ctypes.data


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Tensors and parameters on the CPU leave the stream as NumPy arrays do, out of band."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.owners: dict[int, Tensor] = {}
        """Tensors that own all of their memory, by its address."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is nn.Parameter:
            return nn.Parameter, (value.detach(), value.requires_grad)
        if type(value) is Tensor and _plain(value):
            if value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes:
                self.owners[value.data_ptr()] = value
            bits = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (bits, value.dtype, tuple(value.shape))
        return super().reducer_override(value)


def _plain(value: Tensor) -> bool:
    return value.device.type == "cpu" and value.layout == torch.strided and not value.requires_grad


def _tensor(bits: "np.ndarray[Any, np.dtype[np.uint8]]", dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        # Memory may be read-only, and nobody writes into what was put together.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(bits).view(dtype).reshape(shape)
