"""The memory layout that `auto` stands for: by the network, tried before the first round, kept when resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedacg
from fedacg.config.recipe import find, override
from fedacg.core.files import unseal
from fedacg.runs.build import prepare
from fedacg.runs.choices import example_cost, takes_channels_last
from fedacg.runs.contents import read_marker

SHAPE = (2, 8, 8)


class Own(nn.Module):
    """A network as a user writes one; `end` is how it gets from features to a vector."""

    def __init__(self, end: str = "flatten") -> None:
        super().__init__()
        self.end = end
        self.first, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.drop, self.head = nn.Dropout(0.25), nn.Linear(8 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        match self.end:
            case "view":
                x = x.view(len(x), -1)
            case "memory":  # other numbers in another layout, and no error
                x = x.as_strided((len(x), 32), (32, 1))
            case "gradient":  # its forward pass works in any layout
                x = Particular.apply(x).flatten(1)
            case _:
                x = x.flatten(1)
        logits: Tensor = self.head(self.drop(x))
        return logits


class Particular(torch.autograd.Function):
    """The identity, whose gradient can only be taken in the ordinary layout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.ordinary = x.is_contiguous()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if not ctx.ordinary:
            raise RuntimeError("view size is not compatible")
        return gradients[0]


def own(end: str = "flatten") -> Own:
    torch.manual_seed(0)
    return Own(end)


def data(clients: int = 4) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randn(12, *SHAPE, generator=source), torch.randint(0, 3, (12,), generator=source))
        for _ in range(clients)
    ]


def play(out: Path | None = None, model: nn.Module | None = None, **settings: Any) -> fedacg.Result:
    clients = data()
    given: dict[str, Any] = {"rounds": 3, "participation": 0.5, "local_steps": 3, "batch_size": 5} | settings
    return fedacg.run(model=model or own(), clients=clients, test=clients[0], out=out, **given)


def layout(folder: Path) -> str:
    marker = read_marker(folder)
    assert marker is not None
    assert unseal((folder / "model.json").read_bytes())["channels_last"] == (marker.layout == "channels-last")
    return marker.layout


@pytest.mark.parametrize(
    ("end", "expected"),
    [("flatten", "channels-last"), ("view", "default"), ("memory", "default")],
)
def test_a_network_that_says_nothing_gets_what_it_can_take(tmp_path: Path, end: str, expected: str) -> None:
    chosen = play(tmp_path / "run", own(end))
    assert layout(tmp_path / "run") == expected
    said = play(None, own(end), channels_last=expected == "channels-last")
    assert torch.equal(chosen.vector, said.vector)


def test_the_two_layouts_round_differently() -> None:
    """Otherwise the equalities of this file say nothing."""
    last, default = (play(None, channels_last=each).vector for each in (True, False))
    assert not torch.equal(last, default)
    assert torch.allclose(last, default, atol=1e-4)


def test_a_gradient_that_fails_counts_as_well() -> None:
    assert takes_channels_last(own(), SHAPE)
    assert not takes_channels_last(own("gradient"), SHAPE)


def test_what_is_said_counts_before_the_rule(tmp_path: Path) -> None:
    play(tmp_path / "key", layout="default")
    assert layout(tmp_path / "key") == "default"
    wishing = own()
    wishing.channels_last = False  # type: ignore[assignment]
    play(tmp_path / "wish", wishing)
    assert layout(tmp_path / "wish") == "default"


def test_the_trial_leaves_the_network_and_the_generator_alone() -> None:
    network, before = own(), torch.random.get_rng_state()
    parameters = [p.detach().clone() for p in network.parameters()]
    assert takes_channels_last(network, SHAPE)
    assert network.training
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), parameters, strict=True))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_resumed_run_keeps_its_layout(tmp_path: Path) -> None:
    """A run of a version that gave every such network the ordinary layout goes on in it, to the bit."""

    def stop(metrics: Any) -> None:
        if metrics.round == 2:
            raise KeyboardInterrupt

    older = own()
    older.channels_last = False  # type: ignore[assignment]
    whole = play(None, older, rounds=4)
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "run", older, rounds=4, on_round=stop)
    resumed = play(tmp_path / "run", rounds=4, resume=True)
    assert layout(tmp_path / "run") == "default"
    assert torch.equal(resumed.vector, whole.vector)
    assert not torch.equal(play(None, rounds=4).vector, whole.vector)


@pytest.mark.parametrize(("fuse", "expected"), [("auto", "default"), ("on", "default"), ("off", "channels-last")])
def test_small_networks_are_rather_trained_many_clients_at_a_time(
    tmp_path: Path, fuse: str, expected: str
) -> None:
    small = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    clients = data(20)
    assert 5 * example_cost(small, clients[0][0][:1]) < 1_500_000
    settings: dict[str, Any] = {"rounds": 1, "local_steps": 1, "batch_size": 5, "cohort": {"size": 16}}
    fedacg.run(model=small, clients=clients, out=tmp_path / "run", engine={"fuse": fuse}, **settings)
    assert layout(tmp_path / "run") == expected
    few = settings | {"cohort": {"size": 15}}
    fedacg.run(model=small, clients=clients, out=tmp_path / "few", engine={"fuse": "auto"}, **few)
    assert layout(tmp_path / "few") == "channels-last"


def test_a_step_with_much_to_compute_is_not_fused(tmp_path: Path) -> None:
    wide = nn.Sequential(nn.Conv2d(2, 64, 3), nn.Conv2d(64, 32, 3), nn.Flatten(), nn.Linear(32 * 16, 3))
    assert 5 * example_cost(wide, data(1)[0][0][:1]) > 1_500_000
    fedacg.run(
        model=wide, clients=data(20), out=tmp_path, rounds=1, local_steps=1, batch_size=5, participation=1.0
    )
    assert layout(tmp_path) == "channels-last"


def plain(shape: tuple[int, ...], classes: int) -> nn.Module:
    """What `model.name` may name."""
    return nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, classes))


def test_a_deployed_network_has_the_ordinary_layout_unless_it_asks_for_another() -> None:
    tree = override(find("quickstart"), ["cohort.size=4"])
    tree["model"] = {"name": "tests.runs.test_layout_choice:plain"}
    described = fedacg.Experiment.parse(tree)
    assert prepare(described).channels_last
    assert not prepare(described, deployed=True).channels_last
    tree["model"] = {"name": "cnn"}
    assert prepare(fedacg.Experiment.parse(tree), deployed=True).channels_last
