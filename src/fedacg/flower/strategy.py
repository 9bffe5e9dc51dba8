"""`FedACG` for an existing Flower app: lookahead broadcast and server momentum in place of plain averaging.

    configure_train   φ = θ + λm is sent where FedAvg sends θ
    aggregate_train   Δ = average of the replies − φ;  m ← λm + η_g Δ;  θ ← θ + m

m stays at the server and the messages are FedAvg's, byte for byte as long. Arrays are NumPy's, so the clients may
use any framework. The clients' penalty is in client.py, what replies must look like in checks.py.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from fedacg import methods
from fedacg.errors import InputError
from fedacg.flower.checks import MAX_EXAMPLES, sort_out

Arrays = Mapping[str, NDArray[Any]]

BATCH_NORM = ("*running_mean", "*running_var")
"""PyTorch's names of statistics that are averaged: ahead of its mean a variance could be negative."""

_log = logging.getLogger("flwr")


class FedACG(FedAvg):
    """Federated learning with accelerated client gradients, for Flower.

    Everything FedAvg takes is taken too. Clients that run `fedacg.flower.add_penalty`, or add β/2 ‖w − φ‖² to
    their loss in their own framework, complete the method; without it, it is FedAvg's objective with FedACG's
    server.

    Args:
        lam: λ in [0, 1), the decay of the momentum and how far the broadcast looks ahead.
        server_lr: η_g > 0, the scale of an update before it enters the momentum.
        plain: Patterns of names of arrays that are averaged as FedAvg does, with no momentum: statistics that
            no gradient moves, by default those of PyTorch's BatchNorm. Arrays of integers never have momentum
            and stay integers.
        max_examples: A reply that says it stands for more examples is refused.
        max_bytes: A reply with more bytes is refused.

    A reply with names, shapes or types other than those sent, with values that are not finite or without a
    credible count of examples is refused and logged with its node; the round goes on with the others. A round
    without replies moves nothing. `momentum` is m by name: to continue elsewhere, save it beside the arrays and
    put it back.
    """

    def __init__(
        self,
        *args: Any,
        lam: float = 0.85,
        server_lr: float = 1.0,
        plain: Sequence[str] = BATCH_NORM,
        max_examples: float = MAX_EXAMPLES,
        max_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = methods.complete("fedacg", {"lam": lam, "server_lr": server_lr})
        if isinstance(plain, str) or not all(isinstance(pattern, str) for pattern in plain):
            raise InputError(f"plain = {plain!r}: must be a list of patterns, such as ['*running_mean']")
        for name, limit in {"max_examples": max_examples, "max_bytes": max_bytes}.items():
            if limit is not None and not (isinstance(limit, Real) and limit > 0):
                raise InputError(f"{name} = {limit!r}: must be a number above 0")
        super().__init__(*args, **kwargs)
        self.lam, self.server_lr, self.plain = options["lam"], options["server_lr"], tuple(plain)
        self.max_examples, self.max_bytes = max_examples, max_bytes
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
        return super().configure_train(
            server_round=server_round, arrays=_record(self._sent), config=config, grid=grid
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move m and θ by the average of the replies that are sound."""
        sound = self._sound(replies, self._sent, self.train_metrics_aggr_fn)
        arrays, metrics = super().aggregate_train(server_round=server_round, replies=sound)
        if arrays is None:
            return None, metrics
        theta, momentum = self._step({name: array.numpy() for name, array in arrays.items()})
        if not all(np.isfinite(value).all() for value in self._ahead(theta, momentum).values()):
            _log.error("aggregate_train: round %d would leave the range of its numbers; not taken", server_round)
            return None, metrics
        self.momentum = momentum
        return _record(theta), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As FedAvg, over the replies that are sound."""
        sound = self._sound(replies, None, self.evaluate_metrics_aggr_fn)
        return super().aggregate_evaluate(server_round=server_round, replies=sound)

    def _check(self) -> None:
        """What is to be trained is finite, and patterns and momentum belong to it."""
        for name, value in self._theta.items():
            if not np.isfinite(value).all():
                raise InputError(f"array {name!r} holds values that are not finite; send what is trained only")
        for pattern in self.plain:
            if pattern not in BATCH_NORM and not any(fnmatchcase(name, pattern) for name in self._theta):
                raise InputError(f"plain: no array is called {pattern!r}; there are {', '.join(self._theta)}")
        for name, m in self.momentum.items():
            theta = self._theta.get(name)
            if theta is None or m.shape != theta.shape or not self._has_momentum(name):
                raise InputError(f"momentum: {name!r} of shape {m.shape} is no array that has momentum here")

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
        self, replies: Iterable[Message], expected: Arrays | None, average: Callable[..., MetricRecord]
    ) -> list[Message]:
        """The replies without those that are refused; errors that nodes report stay in, for FedAvg to log."""
        replies = list(replies)
        sound, refused = sort_out(
            replies,
            expected,
            same_lengths=average is aggregate_metricrecords,
            weighted_by=self.weighted_by_key,
            max_examples=self.max_examples,
            max_bytes=self.max_bytes,
        )
        for node, reason in refused:
            _log.warning("refused the reply of node %d: %s", node, reason)
        return [reply for reply in replies if reply.has_error()] + sound


def _like(theta: NDArray[Any], value: Any) -> NDArray[Any]:
    """A value in the type of θ; averages of integers are rounded."""
    return np.asarray(value if theta.dtype.kind in "fc" else np.rint(value), dtype=theta.dtype)


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})
