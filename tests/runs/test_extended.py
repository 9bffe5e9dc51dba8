"""Runs that go on beyond their end, or start from where another run ended."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import InputError
from fedacg.runs import folder as folders
from fedacg.runs.contents import load_moment
from fedacg.simulation.metrics import RoundMetrics
from support.command import Command
from support.runs import tiny

SECONDS = ("seconds_train", "seconds_aggregate", "seconds_evaluate")


def problem(**settings: Any) -> dict[str, Any]:
    source = torch.Generator().manual_seed(5)
    inputs = [torch.randn(n, 4, generator=source) for n in (8, 9, 10, 11, 53)]
    pairs = [(x, x[:, :3].argmax(dim=1)) for x in inputs]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
    data = {"model": net, "clients": pairs[:-1], "test": pairs[-1]}
    return {**data, "rounds": 4, "participation": 0.5, "local_steps": 2, **settings}


def figures(path: Path) -> list[dict[str, Any]]:
    """The lines of a run without what depends on the clock."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in (*SECONDS, "check")} for line in lines]


@pytest.mark.parametrize("method", ["fedacg", "scaffold"])
def test_an_extended_run_is_one_that_was_played_in_one_go(tmp_path: Path, method: str) -> None:
    settings: dict[str, Any] = {"method": method, "evaluate_every": 3, "lr_decay": 0.9, "validation": 0.2}
    fedacg.run(**problem(**settings), out=tmp_path / "long")
    longer = fedacg.run(**problem(**settings, rounds=7), out=tmp_path / "long", resume=True)
    whole = fedacg.run(**problem(**settings, rounds=7), out=tmp_path / "whole")
    assert torch.equal(longer.vector, whole.vector)
    assert figures(tmp_path / "long") == figures(tmp_path / "whole"), "round 4 is not the last any more"
    for name in ("experiment.toml", "run.json"):
        assert (tmp_path / "long" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert longer.summary["vector_sha256"] == whole.summary["vector_sha256"]


def test_the_test_set_of_a_run_that_looks_at_the_end_is_looked_at_at_the_new_end(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"evaluate": {"test": "end"}, "validation": 0.2}
    fedacg.run(**problem(**settings), out=tmp_path / "run")
    longer = fedacg.run(**problem(**settings, rounds=6), out=tmp_path / "run", resume=True)
    assert [m.round for m in longer.history if m.test_loss is not None] == [6]
    assert len(longer.history.series("validation/loss")) == 6


def test_a_kill_between_the_files_of_an_extension_leaves_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedacg.run(**problem(rounds=6)).vector
    write, most = folders.files.write_whole, 0
    while True:
        out = tmp_path / f"{most}"
        fedacg.run(**problem(), out=out)
        left = iter(range(most))

        def dying(path: Path, content: bytes, left: Any = left) -> None:
            if path.name in ("run.json", "experiment.toml", "metrics.jsonl") and next(left, None) is None:
                raise KeyboardInterrupt
            write(path, content)

        monkeypatch.setattr(folders.files, "write_whole", dying)
        try:
            fedacg.run(**problem(rounds=6), out=out, resume=True)
            break
        except KeyboardInterrupt:
            monkeypatch.setattr(folders.files, "write_whole", write)
        assert torch.equal(fedacg.run(**problem(rounds=6), out=out, resume=True).vector, whole)
        most += 1
    assert most == 4, "the marker twice, the description, the lines"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"local": {"schedule": "cosine", "steps": 2}, "local_steps": None},
            "local.schedule = 'cosine' depends on",
        ),
        ({"method": "fedacg+swa"}, r"method.name = 'fedacg\+swa' depends on the number of rounds"),
    ],
)
def test_what_goes_by_the_number_of_rounds_is_not_extended(
    tmp_path: Path, settings: dict[str, Any], error: str
) -> None:
    before = fedacg.run(**problem(**settings), out=tmp_path / "run")
    with pytest.raises(InputError, match=f"rounds is 4 there and 6 here, and {error}"):
        fedacg.run(**problem(**settings, rounds=6), out=tmp_path / "run", resume=True)
    again = fedacg.run(**problem(**settings), out=tmp_path / "run", resume=True)
    assert torch.equal(again.vector, before.vector)


