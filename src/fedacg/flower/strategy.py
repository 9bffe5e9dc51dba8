"""`FedACG` for an existing Flower app: lookahead broadcast and server momentum in place of plain averaging.

    configure_train   φ = θ + λm is sent where FedAvg sends θ
    aggregate_train   Δ = average of the replies − φ;  m ← λm + η_g Δ;  θ ← θ + m

m stays at the server, and messages have exactly the size of FedAvg's. Arrays are NumPy's, so the clients may use
any framework. The clients' penalty is in client.py, the checks of replies are in checks.py.
"""

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from fedacg import methods
from fedacg.errors import InputError
from fedacg.flower.checks import (
    EXAMPLES_FACTOR,
    MAX_EXAMPLES,
    MAX_NORM,
    NORM_FACTOR,
    Measured,
    MedianBound,
    plain,
    read_arrays,
    sort_out,
)

Arrays = Mapping[str, NDArray[Any]]

BATCH_NORM = ("*running_mean", "*running_var")
"""PyTorch's names of statistics that are averaged: looking ahead, a variance could become negative."""

_log = logging.getLogger("flwr")
_UPDATE, _FLOATS, _INTEGERS = (
    "the norm of the update",
    "the norm of the change of statistics",
    "the norm of the change of counters",
)


class FedACG(FedAvg):
    """Federated learning with accelerated client gradients, for Flower.

    It accepts all arguments of FedAvg. Clients that run `fedacg.flower.add_penalty`, or add β/2 ‖w − φ‖² to their
    loss in their own framework, complete the method; without it, clients minimise FedAvg's objective with FedACG's
    server.

    Args:
        lam: λ in [0, 1), the decay of the momentum and how far the broadcast looks ahead.
        server_lr: η_g > 0, the scale of an update before it enters the momentum.
        plain: Patterns of names of arrays that are averaged as FedAvg does, with no momentum: statistics that
            no gradient moves, by default those of PyTorch's BatchNorm. Arrays of integers never have momentum
            and stay integers.
        max_examples: A reply that says it stands for more examples is refused; without it, one that says it
            stands for more than 100 times what is usual.
        max_bytes: A reply with more bytes is refused.
        max_norm: A reply whose update is longer is refused.
        norm_factor: So is one whose update is longer than this factor times the usual: the median of this round or
            of one of the last ten, where three or more replied, and at least a twentieth of the model's norm;
            if three have never replied, a quarter of that. 0 sets no such bound.

    A reply with names, shapes or types other than those sent, with values that are not finite or without a
    credible count of examples is refused and logged with its node, and so is a second reply of a node, or one of
    a node that was not asked; the round goes on with the others. A round without replies moves nothing. `momentum`
    is m by name: to continue elsewhere, save it beside the arrays and put it back.
    """

    def __init__(
        self,
        *args: Any,
        lam: float = 0.85,
        server_lr: float = 1.0,
        plain: Sequence[str] = BATCH_NORM,
        max_examples: float | None = None,
        max_bytes: int | None = None,
        max_norm: float = MAX_NORM,
        norm_factor: float = NORM_FACTOR,
        **kwargs: Any,
    ) -> None:
        options = methods.complete("fedacg", {"lam": lam, "server_lr": server_lr})
        if isinstance(plain, str) or not all(isinstance(pattern, str) for pattern in plain):
            raise InputError(f"plain = {plain!r}: must be a list of patterns, such as ['*running_mean']")
        limits = {"max_examples": max_examples, "max_bytes": max_bytes, "max_norm": max_norm}
        for name, limit in {**limits, "norm_factor": norm_factor or None}.items():
            if limit is not None and not (isinstance(limit, Real) and limit > 0):
                raise InputError(f"{name} = {limit!r}: must be a number above 0")
        super().__init__(*args, **kwargs)
        self.lam, self.server_lr, self.plain = options["lam"], options["server_lr"], tuple(plain)
        self.max_examples, self.max_bytes, self.max_norm = max_examples, max_bytes, max_norm
        self._norms = MedianBound(norm_factor, "norm_factor")
        self._train, self._evaluate = _Asked(max_examples), _Asked(max_examples)
        self.momentum: Arrays = {}
        self._theta: Arrays = {}
        self._sent: Arrays = {}

    def summary(self) -> None:
        _log.info("\t├──> FedACG: lambda (%g) | server learning rate (%g)", self.lam, self.server_lr)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send φ to the nodes that FedAvg samples. `arrays`, which is θ, is left as it is and evaluated later."""
        self._theta = {name: array.numpy() for name, array in arrays.items()}
        self._check()
        self._sent = self._ahead(self._theta, self.momentum)
        messages = super().configure_train(
            server_round=server_round, arrays=_record(self._sent), config=config, grid=grid
        )
        return self._train.sent(messages)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg."""
        messages = super().configure_evaluate(server_round=server_round, arrays=arrays, config=config, grid=grid)
        return self._evaluate.sent(messages)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move m and θ by the average of the valid replies."""
        sound, named_alike = self._sound(
            server_round, replies, self._train, self.train_metrics_aggr_fn, expected=self._sent
        )
        own = self.train_metrics_aggr_fn
        if not named_alike:  # a user's function would find no common metric in them
            self.train_metrics_aggr_fn = aggregate_metricrecords
        try:
            arrays, metrics = super().aggregate_train(server_round=server_round, replies=sound)
        finally:
            self.train_metrics_aggr_fn = own
        if arrays is None:
            return None, metrics
        theta, momentum = self._step({name: array.numpy() for name, array in arrays.items()})
        if not all(np.isfinite(value).all() for value in self._ahead(theta, momentum).values()):
            _log.error("aggregate_train: round %d would leave the range of its numbers; not taken", server_round)
            return None, metrics
        self.momentum = momentum
        return _record(theta), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As FedAvg, over the valid replies."""
        sound, named_alike = self._sound(server_round, replies, self._evaluate, self.evaluate_metrics_aggr_fn)
        errors = [reply for reply in sound if reply.has_error()]
        return super().aggregate_evaluate(server_round=server_round, replies=sound if named_alike else errors)

    def _check(self) -> None:
        """Check that the arrays are finite, and that patterns and momentum match them."""
        for name, value in self._theta.items():
            if not np.isfinite(value).all():
                raise InputError(
                    f"array {name!r} holds values that are not finite; send only arrays that are trained"
                )
        for pattern in self.plain:
            if pattern not in BATCH_NORM and not any(fnmatchcase(name, pattern) for name in self._theta):
                raise InputError(f"plain: no array is called {pattern!r}; there are {', '.join(self._theta)}")
        for name, m in self.momentum.items():
            theta = self._theta.get(name)
            if theta is None or m.shape != theta.shape or not self._has_momentum(name):
                raise InputError(f"momentum: {name!r} of shape {m.shape} is not an array with momentum here")

    def _has_momentum(self, name: str) -> bool:
        return self._theta[name].dtype.kind in "fc" and not any(fnmatchcase(name, p) for p in self.plain)

    def _ahead(self, theta: Arrays, momentum: Arrays) -> Arrays:
        """φ = θ + λm"""
        with np.errstate(over="ignore"):
            return {
                name: _like(value, value + self.lam * momentum[name]) if name in momentum else value
                for name, value in theta.items()
            }

    def _step(self, average: Arrays) -> tuple[Arrays, Arrays]:
        """θ and m after a round whose replies had this average."""
        theta, momentum = {}, {}
        with np.errstate(over="ignore", invalid="ignore"):
            for name, value in self._theta.items():
                if self._has_momentum(name):
                    delta = self.server_lr * (average[name] - self._sent[name])
                    momentum[name] = _like(value, self.lam * self.momentum.get(name, 0.0) + delta)
                    theta[name] = _like(value, value + momentum[name])
                else:
                    theta[name] = _like(value, average[name])
        return theta, momentum

    def _sound(
        self,
        server_round: int,
        replies: Iterable[Message],
        asked: "_Asked",
        average: Callable[..., MetricRecord],
        expected: Arrays | None = None,
    ) -> tuple[list[Message], bool]:
        """The replies without those that are refused, and whether their metrics are named alike.

        Errors that nodes report stay in, for FedAvg to log.
        """
        replies = list(replies)
        found = sort_out(
            replies,
            expected,
            asked=asked.nodes,
            usual=asked.usual,
            same_lengths=average is aggregate_metricrecords,
            weighted_by=self.weighted_by_key,
            max_examples=self.max_examples or MAX_EXAMPLES,
            max_bytes=self.max_bytes,
        )
        asked.usual = found.usual or asked.usual
        sound = {reply.metadata.src_node_id: reply for reply in found.sound}
        too_many = asked.counts.judge(server_round, {node: self._count(reply) for node, reply in sound.items()})
        sound = {node: reply for node, reply in sound.items() if node not in too_many}
        too_long = {} if expected is None else self._too_long(server_round, sound, expected)
        for node, reason in (*found.refused, *too_many.items(), *too_long.items()):
            _log.warning("refused the reply of node %d: %s", node, reason)
        named_alike = found.usual is not None or not found.sound
        if not named_alike:
            _log.warning("the nodes do not report the same metrics; those of this round are not averaged")
        errors = [_readable(reply) for reply in replies if reply.has_error()]
        return [*errors, *(reply for node, reply in sound.items() if node not in too_long)], named_alike

    def _count(self, reply: Message) -> dict[str, Measured]:
        """The number of examples of a valid reply."""
        (metrics,) = reply.content.metric_records.values()
        return {self.weighted_by_key: Measured(float(metrics[self.weighted_by_key]))}  # type: ignore[arg-type]

    def _too_long(self, server_round: int, sound: Mapping[int, Message], sent: Arrays) -> dict[int, str]:
        """Nodes whose update is too long, and why."""
        refused: dict[int, str] = {}
        measured: dict[int, dict[str, Measured]] = {}
        for node, reply in sound.items():
            arrays = read_arrays(reply.content, sent)
            change = {name: np.subtract(arrays[name], sent[name], dtype=_wide(sent[name])) for name in sent}
            norms = self._norms_by_kind(change)
            for kind, norm in norms.items():
                if norm > self.max_norm:
                    refused[node] = f"{kind} is {norm:g}, at most {self.max_norm:g} is accepted"
            if node not in refused:
                measured[node] = {kind: Measured(norm) for kind, norm in norms.items()}
        model = {_UPDATE: self._norms_by_kind(sent).get(_UPDATE, 0.0)}
        return refused | self._norms.judge(server_round, measured, model)

    def _norms_by_kind(self, arrays: Arrays) -> dict[str, float]:
        """Norms of arrays with momentum, of other floats and of integers, whose sizes naturally differ."""
        squares: dict[str, float] = {}
        for name, value in arrays.items():
            kind = _UPDATE if self._has_momentum(name) else _FLOATS if value.dtype.kind in "fc" else _INTEGERS
            with np.errstate(over="ignore"):
                squares[kind] = squares.get(kind, 0.0) + float(np.square(np.abs(value), dtype=np.float64).sum())
        return {kind: math.sqrt(square) for kind, square in squares.items()}


