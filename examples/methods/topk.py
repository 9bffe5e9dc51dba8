"""Top-k uploads with error feedback (Stich et al., NeurIPS 2018), for any method, as a part.

client   sends C(Δ_i + e_i), the k entries of largest magnitude with their positions
         keeps e_i ← Δ_i + e_i − C(Δ_i + e_i)
server   uses what arrived wherever Δ_i stands

fedacg run quickstart --method fedacg+topk:topk:part=0.05
"""

from dataclasses import replace

import torch
from torch import Tensor

from fedacg.methods import Method, Modifier, Option
from fedacg.methods.upload import Chain, ErrorFeedback, Link, Memory


class TopK(Link):
    """k positions of four bytes each, then the k values, which the rest of the chain may shrink further."""

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


def add(method: Method, part: float) -> Method:
    return replace(method, upload=(*method.upload, ErrorFeedback(), TopK(part)))


topk = Modifier(
    name="topk",
    title="sparse upload with error feedback",
    equation="uploads the largest entries of Δ_i + e_i, keeps the rest as e_i",
    options={"part": Option(0.1, low=0, high=1, low_open=True, high_open=False)},
    apply=add,
)
