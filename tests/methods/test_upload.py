"""The upload chain: links in their order, what they keep, and rows that are encoded like the vectors they are."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedacg import methods
from fedacg.config import methods as catalogue
from fedacg.config.methods import MODIFIERS, Modifier
from fedacg.core.round import BESIDE
from fedacg.errors import InputError
from fedacg.methods.method import Method
from fedacg.methods.quantise import Quantise
from fedacg.methods.rules import Average
from fedacg.methods.upload import Chain, ErrorFeedback, Link, Memory
from fedacg.methods.visit import Departure
from support.quadratics import client, kept, states


class Scale(Link):
    """Sends a multiple; the server is none the wiser."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        return rest.encode(vector * self.factor, memory, random)


class Shift(Link):
    """Adds one to every entry."""

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        return rest.encode(vector + 1, memory, random)


class Largest(Link):
    """Sends the largest entries by magnitude and zeros for the others, so many of them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        places = vector.abs().topk(self.count).indices
        return rest.encode(torch.zeros_like(vector).index_copy(0, places, vector[places]), memory, random)


class Clip(Link):
    """Bounds the common norm of all that is sent."""

    joint = True

    def prepare(self, upload: Mapping[str, Tensor], random: torch.Generator) -> Mapping[str, Tensor]:
        norm = math.sqrt(sum(float(vector.square().sum()) for vector in upload.values()))
        return {name: vector / max(1.0, norm) for name, vector in upload.items()}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vector(seed: int, size: int = 40) -> Tensor:
    return torch.randn(size, generator=generator(seed), dtype=torch.float64)


def sent(chain: Chain, x: Tensor, memory: Memory | None = None, seed: int = 0) -> Tensor:
    """The vector that arrives."""
    return chain.decode(chain.encode(x, memory or Memory(), generator(seed)), x)


def test_an_empty_chain_sends_the_vectors_own_bytes_without_a_copy() -> None:
    x = vector(0)
    payload = Chain().encode(x, Memory(), generator())
    assert payload.dtype == torch.uint8
    assert len(payload) == 8 * len(x)
    assert payload.data_ptr() == x.data_ptr() == Chain().decode(payload, x).data_ptr()


def test_links_come_in_the_order_in_which_they_stand() -> None:
    x = torch.tensor([1.0, 2.0])
    assert sent(Chain((Scale(10), Shift())), x).tolist() == [11, 21]
    assert sent(Chain((Shift(), Scale(10))), x).tolist() == [20, 30]


def test_names_put_links_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(link: Link) -> Modifier:
        name = type(link).__name__.lower()
        return Modifier(
            name, "", "", {}, lambda method: Method(method.rule, method.objective, upload=(*method.upload, link))
        )

    parts = {modifier.name: modifier for modifier in map(add, (Scale(2), Shift()))}
    monkeypatch.setattr(catalogue, "MODIFIERS", {**MODIFIERS, **parts})
    for name, expected in (("scale+shift+paq", [Scale, Shift, Quantise]), ("shift+scale", [Shift, Scale])):
        assert [type(link) for link in methods.build(f"fedavg+{name}").upload] == expected
    with pytest.raises(InputError, match=r"\+shift cannot be added: no link can follow Quantise"):
        methods.build("fedavg+paq+shift")


def test_nothing_can_come_after_a_link_that_writes_bytes() -> None:
    with pytest.raises(InputError, match="no link can follow Quantise, which writes the bytes to send"):
        Method(Average(), upload=(Quantise(4), ErrorFeedback()))
    assert Method(Average(), upload=(ErrorFeedback(), Quantise(4))).chain.links[-1].last


def visits(chain: Chain, count: int) -> list[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """(Δ, what arrived, what is kept) of one client's visits."""
    memory: dict[str, Tensor] = {}
    found = []
    for visit in range(count):
        keep: dict[str, Tensor] = {}
        delta = vector(visit)
        arrived = sent(chain, delta, Memory(memory, keep, "upload/delta/"), seed=visit)
        found.append((delta, arrived, keep))
        memory = keep
    return found