class _Asked:
    """What a strategy remembers of one kind of message: its receivers, and what replies usually look like."""

    def __init__(self, max_examples: float | None) -> None:
        self.nodes: set[int] | None = None
        self.usual: Hashable = None
        # A bound set by the user replaces the usual one.
        self.counts = MedianBound(EXAMPLES_FACTOR if max_examples is None else 0, "max_examples")

    def sent(self, messages: Iterable[Message]) -> Iterable[Message]:
        """The messages, whose receivers are noted."""
        listed = list(messages)
        self.nodes = {message.metadata.dst_node_id for message in listed}
        return listed


def _readable(reply: Message) -> Message:
    """An error that a node reports, made safe, as Flower logs its text unchanged."""
    reply.error = Error(reply.error.code, plain(reply.error.reason or "an error"))
    return reply


def _wide(value: NDArray[Any]) -> np.dtype[Any]:
    """A type in which values of another one can be subtracted without overflow."""
    return np.dtype(np.complex128 if value.dtype.kind == "c" else np.float64)


def _like(theta: NDArray[Any], value: Any) -> NDArray[Any]:
    """A value in the type of θ; averages of integers are rounded."""
    return np.asarray(value if theta.dtype.kind in "fc" else np.rint(value), dtype=theta.dtype)


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})