def test_a_run_is_not_made_shorter(tmp_path: Path) -> None:
    fedacg.run(**problem(), out=tmp_path / "run")
    with pytest.raises(InputError, match="rounds is 4 there and 2 here"):
        fedacg.run(**problem(rounds=2), out=tmp_path / "run", resume=True)


def test_the_command_says_that_a_run_is_finished_and_extends_it(fedacg: Command) -> None:
    assert fedacg("run", "tiny.toml", "--out", "run", "--set", "rounds=2").code == 0
    again = fedacg("run", "tiny.toml", "--out", "run", "--set", "rounds=2", "--resume")
    assert "run: this run is finished, so there is nothing to resume; --set rounds=4 would continue" in again.out
    longer = fedacg("run", "tiny.toml", "--out", "run", "--set", "rounds=4", "--resume")
    assert longer.code == 0
    assert "finished" not in longer.out
    assert "rounds = 4\n" in (fedacg.folder / "run" / "experiment.toml").read_text()


# Warm starts.


def theta(path: Path) -> Tensor:
    return load_moment(path).vectors["theta"]


def first_point(**settings: Any) -> Tensor:
    """Where a run stands that does not move: its rate is next to nothing."""
    return fedacg.run(**problem(rounds=1, lr=1e-30, **settings)).vector


def test_a_run_starts_from_the_model_of_another(tmp_path: Path) -> None:
    before = fedacg.run(**problem(method="fedavgm"), out=tmp_path / "one")
    assert torch.equal(first_point(method="fedavg", start=str(tmp_path / "one")), before.vector)
    assert not torch.equal(first_point(method="fedavg"), before.vector)


def test_the_server_goes_on_with_its_momentum(tmp_path: Path) -> None:
    # With a rate of next to nothing Δ = 0: θ moves by βm alone, and only a momentum that came along moves it.
    fedacg.run(**problem(method="fedavgm"), out=tmp_path / "one")
    start, m = theta(tmp_path / "one"), load_moment(tmp_path / "one").vectors["m"]
    beta = fedacg.methods.complete("fedavgm", {})["beta"]
    found = first_point(method="fedavgm", start=str(tmp_path / "one"), start_vectors="server")
    assert torch.allclose(found, start + beta * m)
    assert torch.equal(first_point(method="fedavgm", start=str(tmp_path / "one")), start)


def test_a_warm_start_resumes_to_the_bit_without_the_other_run(tmp_path: Path) -> None:
    fedacg.run(**problem(), out=tmp_path / "one")
    start = {"start": str(tmp_path / "one"), "start_vectors": "server", "rounds": 5}
    whole = fedacg.run(**problem(**start), workers=2)

    def stop(metrics: RoundMetrics) -> None:
        if metrics.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedacg.run(**problem(**start), out=tmp_path / "two", on_round=stop)
    resumed = fedacg.run(**problem(**start), out=tmp_path / "two", resume=True)
    assert torch.equal(resumed.vector, whole.vector)


def test_a_start_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    fedacg.run(**problem(), out=tmp_path / "one")
    fedacg.run(**problem(method="scaffold"), out=tmp_path / "scaffold")
    one, other = str(tmp_path / "one"), str(tmp_path / "scaffold")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"start": str(tmp_path / "none")}, "no run with a checkpoint.safetensors there"),
        (
            {"start": one, "model": nn.Linear(4, 5)},
            "theta is 15 numbers of torch.float32 there, 25 of torch.float32",
        ),
        ({"start": one, "model": nn.Linear(4, 3).double()}, "15 of torch.float64 here"),
        ({"start": one, "start_vectors": "server", "method": "fedavg"}, "that run is of fedacg, this one of"),
        ({"start": other, "start_vectors": "server", "method": "scaffold"}, "clients of scaffold keep vectors"),
        ({"start_vectors": "server"}, "has no effect, as start is not set"),
    ]
    for settings, error in cases:
        with pytest.raises(InputError, match=error):
            fedacg.run(**problem(**settings), out=tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_a_start_is_a_key_of_files(tmp_path: Path) -> None:
    first = fedacg.run(tiny(tmp_path, "rounds=2"), out=tmp_path / "one")
    settings = ("rounds=1", "local.lr=1e-30", f"start={tmp_path / 'one'}", "method.name=fedavg")
    assert torch.equal(fedacg.run(tiny(tmp_path, *settings)).vector, first.vector)
