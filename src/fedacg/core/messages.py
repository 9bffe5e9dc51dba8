"""What crosses the network: messages of named tensors, and their bytes.

A message's size is the length of its tensors' bytes. The numbers that every reply has beside them (examples, steps,
the loss) are not counted.
"""

from collections.abc import Mapping

from torch import Tensor

Message = Mapping[str, Tensor]
"""Tensors by name. Down: `phi`, `buffers` and what a server rule adds. Up: `delta`, `buffers` and what parts add."""

BESIDE = "beside/"
"""In an upload, the names of tensors that are sent as they are begin like this."""


def is_encoded(name: str) -> bool:
    """Whether what an upload has by this name went through the upload chain."""
    return name != "buffers" and not name.startswith(BESIDE)


def message_bytes(message: Message) -> int:
    """The number of bytes a message takes on the wire."""
    return sum(tensor.numel() * tensor.element_size() for tensor in message.values())
