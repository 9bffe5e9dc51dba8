"""Unbiased stochastic quantisation of a vector, packed into bytes: what FedPAQ sends.

A vector is cut into buckets of 512 entries, or of as many as are asked for; the whole vector may be one. Of each
bucket the largest magnitude s is sent, and of each entry the position on an even grid over [−s, s], rounded up or
down at random so that its expectation is the entry. The grid has 2ᵇ − 1 points, zero among them, and the two
points ±s for b = 1. In place of the largest magnitude s may be the Euclidean norm, as QSGD has it, which
is √n times coarser where all n entries are alike.
"""

import torch
from torch import Tensor

from fedacg.methods.upload import Chain, Link, Memory

BITS = (1, 2, 4, 8)
BUCKET = 512


class Quantise(Link):
    """b bits per entry and one scale per bucket."""

    last = True

    def __init__(self, bits: int, bucket: int = BUCKET, norm: int = 0) -> None:
        """A `bucket` of 0 is the whole vector; `norm` 2 scales by the Euclidean norm, 0 by the largest entry."""
        self.bits, self.bucket, self.norm = bits, bucket, norm
        self._last = 1 if bits == 1 else 2**bits - 2
        """The grid's last position; the first is 0."""

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        """Scales first, in the vector's own type, then the positions, 8/b of them to a byte."""
        buckets = torch.nn.functional.pad(vector, (0, self._missing(vector))).view(-1, self.bucket or len(vector))
        scale = buckets.abs().amax(dim=1, keepdim=True)
        if self.norm == 2:
            # Of what was divided by the largest entry, so that no square is too large or too small.
            scale = scale * (buckets / scale.where(scale > 0, 1)).norm(dim=1, keepdim=True)
        # Divided and not multiplied by 1/s, and rounded by a comparison: so 0 and ±s land on the grid exactly.
        position = buckets.div_(scale.where(scale > 0, 1)).mul_(self._last / 2).add_(self._last / 2)
        lower = position.floor()
        draws = torch.rand(position.shape, generator=random, dtype=position.dtype)
        codes = lower.add_(draws.lt_(position.sub_(lower))).to(torch.uint8)
        filled = torch.nn.functional.pad(codes.view(-1), (0, -codes.numel() % 8))
        return torch.cat([scale.view(-1).view(torch.uint8), self._pack(filled)])

    def decode(self, payload: Tensor, like: Tensor, rest: Chain) -> Tensor:
        """The vector that arrived, with the length and type of `like`."""
        entries = like.numel() + self._missing(like)
        count = entries // (self.bucket or entries)
        split = count * like.element_size()
        scale = payload[:split].clone().view(like.dtype).view(count, 1)
        codes = self._unpack(payload[split:])[:entries].view(count, -1).to(like.dtype)
        vector = codes.sub_(self._last / 2).div_(self._last / 2).mul_(scale)
        return vector.view(-1)[: like.numel()]

    def _missing(self, vector: Tensor) -> int:
        """Zeros that fill up the last bucket."""
        return -vector.numel() % self.bucket if self.bucket else 0

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
