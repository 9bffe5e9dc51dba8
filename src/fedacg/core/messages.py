"""What crosses the network: messages of named tensors, and their bytes.

A message's size is the length of its tensors' bytes. The numbers that every reply has beside them (examples,
steps, the loss) are not counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Message = Mapping[str, Tensor]
"""Down: `phi`, `buffers` and what a server rule adds. Up: `delta`, `buffers` and what parts send."""


@dataclass(frozen=True)
class Kind:
    """What a tensor of a message is like, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Kinds = Mapping[str, Kind]

BESIDE = "beside/"
"""In an upload, the names of tensors that are sent as they are begin like this."""


def is_encoded(name: str) -> bool:
    """Whether what an upload has by this name went through the upload chain."""
    return name != "buffers" and not name.startswith(BESIDE)


def kinds(message: Message) -> Kinds:
    """What a message's tensors are like."""
    return {name: Kind(tuple(tensor.shape), tensor.dtype) for name, tensor in message.items()}


def kind_bytes(kinds: Kinds) -> int:
    """The number of bytes of a message with such tensors."""
    return sum(kind.bytes for kind in kinds.values())


def message_bytes(message: Message) -> int:
    """The number of bytes a message takes on the wire."""
    return kind_bytes(kinds(message))
