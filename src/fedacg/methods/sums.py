"""Rules to which only the sum of a round's updates is visible, and which rules can stand behind them.

Noise, seals and robust means work on sums; the rule inside is handed one reply that stands for all.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.errors import InputError
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Around, ServerRule, State, Totals


class StandIn(Around):
    """Passes one combined reply, such as the mean, to the inner rule, which sees no single client's.

    The inner rule must need only sums of what was sent; others are refused.
    """

    moves_buffers = True

    def __init__(self, inner: ServerRule) -> None:
        super().__init__(inner)
        self.vectors = ("delta", *plain_sums(inner))
        """The vectors of a reply that are summed, besides buffers."""

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        extras: dict[str, Term] = {name: (reply.extras[name], 1) for name in self.vectors[1:]}
        return {"delta": (reply.delta, 1), **extras, "buffers": (reply.buffers, 1)}

    def hand_on(
        self, state: State, totals: Totals, round: Round, means: Mapping[str, Tensor], count: int
    ) -> State:
        """The inner rule's step after `count` replies that all equal these means."""
        extras = {name: means[name] for name in self.vectors[1:]}
        share = 1 / max(1, count)
        one = Reply(-1, share, share, 1, 1, 1.0, 0.0, means["delta"], extras, means["buffers"])
        moved = self.inner.step(state, totals.of_mean(self.inner, one, count), round)
        buffers = moved["buffers"] if self.inner.moves_buffers else state["buffers"] + means["buffers"]
        return {**moved, "buffers": buffers}


def plain_sums(rule: ServerRule) -> tuple[str, ...]:
    """What a rule sums up beside Δ, if all its sums are plain ones: linear in what is sent, and in nothing else.

    Found by showing it replies. A rule that weighs an update by what one client did, or that needs more of it
    than its sum, is refused.
    """
    if "single updates" in rule.needs:
        raise InputError("its server must see the update of each client, but only their sum is visible")
    if rule.first_exchange:
        raise InputError("its clients first send full gradients, which are not bounded, noised or sealed")
    refuse_counts(rule)
    asked: dict[str, None] = {}
    plain, longer = _shown(rule, 1, 1, asked), _shown(rule, 2, 1, asked)
    if longer != {name: 2 * value for name, value in plain.items()}:
        raise InputError("its server needs more of each update than a sum of vectors")
    return tuple(asked)


def refuse_counts(rule: ServerRule) -> None:
    """Refuse a rule that looks at how much one client has or did: its examples, steps, rates or loss."""
    if _shown(rule, 1, 1, {}) != _shown(rule, 1, 2, {}):
        raise InputError(
            "its server weighs an update by the steps or examples of that client, which would be revealed"
        )


def _shown(rule: ServerRule, size: float, work: int, asked: dict[str, None]) -> dict[str, float]:
    """What a reply of this size after this much work adds to a rule's sums; the attributes it reads are noted."""
    vector = torch.tensor([float(size)], dtype=torch.float64)

    class Extras(dict[str, Tensor]):
        def __missing__(self, name: str) -> Tensor:
            asked[name] = None
            return vector

    reply = Reply(0, 0.5, 0.5, work, work, float(work), float(work), vector, Extras(), vector)
    return {name: float(tensor) * factor for name, (tensor, factor) in rule.collect(reply).items()}
