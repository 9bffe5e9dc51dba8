"""Uploads that are compressed with error feedback, `+sign` and `+topk`.

    client   sends C(Δ_i + e_i), keeps e_i ← Δ_i + e_i − C(Δ_i + e_i);  e_i starts at zero
             sign   C(x) = (‖x‖₁/d)·sign(x), one bit per entry and one number
             topk   C(x) = the k entries of largest magnitude, as k positions of four bytes and k values
    server   uses what arrived wherever Δ_i stands; so does a client that keeps state

The values of `+topk` may be shrunk further: `+topk+paq`, `+topk+sign`; the error is that of the whole chain.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.upload import Chain, ErrorFeedback, Link, Memory


class Sign(Link):
    """(‖x‖₁/d)·sign(x): the number first, in the vector's own type, then eight signs to a byte; 0 counts as +."""

    last = True

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        packed = torch.from_numpy(np.packbits(vector.numpy() >= 0, bitorder="little"))
        return torch.cat([vector.abs().mean().view(1).view(torch.uint8), packed])

    def decode(self, payload: Tensor, like: Tensor, rest: Chain) -> Tensor:
        split = like.element_size()
        scale = payload[:split].clone().view(like.dtype)
        bits = np.unpackbits(payload[split:].numpy(), count=len(like), bitorder="little")
        return torch.from_numpy(bits).to(like.dtype).mul_(2 * scale).sub_(scale)


class TopK(Link):
    """The entries of largest magnitude: positions first, then the values as the rest of the chain has them."""

    def __init__(self, part: float) -> None:
        self.part = part

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        places = vector.abs().topk(self._count(vector)).indices.sort().values
        values = rest.encode(vector[places], memory, random)
        return torch.cat([places.to(torch.int32).view(torch.uint8), values])

    def decode(self, payload: Tensor, like: Tensor, rest: Chain) -> Tensor:
        count = self._count(like)
        places, values = payload[: 4 * count].clone().view(torch.int32), payload[4 * count :].clone()
        vector = torch.zeros_like(like)
        vector[places.long()] = rest.decode(values, like[:count])
        return vector

    def _count(self, vector: Tensor) -> int:
        return max(1, round(self.part * vector.numel()))


def add_sign(method: Method) -> Method:
    return _with_feedback(method, Sign())


def add_topk(method: Method, part: float) -> Method:
    return _with_feedback(method, TopK(part))


def _with_feedback(method: Method, link: Link) -> Method:
    """Add a link whose error is fed back, using the chain's error feedback if it has one already."""
    fed_back = any(isinstance(each, ErrorFeedback) for each in method.upload)
    return replace(method, upload=(*method.upload, *(() if fed_back else (ErrorFeedback(),)), link))
