"""The comparison with other frameworks, as far as it goes without them: the same work, turns, ratios, a table."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedacg import models
from fedacg.engines import one_thread

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(BENCHMARKS / "peers"))
    patch.syspath_prepend(str(BENCHMARKS))
    import compare
    import environments
    import findings
    import peer_fedacg
    import turns
    import workload

    import speed

PEER = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from turns import Turns
turns = Turns(sys.argv[1])
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], turns.Player]]:
    """Starts a peer with this program, and ends it."""
    with ExitStack() as stack:

        def start(program: str) -> turns.Player:
            source = PEER.format(folder=str(BENCHMARKS / "peers")) + program
            command = [sys.executable, "-c", source]
            player = turns.Player(command, os.environ, str(tmp_path / "peer"), tmp_path / "peer.log")
            stack.callback(player.close)
            return player

        yield start


def peer(name: str, *turns: list[float], start: float = 0.0) -> findings.Peer:
    return findings.Peer(name, start, list(turns), 1e-7, {"torch": "2.13.0"}, examples=1000, memory=1_500_000_000)


def test_the_workloads_are_those_of_the_speed_benchmark() -> None:
    for name, ours in workload.WORKLOADS.items():
        for field in fields(speed.Workload):
            assert getattr(ours, field.name) == getattr(speed.WORKLOADS[name], field.name), field.name
        assert (ours.lr, ours.clip, ours.decay) == (speed.LR, speed.CLIP, speed.DECAY)
        assert ours.shuffle


@pytest.mark.parametrize("name", workload.WORKLOADS)
def test_the_plain_networks_are_those_of_the_package(name: str) -> None:
    shape = workload.WORKLOADS[name].shape
    plain = replace(workload.WORKLOADS[name], dtype="float64").module()
    ours = models.build(name, classes=workload.CLASSES, shape=shape).double()
    assert [p.shape for p in ours.parameters()] == [p.shape for p in plain.parameters()]
    workload.load(ours, workload.vector(plain))
    x = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-12, atol=1e-12)


def test_a_workload_is_read_as_it_was_written(tmp_path: Path) -> None:
    small = workload.CHECKS["logistic"]
    small.write(tmp_path)
    given = workload.read(tmp_path)
    assert given.workload == small
    assert given.x.shape == (32, 25, 64)
    assert given.x.dtype == given.theta.dtype == torch.float64
    assert sorted(set(given.y.flatten().tolist())) == list(range(10))
    assert torch.equal(workload.vector(given.module()), given.theta)


def test_steps_go_against_the_clipped_gradient_with_decay() -> None:
    """One feature, two steps, the second on a short batch."""
    load = replace(workload.CHECKS["logistic"], shape=(1,), batch=2, epochs=1, lr=0.5, clip=0.1, decay=0.2)
    module = load.module()
    theta = torch.zeros(20, dtype=torch.float64)
    workload.load(module, theta)
    x, y = torch.tensor([[1.0], [1.0], [2.0]], dtype=torch.float64), torch.tensor([3, 3, 4])
    workload.train(module, x, y, load)
    for xs, label in ((1.0, 3), (2.0, 4)):
        weight, bias = theta[:10], theta[10:]
        slope = torch.softmax(weight * xs + bias, 0) - torch.eye(10, dtype=torch.float64)[label]
        g = torch.cat([slope * xs, slope])
        theta = theta - 0.5 * (g * 0.1 / (g.norm() + 1e-6) + 0.2 * theta)
    torch.testing.assert_close(workload.vector(module), theta, rtol=1e-12, atol=1e-12)


def test_examples_in_order_come_as_they_lie_whatever_is_asked_for() -> None:
    x = torch.arange(5.0)
    examples = peer_fedacg.InOrder(x, x.long())
    fetched = [examples.fetch(torch.randperm(5)[:size])[0].tolist() for size in (2, 2, 1, 4)]
    assert fetched == [[0, 1], [2, 3], [4], [0, 1, 2, 3]]
    filled = peer_fedacg.InOrder(x, x.long(), 4)
    assert filled.fetch(torch.randperm(8))[0].tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert filled.fetch(torch.randperm(4))[0].tolist() == [0, 1, 2, 3]
    create, arguments = examples.__reduce__()
    assert create(*arguments).fetch(torch.tensor([4]))[1].tolist() == [0]


def test_a_difference_is_a_part_of_the_way() -> None:
    theta = np.array([1.0, 1.0])
    assert compare.difference(np.array([1.0, 3.5]), np.array([1.0, 3.0]), theta) == 0.25
    with pytest.raises(SystemExit, match="3 parameters, that of fedacg 2"):
        compare.difference(np.zeros(3), np.ones(2), theta)


@pytest.mark.slow
def test_the_bare_loops_come_to_the_same_model_as_the_package(tmp_path: Path) -> None:
    peers = [findings.Peer("fedacg"), findings.Peer("bare")]
    compare.check("logistic", peers, tmp_path)
    assert peers[1].difference < 1e-12
    assert peers[1].versions == {"torch": torch.__version__}


@pytest.mark.parametrize(
    ("name", "field", "factor"),
    [
        ("logistic", "lr", 1.001),
        ("logistic", "clip", 1.001),
        ("logistic", "decay", 1.01),
        ("logistic", "epochs", 2),
        ("logistic", "batch", 2),
        ("lenet", "clip", 1.001),
        ("lenet", "decay", 1.01),
    ],
)
def test_a_peer_that_does_other_work_would_be_found_out(
    name: str, field: str, factor: float, tmp_path: Path
) -> None:
    right = replace(workload.CHECKS[name], clients=2)
    wrong = replace(right, **{field: getattr(right, field) * factor})
    right.write(tmp_path)
    given = workload.read(tmp_path)

    def end(load: workload.Workload) -> np.ndarray:
        module, total = given.module(), torch.zeros_like(given.theta)
        for x, y in zip(given.x, given.y, strict=True):
            workload.load(module, given.theta)
            workload.train(module, x, y, load)
            total += workload.vector(module)
        return (total / 2).numpy()

    with one_thread():
        assert compare.difference(end(wrong), end(right), given.theta.numpy()) > compare.TOLERANCE


def test_a_player_plays_rounds_when_it_is_told_to(begin: Callable[[str], turns.Player]) -> None:
    player = begin(
        "for played in range(3): turns.played()\nturns.finish(np.full(2, played), {'rounds': str(played + 1)})"
    )
    assert 0 <= player.round() < player.start
    assert 0 <= player.round() < player.start
    theta, versions = player.finish()
    assert theta.tolist() == [2, 2]
    assert versions == {"rounds": "3"}


def test_waiting_for_a_turn_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 15.0, 100.0, 107.0, 200.0])
    monkeypatch.setattr(turns, "perf_counter", lambda: next(clock))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "peer"))
        door.listen()
        peer = turns.Turns(str(tmp_path / "peer"))
        other, _ = door.accept()
    with other:
        other.sendall(b'"go"\n"go"\n')
        peer.played()
        peer.played()
        assert other.recv(100).split() == [b"5.0", b"7.0"]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_peer_that_fails_is_told_with_the_end_of_its_log(
    begin: Callable[[str], turns.Player], rounds: int
) -> None:
    with pytest.raises(RuntimeError, match=r"peer stopped.*peer\.log:\nno luck"):
        begin(f"for _ in range({rounds}): turns.played()\nsys.exit('no luck')").finish()


def test_a_peer_that_does_not_begin_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"peer did not begin.*peer\.log:\nno such thing"):
        turns.Player(["/bin/sh", "-c", "echo no such thing"], {}, str(tmp_path / "peer"), tmp_path / "peer.log")


def test_a_peer_that_waits_for_its_turn_ends_when_nobody_listens(begin: Callable[[str], turns.Player]) -> None:
    player = begin("turns.played()")
    player.close()
    assert player._process.returncode == 1


def test_a_peer_that_does_not_end_is_killed(
    begin: Callable[[str], turns.Player], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "FAREWELL", 0.1)
    player = begin("turns._line.say(0.0)\nimport time\ntime.sleep(600)")
    player.close()
    assert player._process.returncode == -signal.SIGKILL


def test_ratios_are_those_within_turns() -> None:
    ours, other = peer("fedacg", [1.0, 2.0, 9.0], [4.0], [3.0]), peer("pfl", [6.0, 8.0, 6.0], [8.0], [15.0])
    assert other.times(ours) == 3.0  # of 6/2, 8/4 and 15/3
    assert ours.seconds == 3.0
    assert other.seconds == 8.0


def test_the_table_has_ratios_start_up_versions_and_machine() -> None:
    found = {"lenet": [peer("fedacg", [2.0], start=5.5), peer("bare", [4.0]), peer("flower", [7.0], start=30.0)]}
    lines = findings.markdown(found, "two cores").splitlines()
    assert lines[2] == "| lenet | fedacg | 2.0000 | 500 | 0.50 | 1.00 | 1.50 | 3.5 | – |"
    assert lines[4] == "| lenet | Flower | 7.0000 | 143 | 1.75 | 3.50 | 1.50 | 23.0 | 1e-07 |"
    assert lines[-4:] == [
        "- fedacg: torch 2.13.0",
        "- bare PyTorch: torch 2.13.0",
        "- Flower: torch 2.13.0",
        "- two cores",
    ]


def test_what_was_found_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: [peer("fedacg", [0.01]), peer("bare", [0.1]), peer("flower", [2.346])] for name in ("a", "b")}
    findings.write(found, "two cores", tmp_path)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures["workloads"]["b"][2]["turns"] == [[2.346]]
    panels = findings.draw(found).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["a", "b"]
    assert [text.get_text() for text in panels[1].texts] == ["0.01 s", "0.1 s  (10 ×)", "2.35 s  (235 ×)"]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What making an environment would run."""
    run: list[list[str]] = []

    def record(command: list[object], check: bool) -> None:
        assert check
        run.append([str(part) for part in command])
        if "venv" in command:
            Path(run[-1][-1]).mkdir(exist_ok=True)

    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(environments.subprocess, "run", record)
    return run