@pytest.mark.parametrize("lossy", [Quantise(1), Quantise(4), Largest(3)], ids=["1 bit", "4 bits", "largest"])
def test_what_error_feedback_sends_and_keeps_is_what_was_wanted(lossy: Link) -> None:
    wanted, arrived = torch.zeros(40, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    for delta, got, keep in visits(Chain((ErrorFeedback(), lossy)), 6):
        wanted, arrived = wanted + delta, arrived + got
        (error,) = keep.values()
        assert not torch.equal(got, delta)
        torch.testing.assert_close(arrived + error, wanted, rtol=0, atol=1e-12)


def test_an_error_without_feedback_is_lost() -> None:
    for delta, got, keep in visits(Chain((Largest(3),)), 2):
        assert keep == {}
        assert int((got != 0).sum()) == 3
        assert torch.equal(got[got != 0], delta[got != 0])


def test_error_feedback_goes_by_the_whole_rest_of_the_chain() -> None:
    """Of (8, 1) only the larger arrives, tripled: e = (8, 1) − (24, 0)."""
    keep: dict[str, Tensor] = {}
    x = torch.tensor([8.0, 1.0])
    assert sent(Chain((ErrorFeedback(), Scale(3), Largest(1))), x, Memory({}, keep)).tolist() == [24, 0]
    assert [error.tolist() for error in keep.values()] == [[-16, 1]]


def test_two_links_with_state_do_not_mix() -> None:
    """The outer link wants the error of both losses back, the inner one its own alone."""
    chain = Chain((ErrorFeedback(), Largest(4), ErrorFeedback(), Largest(2)))
    memory: dict[str, Tensor] = {}
    outer = inner = torch.zeros(40, dtype=torch.float64)
    for visit in range(5):
        keep: dict[str, Tensor] = {}
        delta = vector(visit)
        got = sent(chain, delta, Memory(memory, keep), seed=visit)
        wanted = delta + outer
        four = sent(Chain((Largest(4),)), wanted)
        assert torch.equal(got, sent(Chain((Largest(2),)), four + inner))
        outer, inner = wanted - got, four + inner - got
        assert not torch.equal(outer, inner)
        assert keep.keys() == {"0/error", "0/1/2/error"}
        assert torch.equal(keep["0/error"], outer)
        assert torch.equal(keep["0/1/2/error"], inner)
        memory = keep


def test_two_vectors_of_an_upload_have_errors_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(method: Method) -> Method:
        return Method(method.rule, method.objective, upload=(ErrorFeedback(), Largest(1)))

    monkeypatch.setattr(catalogue, "MODIFIERS", {"largest": Modifier("largest", "", "", {}, add)})
    played = list(
        states([client((4, 1))], "feddc+largest", {"alpha": 0.1}, memory=tmp_path, lr=0.25, steps=1, rounds=1)
    )
    # Δ = ¼(4, 1) and g = −Δ/¼, of what arrived; each is cut to its first coordinate.
    (found,) = kept(tmp_path, 1)
    assert found["upload/delta/0/error"].tolist() == [0, 0.25]
    assert found["upload/g/0/error"].tolist() == [0, 0]
    assert found["h"].tolist() == [1, 0]
    assert found["g"].tolist() == [-4, 0] == played[0]["g"].tolist()


@pytest.mark.parametrize(
    "links",
    [
        (),
        (Quantise(2),),
        (Largest(3),),
        (ErrorFeedback(), Quantise(2)),
        (Scale(2), ErrorFeedback(), Largest(5), ErrorFeedback(), Quantise(4)),
    ],
    ids=lambda links: " ".join(type(link).__name__ for link in links) or "none",
)
def test_rows_are_encoded_like_the_vectors_they_are(links: Sequence[Link]) -> None:
    chain, rows = Chain(tuple(links)), torch.stack([vector(row) for row in range(3)])
    together: list[Memory] = [Memory() for _ in rows]
    alone: list[Memory] = [Memory() for _ in rows]
    for visit in range(3):
        seeds = [10 * visit + row for row in range(len(rows))]
        together, alone = ([Memory(memory.keep) for memory in group] for group in (together, alone))
        payloads = chain.encode_rows(rows, together, map(generator, seeds))
        singles = [
            chain.encode(x, memory, generator(seed)) for x, memory, seed in zip(rows, alone, seeds, strict=True)
        ]
        assert torch.equal(payloads, torch.stack(singles))
        decoded = torch.stack([chain.decode(payload, rows[0]) for payload in singles])
        assert torch.equal(chain.decode_rows(payloads, rows[0]), decoded)
        for one, other in zip(together, alone, strict=True):
            assert one.keep.keys() == other.keep.keys()
            assert all(torch.equal(one.keep[name], other.keep[name]) for name in one.keep)
        rows = rows * 1.5


def departure(chain: Chain, rows: Tensor) -> Departure:
    return Departure(chain, rows, [Memory() for _ in rows], [generator(row) for row in range(len(rows))])


def test_a_joint_link_changes_all_vectors_of_a_client_together() -> None:
    """Client 0 sends (3, 0), a buffer of 4 and g = (0, 12): a norm of 13. Client 1 stays below one."""
    deltas, g = torch.tensor([[3.0, 0.0], [0.1, 0.0]]), torch.tensor([[0.0, 12.0], [0.0, 0.2]])
    leaving = departure(Chain((Clip(),)), deltas)
    leaving.send("g", g)
    upload = leaving.finish(deltas, torch.tensor([[4.0], [0.3]]))
    assert {name: upload[name].dtype for name in ("delta", "g")} == dict.fromkeys(("delta", "g"), torch.uint8)
    torch.testing.assert_close(leaving.arrived("delta"), torch.tensor([[3 / 13, 0], [0.1, 0]]))
    torch.testing.assert_close(leaving.arrived("g"), torch.tensor([[0, 12 / 13], [0, 0.2]]))
    torch.testing.assert_close(upload["buffers"], torch.tensor([[4 / 13], [0.3]]))


def test_a_vector_that_follows_from_another_cannot_be_changed_with_it() -> None:
    leaving = departure(Chain((Clip(),)), torch.ones(1, 2))
    leaving.send("delta", torch.ones(1, 2))
    with pytest.raises(InputError, match="depends on how another arrives"):
        leaving.arrived("delta")


def test_what_goes_beside_the_vectors_is_sent_as_it_is() -> None:
    leaving = departure(Chain((Quantise(1),)), torch.randn(2, 5))
    counts = torch.tensor([[1, 2, 3], [4, 5, 6]])
    leaving.attach("counts", counts)
    upload = leaving.finish(torch.ones(2, 5), torch.empty(2, 0))
    assert torch.equal(upload[f"{BESIDE}counts"], counts)
    assert upload["delta"].dtype == torch.uint8
    assert upload["buffers"].shape == (2, 0)


def test_what_a_part_sends_takes_the_place_of_the_update() -> None:
    leaving = departure(Chain(), torch.ones(1, 2))
    leaving.send("delta", torch.tensor([[5.0, 6.0]]))
    leaving.finish(torch.ones(1, 2), torch.empty(1, 0))
    assert leaving.arrived("delta").tolist() == [[5, 6]]
