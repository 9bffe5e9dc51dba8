"""On disk vectors are in the canonical order, so a run may go on in another memory layout than it began in."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import fedacg
from fedacg.core.files import unseal
from fedacg.core.vector import FlatModel, Layout, clone, load_vectors
from fedacg.errors import InputError
from fedacg.runs.client_states import ClientStates
from fedacg.runs.contents import load_moment, read_marker

METHODS = ["fedacg", "feddyn", "feddc", "fedadam"]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 16, 3)).double()


def data() -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randn(10, 2, 6, 6, generator=source).double(), torch.randint(0, 3, (10,), generator=source))
        for _ in range(4)
    ]


def play(out: Path, channels_last: bool, *, stop: int = 0, **settings: Any) -> fedacg.Result | None:
    def interrupt(metrics: Any) -> None:
        if metrics.round == stop:
            raise KeyboardInterrupt

    clients, model = data(), network()
    # A model's own wish and not a setting: the description is the same whichever it is.
    model.channels_last = channels_last  # type: ignore[assignment]
    given = {"rounds": 6, "participation": 0.5, "local_steps": 3, "batch_size": 5, "workers": 0} | settings
    try:
        return fedacg.run(
            model=model,
            clients=clients,
            test=clients[0],
            out=out,
            on_round=interrupt,
            **given,
        )
    except KeyboardInterrupt:
        return None


def test_the_way_to_the_canonical_order_and_back() -> None:
    module = network()
    canonical = parameters_to_vector(module.parameters()).detach()
    flat = FlatModel(clone(module), channels_last=True)
    layout = Layout.of(module, channels_last=True)
    others = {"buffers": torch.randn(layout.size), "short": torch.randn(3), "matrix": torch.randn(layout.size, 1)}
    turned = layout.to_canonical({"theta": flat.w, **others})
    assert not torch.equal(flat.w, canonical)
    assert torch.equal(turned["theta"], canonical)
    assert all(turned[name] is vector for name, vector in others.items())
    assert torch.equal(layout.from_canonical(turned)["theta"], flat.w)
    assert Layout.of(module, channels_last=False).to_canonical({"w": canonical})["w"] is canonical


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("first", [True, False])
def test_a_run_goes_on_in_the_other_layout(tmp_path: Path, method: str, first: bool) -> None:
    whole = play(tmp_path / "whole", first, method=method)
    assert play(tmp_path / "run", first, method=method, stop=3) is None
    changed = play(tmp_path / "run", not first, method=method, resume=True)
    assert whole is not None
    assert changed is not None
    # The two layouts sum in another order, so the bits differ, and in float64 nothing else does.
    assert torch.allclose(changed.vector, whole.vector, rtol=1e-7, atol=1e-9)
    marker = read_marker(tmp_path / "run")
    assert marker is not None
    assert marker.layout == ("default" if first else "channels-last")


def test_a_stop_in_one_layout_costs_no_bit(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", True, method="feddyn")
    play(tmp_path / "run", True, method="feddyn", stop=3)
    again = play(tmp_path / "run", True, method="feddyn", resume=True)
    assert whole is not None
    assert again is not None
    assert torch.equal(again.vector, whole.vector)


def test_all_vectors_on_disk_are_canonical(tmp_path: Path) -> None:
    for layout in (True, False):
        play(tmp_path / str(layout), layout, method="feddyn", rounds=2, cohorts=[[0, 1], [1, 2]])
    last, default = (load_moment(tmp_path / str(layout)).vectors for layout in (True, False))
    assert last.keys() == default.keys()
    assert all(torch.allclose(last[name], default[name], atol=1e-9) for name in last)
    states = [ClientStates(tmp_path / str(layout) / "clients") for layout in (True, False)]
    for memory in states:
        memory.rewind(2)
    for client in (0, 1, 2):
        kept, expected = (memory.read(client) for memory in states)
        assert all(torch.allclose(kept[name], expected[name], atol=1e-9) for name in expected)


def as_first_format(folder: Path) -> None:
    """A run folder as versions before checksums wrote it."""
    for path in folder.rglob("*.safetensors"):
        vectors, facts = load_vectors(path)
        kept = {"format": "1", "round": facts["round"]} if "format" in facts else None
        older = path
        if path.parent.parent.name == "clients":
            client, round = path.stem.split("-")
            older = folder / "clients" / client / f"{round}.safetensors"
            older.parent.mkdir(exist_ok=True)
        path.unlink()
        from safetensors.torch import save_file

        save_file(vectors, older, metadata=kept)
    (folder / "run.json").unlink()
    for name in ("metrics.jsonl", "summary.json"):
        if (folder / name).exists():
            lines = (folder / name).read_bytes()
            parts = lines.splitlines() if name == "metrics.jsonl" else [lines]
            (folder / name).write_text("".join(json.dumps(unseal(part)) + "\n" for part in parts))


def test_a_folder_of_the_first_format_is_resumed_where_its_order_is_certain(tmp_path: Path) -> None:
    pairs = [(x.flatten(1), y) for x, y in data()]

    def dense(out: Path | None, **settings: Any) -> fedacg.Result:
        torch.manual_seed(0)
        return fedacg.run(
            model=nn.Linear(72, 3).double(), clients=pairs, test=pairs[0], method="feddyn", rounds=6, out=out,
            participation=0.5, local_steps=2, **settings,
        )  # fmt: skip

    def stop(metrics: Any) -> None:
        if metrics.round == 4:
            raise KeyboardInterrupt

    whole = dense(None)
    for restart in (False, True):
        out = tmp_path / f"run{restart}"
        with pytest.raises(KeyboardInterrupt):
            dense(out, on_round=stop)
        as_first_format(out)
        if restart:  # stopped again before the first checkpoint of this version

            def at_once(metrics: Any) -> None:
                raise ConnectionError

            with pytest.raises(ConnectionError):
                dense(out, resume=True, on_round=at_once)
        assert torch.equal(dense(out, resume=True).vector, whole.vector)


def test_a_folder_of_the_first_format_whose_order_nobody_knows_is_refused(tmp_path: Path) -> None:
    play(tmp_path / "run", True, stop=3)
    as_first_format(tmp_path / "run")
    for layout in (True, False):
        with pytest.raises(
            InputError, match="was written by an older version, which stored convolutions in an unrecorded"
        ):
            play(tmp_path / "run", layout, resume=True)
