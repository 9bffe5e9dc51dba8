"""Signs and largest entries: the bytes that are sent, what arrives, and what is kept so that nothing is lost."""

import pytest
import torch
from torch import Tensor

from fedacg import methods
from fedacg.methods.compress import Sign, TopK
from fedacg.methods.method import Method
from fedacg.methods.rules import Average
from fedacg.methods.upload import Chain, ErrorFeedback, Link, Memory
from support.quadratics import client, states


def vector(seed: int, size: int = 45, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def arrived(link: Link, x: Tensor) -> Tensor:
    chain = Chain((link,))
    return chain.decode(chain.encode(x, Memory(), torch.Generator()), x)


def test_signs_by_hand() -> None:
    x = torch.tensor([3.0, -1.0, 0.0, -4.0, 2.0, 0.0, 0.0, 0.0, -6.0])  # ‖x‖₁/d = 16/9
    scale = 16 / 9
    expected = torch.tensor([scale, -scale, scale, -scale, scale, scale, scale, scale, -scale])
    torch.testing.assert_close(arrived(Sign(), x), expected)


def test_the_largest_entries_by_hand() -> None:
    x = torch.tensor([3.0, -1.0, 0.5, -4.0, 2.0, 0.0, 0.0, 0.1, -6.0, 1.5])
    assert arrived(TopK(0.3), x).tolist() == [3, 0, 0, -4, 0, 0, 0, 0, -6, 0]
    assert torch.equal(arrived(TopK(1.0), x), x)
    assert int(arrived(TopK(1e-9), x).count_nonzero()) == 1, "one at least"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_the_bytes_are_packed(size: int, dtype: torch.dtype) -> None:
    x = vector(0, size, dtype)
    signs = Chain((Sign(),)).encode(x, Memory(), torch.Generator())
    assert len(signs) == dtype.itemsize + -(-size // 8)
    kept = max(1, round(0.1 * size))
    largest = Chain((TopK(0.1),)).encode(x, Memory(), torch.Generator())
    assert len(largest) == kept * (4 + dtype.itemsize)


LINKS = [(Sign(),), (TopK(0.1),), (TopK(0.3), Sign()), (TopK(0.2), *methods.build("fedavg+paq").upload)]


class Forgets(ErrorFeedback):
    """Keeps no error."""

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        return rest.encode(vector, memory, random)


def missing(feedback: Link, links: tuple[Link, ...]) -> float:
    """How far all that arrived over some visits, with what is still kept, is from all that was wanted."""
    chain, kept = Chain((feedback, *links)), {}
    wanted, total = torch.zeros(45, dtype=torch.float64), torch.zeros(45, dtype=torch.float64)
    for visit in range(20):
        x = vector(visit, dtype=torch.float64)
        memory = Memory(kept)
        total += chain.decode(chain.encode(x, memory, torch.Generator().manual_seed(visit)), x)
        kept, wanted = memory.keep, wanted + x
    return float((total + kept.get("0/error", torch.zeros(())) - wanted).abs().max())


@pytest.mark.parametrize("links", LINKS, ids=["sign", "topk", "topk and sign", "topk and paq"])
def test_what_was_sent_and_what_is_kept_are_what_was_wanted(links: tuple[Link, ...]) -> None:
    assert missing(ErrorFeedback(), links) < 1e-12
    assert missing(Forgets(), links) > 0.1


@pytest.mark.parametrize("name", ["fedavg+sign", "fedavg+topk", "fedcams"])
def test_what_is_sent_is_small_and_takes_the_model_to_the_same_place(name: str) -> None:
    # Two opposite pulls and a third: without its error fed back, a sign alone would not settle near the mean.
    clients = [client((4, 1)), client((0, 3)), client((2, -1))]
    options = {"part": 0.5} if "topk" in name else {}
    *_, state = states(clients, name, options, rounds=400, lr=0.1, lr_decay=0.985)
    torch.testing.assert_close(state["theta"], torch.tensor([2.0, 1.0]).double(), rtol=0, atol=0.1)


def test_a_second_compression_shares_the_error_feedback_of_the_first() -> None:
    method = methods.build("fedavg+topk+sign", {"part": 0.5})
    assert [type(link) for link in method.upload] == [ErrorFeedback, TopK, Sign]
    assert Method(Average(), upload=method.upload).chain.links == method.upload
