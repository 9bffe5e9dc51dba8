"""Baselines for federated methods: all data in one place, and every client by itself.

centralised   w ← K steps on the examples of all clients together;  θ ← w
local-only    each client continues with its own w_i, from θ₀;  nothing is sent, and there is no common model
"""

from collections.abc import Callable

from torch import Tensor

from fedacg.core.round import Message
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Part
from fedacg.methods.rules import Average, ServerRule, State, Totals
from fedacg.methods.visit import Assignment

OWN, OWN_BUFFERS = "own", "own buffers"
"""Names of what a client with its own model keeps."""


class OnePlace(Average):
    """θ ← w: the model of the one place that has all data."""

    needs = frozenset({"one place"})
    silent = True


class NoServer(ServerRule):
    """θ stays as it was: nobody sends anything."""

    silent = True
    common = False

    def step(self, state: State, totals: Totals, round: object) -> State:
        return {"theta": state["theta"]}


class OwnModel(Part):
    """The client starts where it stopped at its last visit, and keeps its model."""

    def begin(self, assignment: Assignment) -> None:
        self._flat, self._own = assignment.flat, assignment.kept.get(OWN)
        if OWN_BUFFERS in assignment.kept:
            self._flat.write_buffers(assignment.kept[OWN_BUFFERS])

    def start(self, point: Tensor) -> Tensor:
        return point if self._own is None else self._own

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        buffers = self._flat.read_buffers()
        return {OWN: self._flat.w, **({OWN_BUFFERS: buffers} if len(buffers) else {})}


def centralised() -> Method:
    return Method(OnePlace())


def local_only() -> Method:
    return Method(NoServer(), objective=(Empirical(), OwnModel()))
