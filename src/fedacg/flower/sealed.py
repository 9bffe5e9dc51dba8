"""`+secure` on a real federation: Flower's SecAgg+ between the nodes, in the round loop of a simulation.

Four messages per round: keys, shares of them, masked updates, and the shares that open the sum. Flower's own code
runs on both sides; this module lets it carry the messages of this app. Of the updates the server sees their mean
and nothing else, so its answers are stand-ins: each client is recorded as having sent the mean. A node may leave
once it has shared its keys, and is left out of the sum; one that leaves before ends the round without a result.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedacg.core.round import BESIDE, is_encoded
from fedacg.core.round import Message as Vectors
from fedacg.flower.checks import Refused
from fedacg.flower.nodes import ask
from fedacg.methods.dp import promise_of
from fedacg.methods.rules import ServerRule
from fedacg.methods.secure import FixedPoint, Sealed
from fedacg.simulation.engine import Job

_log = logging.getLogger("flwr")
_MODULUS = 32
"""Bits of a masked number."""
_FINEST = 22
"""Bits of a number before it is masked, at most: what is left holds the sum of a thousand."""
_SHARES, _THRESHOLD = 1.0, 0.5
"""Every node of the cohort has a share of each key, and half of them open it."""


def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """What a node does with a message: the steps of SecAgg+ are Flower's, everything else is the app's."""
    if RECORD_KEY_CONFIGS in message.content.config_records:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


def is_sealed(message: Message) -> bool:
    """Whether a training message is one of SecAgg+."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def answer_of(job: Job, broadcast: Vectors, upload: Vectors, cohort: int) -> RecordDict:
    """A node's update in the form that Flower masks; it is bounded and carries nothing else."""
    link, clip = _link(job, broadcast)
    arrays = [
        (link.value(link.whole(upload[name])) if is_encoded(name) else upload[name].double() * clip).numpy()
        for name in names(job)
    ]
    if promise_of(job.method) is not None:
        # Flower rounds up or down at random: so that no update is longer than the clip after it.
        entries = sum(array.size for array in arrays)
        arrays = [array * (1 - math.sqrt(entries) * 2 / 2 ** _levels(cohort)) for array in arrays]
    answer = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), num_examples=1, metrics={})
    return compat.fitres_to_recorddict(answer, keep_input=False)


def sealing(rule: ServerRule) -> Sealed | None:
    """The rule that seals a method's sums, if there is one."""
    found: ServerRule | None = rule
    while found is not None and not isinstance(found, Sealed):
        found = getattr(found, "inner", None)
    return found


def names(job: Job) -> list[str]:
    """The vectors of an upload that are summed, in the same order at all nodes."""
    return [name for name in sorted(job.traffic.up) if name != "buffers"]


def _link(job: Job, broadcast: Vectors) -> tuple[FixedPoint, float]:
    """The encoding of numbers in this round, and the largest number."""
    rule = sealing(job.method.rule)
    assert rule is not None
    step = float(broadcast["step"])
    clients = len(job.data.clients)
    return FixedPoint(rule.bits, step), step * (2 ** (rule.bits - 1) - 1) / clients


def _levels(cohort: int) -> int:
    """Bits of a number, such that the sum over the cohort does not reach the modulus."""
    return min(_FINEST, _MODULUS - math.ceil(math.log2(cohort + 1)))


@dataclass
class _Opened(FedAvg):
    """A strategy that asks these nodes and takes in what Flower opens."""

    def __init__(self, nodes: Iterable[int]) -> None:
        super().__init__()
        self._nodes = nodes
        self.found: list[NDArray[np.float64]] = []

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list[Any]:
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self._nodes]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        self.found = cast(list[NDArray[np.float64]], parameters_to_ndarrays(results[0][1].parameters))
        return None, {}


class _Carrier:
    """Carries Flower's messages as the rest of the app does: a reply that cannot be read is none."""

    def __init__(self, grid: Grid, seconds: float) -> None:
        self._grid, self._seconds = grid, seconds

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = {message.metadata.dst_node_id: message for message in messages}
        replies = ask(self._grid, sent, self._seconds)
        return [reply for reply in replies.values() if isinstance(reply, Message)]


def open_mean(
    grid: Grid, job: Job, round: int, broadcast: Vectors, orders: Mapping[int, RecordDict], seconds: float
) -> tuple[dict[str, torch.Tensor], set[int]]:
    """The mean of the nodes' uploads for these orders, encoded like an upload, and the nodes in it."""
    link, clip = _link(job, broadcast)
    if len(orders) < 2:
        raise Refused("a sum of fewer than two updates would seal nothing")
    strategy = _Opened(orders)
    workflow = SecAggPlusWorkflow(
        _SHARES, _THRESHOLD, max_weight=1.0, clipping_range=clip, quantization_range=2 ** _levels(len(orders))
    )
    context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), strategy=strategy)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: round})
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(Parameters([], ""), True)
    state, carrier = WorkflowState(), cast(Grid, _Carrier(grid, seconds))
    try:
        if not workflow.setup_stage(carrier, context, state):
            raise Refused("too few nodes sent keys")
        state.nid_to_fitins = dict(orders)
        if not workflow.share_keys_stage(carrier, context, state):
            raise Refused("too few nodes shared their keys")
        _log.info("round %d: keys are shared, and updates are asked for", round)
        if not workflow.collect_masked_vectors_stage(carrier, context, state):
            raise Refused("too few nodes sent updates")
        active = set(state.active_node_ids)
        if not workflow.unmask_stage(carrier, context, state):
            raise Refused("a node left before its keys were shared, or too few helped to open the sum")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refused(f"the sum cannot be opened: {type(error).__name__}: {error}") from None
    return _uploads(job, link, clip, strategy.found), active


def _uploads(
    job: Job, link: FixedPoint, clip: float, found: Sequence[NDArray[np.float64]]
) -> dict[str, torch.Tensor]:
    """The mean as the upload that each client is recorded as having sent."""
    from fedacg.methods.upload import Chain, Memory

    upload: dict[str, torch.Tensor] = {}
    for name, array in zip(names(job), found, strict=True):
        vector = torch.from_numpy(np.ascontiguousarray(array))
        if not bool(vector.isfinite().all()):
            raise Refused(f"array {name!r} of the sum is not finite")
        if name.startswith(BESIDE):
            upload[name] = (vector / clip).to(job.traffic.up[name].dtype)
        else:
            upload[name] = Chain((link,)).encode(vector, Memory(), torch.Generator())
    kind = job.traffic.up["buffers"]
    return {**upload, "buffers": torch.zeros(kind.shape, dtype=kind.dtype)}