def test_an_environment_is_made_once_and_torch_comes_first(commands: list[list[str]], tmp_path: Path) -> None:
    for _ in range(2):
        assert environments.make("pfl") == tmp_path / "pfl" / "bin"
    venv, first, second = commands
    assert venv[1:3] == ["-m", "venv"]
    assert first[-1] == environments.TORCH
    assert second[-2:] == [environments.TORCH, *environments.PACKAGES["pfl"]]


def test_an_environment_that_was_not_finished_is_made_anew(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = environments.subprocess.run

    def fail(command: list[object], check: bool) -> None:
        if environments.PACKAGES["pfl"][0] in command:
            raise subprocess.CalledProcessError(1, "pip")
        record(command, check=check)

    with monkeypatch.context() as patch:
        patch.setattr(environments.subprocess, "run", fail)
        with pytest.raises(subprocess.CalledProcessError):
            environments.make("pfl")
    commands.clear()
    environments.make("pfl")
    assert len(commands) == 3


def test_this_package_and_the_bare_loops_need_no_environment(commands: list[list[str]]) -> None:
    assert environments.make("fedacg") == environments.make("bare") == Path(sys.executable).parent
    assert commands == []


def test_other_environments_do_not_see_the_path_of_this_one(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setattr(compare, "Player", lambda command, environment, address, log: seen.update(environment))
    compare.player("fedacg", tmp_path, 3, tmp_path)
    assert seen.pop("PYTHONPATH") == "src"
    compare.player("flower", tmp_path, 3, tmp_path)
    assert "PYTHONPATH" not in seen
    assert seen["FLWR_TELEMETRY_ENABLED"] == "0"
    assert seen["RAY_TMPDIR"] == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["resnet"], "WORKLOAD = resnet: must be lenet or logistic"),
        (["--turns", "0"], "--turns = 0: must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    with pytest.raises(SystemExit) as exit:
        compare.main()
    assert exit.value.code == 2
    assert told in capsys.readouterr().err
