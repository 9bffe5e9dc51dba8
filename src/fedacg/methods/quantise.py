"""Unbiased stochastic quantisation of a vector, packed into bytes: what FedPAQ sends.

A vector is cut into buckets of 512 entries. Of each bucket the largest magnitude s is sent, and of each entry
the position on an even grid over [−s, s], rounded up or down at random so that its expectation is the entry.
The grid has 2ᵇ − 1 points, zero among them, and the two points ±s for b = 1.
"""

import torch
from torch import Tensor

from fedacg.methods.upload import Chain, Link, Memory

BITS = (1, 2, 4, 8)
BUCKET = 512


class Quantise(Link):
    """b bits per entry and one scale per bucket."""

    last = True

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._last = 1 if bits == 1 else 2**bits - 2
        """The grid's last position; the first is 0."""

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        """Scales first, in the vector's own type, then the positions, 8/b of them to a byte."""
        buckets = _buckets(vector)
        scale = buckets.abs().amax(dim=1, keepdim=True)
        # Divided and not multiplied by 1/s, and rounded by a comparison: so 0 and ±s land on the grid exactly.
        position = (buckets / scale.where(scale > 0, 1)).mul_(self._last / 2).add_(self._last / 2)
        lower = position.floor()
        up = torch.rand(position.shape, generator=random, dtype=position.dtype) < position.sub_(lower)
        codes = lower.to(torch.uint8).add_(up)
        return torch.cat([scale.view(-1).view(torch.uint8), self._pack(codes.view(-1))])

    def decode(self, payload: Tensor, like: Tensor, rest: Chain) -> Tensor:
        """The vector that arrived, with the length and type of `like`."""
        count = -(-like.numel() // BUCKET)
        split = count * like.element_size()
        scale = payload[:split].clone().view(like.dtype).view(count, 1)
        codes = self._unpack(payload[split:]).view(count, BUCKET).to(like.dtype)
        vector = codes.sub_(self._last / 2).div_(self._last / 2).mul_(scale)
        return vector.view(-1)[: like.numel()]

    def _pack(self, codes: Tensor) -> Tensor:
        per_byte = 8 // self.bits
        packed = codes[0::per_byte].clone()
        for place in range(1, per_byte):
            packed |= codes[place::per_byte] << (place * self.bits)
        return packed

    def _unpack(self, packed: Tensor) -> Tensor:
        per_byte = 8 // self.bits
        codes = packed.new_empty(len(packed) * per_byte)
        for place in range(per_byte):
            codes[place::per_byte] = (packed >> (place * self.bits)) & (2**self.bits - 1)
        return codes


def _buckets(vector: Tensor) -> Tensor:
    """The vector in rows of one bucket, the last one filled up with zeros."""
    return torch.nn.functional.pad(vector, (0, -vector.numel() % BUCKET)).view(-1, BUCKET)
