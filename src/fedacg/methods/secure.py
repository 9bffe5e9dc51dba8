"""Secure sums, `+secure`: the server sees the sum of a cohort's updates and no single one.

    client   u_i ← u_i · min(1, C/‖u_i‖);  k_i = trunc(u_i/s) mod 2^b, b bits per entry;  s = C·N/(2^{b−1} − 1)
    server   Σ_S u_i ≈ s·(Σ_S k_i mod 2^b), read as numbers from −2^{b−1} on;  all weights the same

Rounding towards zero makes no update longer than it was, and the sum is off by less than s for each client. What
masks the k_i from the server are keys that neighbours agree on, as in SecAgg+: in a simulation nothing is masked,
but what a server could not know is refused, and the bytes are counted. Of those a client takes part in, per
round: two keys of 32 bytes to the server and two of each of its k neighbours back; for each neighbour two shares
of 33 bytes and 40 bytes of sealing, there and back; and one share of each neighbour when sums are opened, with
k = min(M − 1, 2⌈log₂ M⌉). Models with buffers are refused.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedacg.core.round import Message, Round
from fedacg.errors import InputError
from fedacg.methods.dp import ClipTogether
from fedacg.methods.method import Method
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import ServerRule, State, Totals
from fedacg.methods.sums import StandIn
from fedacg.methods.upload import Chain, Link, Memory

_KEY, _SHARE, _SEAL, _NAME = 32, 33, 40, 4
"""Bytes of a public key, of a share of a secret, of what authenticated encryption adds, and of a client's name."""


class BoundTogether(ClipTogether):
    """Clips as `+dp` does, without reporting whether it clipped."""

    def leave(self, upload: Mapping[str, Tensor], fits: bool, random: torch.Generator) -> Mapping[str, Tensor]:
        return upload


class FixedPoint(Link):
    """b bits per entry: multiples of a step that the server announces, modulo 2^b."""

    joint = covers = last = shrinks = True
    needs = frozenset({"uniform weights", "no buffers"})

    def __init__(self, bits: int, step: float = 1.0) -> None:
        self.bits, self._step = bits, step

    def hear(self, broadcast: Message) -> None:
        self._step = float(broadcast["step"])

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        whole: Tensor = (vector.double() / self._step).trunc().to(torch.int64) % 2**self.bits
        return whole.view(torch.uint8).view(-1, 8)[:, : self.bits // 8].reshape(-1)

    def decode(self, payload: Tensor, like: Tensor, rest: Chain) -> Tensor:
        return self.value(self.whole(payload)).to(like.dtype)

    def whole(self, payload: Tensor) -> Tensor:
        """The numbers from 0 to 2^b that were sent."""
        width = self.bits // 8
        bytes = torch.nn.functional.pad(payload.view(-1, width), (0, 8 - width))
        return bytes.reshape(-1).view(torch.int64)

    def value(self, whole: Tensor) -> Tensor:
        """What numbers modulo 2^b stand for."""
        half = 2 ** (self.bits - 1)
        signed: Tensor = (whole + half) % 2**self.bits - half
        return signed.double() * self._step


class Sealed(StandIn):
    """Adds up whole numbers modulo 2^b and passes the decoded sum to the inner rule."""

    def __init__(self, inner: ServerRule, clip: float, bits: int) -> None:
        super().__init__(inner)
        self.clip, self.bits = clip, bits

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        step = torch.tensor([self.step_size(state, round)], dtype=torch.float64)
        return {**super().broadcast(state, round), "step": step}

    def step_size(self, state: State, round: Round) -> float:
        """s: as large as it must be for the sum over all clients to fit."""
        clip = float(state["clip"]) if "clip" in state else self.clip
        return clip * round.clients / float(2 ** (self.bits - 1) - 1)

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        link = FixedPoint(self.bits)
        whole: dict[str, Term] = {name: (link.whole(sent), 1) for name, sent in reply.payloads.items()}
        return {**super().collect(reply), **whole}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        link = FixedPoint(self.bits, self.step_size(state, round))
        means: dict[str, Tensor] = {}
        for name in (*self.vectors, "buffers"):
            like = state["buffers" if name == "buffers" else "theta"]
            total = totals.get(name, torch.zeros_like(like))
            value = link.value(total) if total.dtype == torch.int64 else total
            means[name] = (value / max(1, totals.count)).to(like.dtype)
        return self.hand_on(state, totals, round, means, totals.count)

    def beside_bytes(self, asked: int, answered: int) -> tuple[int, int]:
        return key_bytes(asked, answered)


def key_bytes(asked: int, answered: int) -> tuple[int, int]:
    """Bytes down and up of a round's keys and shares, by the formula above."""
    if asked < 2:
        return 0, 0
    neighbours = min(asked - 1, 2 * math.ceil(math.log2(asked)))
    packet = 2 * _SHARE + _SEAL
    up = asked * (2 * _KEY + neighbours * packet) + answered * neighbours * _SHARE
    down = asked * neighbours * (2 * _KEY + packet) + answered * neighbours * _NAME
    return down, up


def add_secure(method: Method, clip: float, bits: float) -> Method:
    if any(link.last for link in method.upload):
        raise InputError("its clients encode their updates in a way that cannot be added up")
    bound = next((link for link in method.upload if isinstance(link, ClipTogether)), None)
    if bound is not None and not bound.bounds:
        raise InputError("clients' own noise is unbounded, but a sealed update must be bounded")
    links = method.upload if bound is not None else (BoundTogether(clip), *method.upload)
    rule = Sealed(method.rule, bound.clip if bound is not None else clip, int(bits))
    return replace(method, rule=rule, upload=(*links, FixedPoint(int(bits))))
