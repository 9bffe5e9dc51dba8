"""Examples copied to the device that computes: once, and as far as they fit."""

from dataclasses import replace
from typing import overload

import torch

from fedacg.core.tensors import spare
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
    """The same data, with the examples' tensors on a device."""
    if device.type == "cpu":
        return data
    mover = _Mover(device, spare(device))
    validation = None if data.validation is None else mover.move(data.validation)
    own_tests = None if data.own_tests is None else mover.move(data.own_tests)
    clients, test = mover.move(data.clients), mover.move(data.test)
    return replace(data, clients=clients, test=test, validation=validation, own_tests=own_tests)


class _Mover:
    """Copies every tensor once, however many views there are of it, until the space is used up."""

    def __init__(self, device: torch.device, room: int) -> None:
        self._device, self._room = device, room
        self._moved: dict[int, TensorExamples] = {}

    @overload
    def move(self, value: Examples) -> Examples: ...
    @overload
    def move(self, value: Clients) -> Clients: ...
    def move(self, value: Examples | Clients) -> Examples | Clients:
        if move_parts := getattr(value, "moved", None):
            moved: Examples | Clients = move_parts(self.move)
            return moved
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
