"""Data on the device that computes with them: tensors are copied there once, if they fit.

Positions stay on the CPU, where batches are drawn. What cannot move (files, made-up clients, a user's own class)
or does not fit is fetched from the CPU's memory batch by batch, with the same result.
"""

from dataclasses import replace
from typing import overload

import torch

from fedacg.core.devices import spare
from fedacg.data.examples import (
    Clients,
    Examples,
    FederatedData,
    ListedClients,
    OwnedClients,
    SpanExamples,
    SplitClients,
    TensorExamples,
    ViewExamples,
)


def settle(data: FederatedData, device: torch.device) -> FederatedData:
    """The same data, with the tensors that examples lie in on a device."""
    if device.type == "cpu":
        return data
    mover = _Mover(device, spare(device))
    return replace(data, clients=mover.move(data.clients), test=mover.move(data.test))


class _Mover:
    """Copies every tensor once, however many views there are on it, until the room is used up."""

    def __init__(self, device: torch.device, room: int) -> None:
        self._device, self._room = device, room
        self._moved: dict[int, TensorExamples] = {}

    @overload
    def move(self, value: Examples) -> Examples: ...
    @overload
    def move(self, value: Clients) -> Clients: ...
    def move(self, value: Examples | Clients) -> Examples | Clients:
        match value:
            case TensorExamples():
                return self._copy(value)
            case ViewExamples() | SpanExamples() | SplitClients() | OwnedClients():
                return replace(value, base=self.move(value.base))
            case ListedClients():
                return ListedClients([self.move(examples) for examples in value.clients])
        return value

    def _copy(self, examples: TensorExamples) -> TensorExamples:
        if id(examples) not in self._moved:
            size = examples.x.nbytes + examples.y.nbytes
            if size > self._room:
                return examples
            self._room -= size
            moved = TensorExamples(examples.x.to(self._device), examples.y.to(self._device))
            self._moved[id(examples)] = moved
        return self._moved[id(examples)]
