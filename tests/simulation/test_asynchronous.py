"""Asynchronous rounds: by hand, FedBuff as FedAvg, the same bits on any engine and after kill -9."""

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedacg.config.experiment import Experiment
from fedacg.config.participation import AsynchronousSettings, ClockSettings, CohortSettings
from fedacg.config.sections import EvaluateSettings, LocalSettings
from fedacg.data.own_data import from_pairs
from fedacg.engines.serial import SerialEngine
from fedacg.methods import build
from fedacg.runs.build import plan, prepare
from fedacg.runs.client_states import ClientStates
from fedacg.runs.runner import Result, play
from fedacg.simulation.asynchronous import STALENESS, VERSION, AsynchronousFederation
from fedacg.simulation.clock import CLOCK, Clock
from fedacg.simulation.engine import Job
from fedacg.simulation.sampling import Sampling
from support.command import Command, lines, refused, start
from support.quadratics import Point, client, half_square
from support.runs import StopAfter, digest, tiny


def played(folder: Path, *settings: str, **others: object) -> Result:
    experiment = tiny(folder, "rounds=6", *settings)
    return play(experiment, prepare(experiment), **others)  # type: ignore[arg-type]


METHODS = ["fedavg", "fedacg", "fedavgm", "feddyn", "fedavg+topk"]


@pytest.mark.parametrize("method", METHODS)
def test_without_delays_a_buffer_as_large_as_the_cohort_is_the_synchronous_method(
    method: str, tmp_path: Path
) -> None:
    """To the bit: FedBuff is FedAvg then, and what clients keep is found again."""
    named = f"method.name={method}"
    waiting, buffered = played(tmp_path, named), played(tmp_path, named, "asynchronous.buffer=3")
    assert digest(waiting) == digest(buffered)
    assert [m.cohort for m in waiting.history] == [m.cohort for m in buffered.history]
    assert [m.bytes_down for m in waiting.history] == [m.bytes_down for m in buffered.history]
    assert [m.train_loss for m in waiting.history] == [m.train_loss for m in buffered.history]
    assert set(buffered.history.series(STALENESS).values()) == {0.0}


def test_fused_clients_are_the_same_too(tmp_path: Path) -> None:
    settings = ("engine.fuse=on", "cohort.size=5")
    assert digest(played(tmp_path, *settings)) == digest(played(tmp_path, *settings, "asynchronous.buffer=5"))


def test_the_rate_falls_from_step_to_step_as_it_does_from_round_to_round(tmp_path: Path) -> None:
    falling = ("local.lr_decay=0.5", "local.lr=0.5")
    waiting, buffered = played(tmp_path, *falling), played(tmp_path, *falling, "asynchronous.buffer=3")
    assert digest(waiting) == digest(buffered) != digest(played(tmp_path, "local.lr=0.5"))


def federation(
    folder: Path, times: list[float], method: str, cohort: int, steps: int, **settings: object
) -> AsynchronousFederation:
    """Clients that pull a point to 8, 16, 24, … with one step of rate ½, and answer after so many seconds."""
    path = folder / "devices.csv"
    path.write_text(
        "client,flops,down,up,latency\n" + "".join(f"{c},inf,inf,inf,{t}\n" for c, t in enumerate(times))
    )
    pairs = [client((8.0 * (c + 1), 0.0)) for c in range(len(times))]
    name, _, option = method.partition(":")
    options = {key: float(value) for key, _, value in (part.partition("=") for part in option.split(":")) if key}
    rule = build(name, options).with_loss(half_square)
    local = LocalSettings(epochs=1, batch=10, lr=0.5)
    job = Job(Point(), False, from_pairs(pairs, pairs[0]), rule, local, 0, 10)
    return AsynchronousFederation(
        job,
        SerialEngine(),
        settings=AsynchronousSettings.model_validate(settings),
        clock=Clock(ClockSettings(profile=str(path)), job, 0),
        rounds=steps,
        sampling=Sampling(CohortSettings(size=cohort), clients=len(times), seed=0),
        evaluate=EvaluateSettings(),
        memory=ClientStates(folder / "clients"),
    )


def thetas(federated: AsynchronousFederation) -> list[float]:
    return [float(federated.server.vectors["theta"][0]) for _ in federated.run()]


def test_fedbuff_by_hand(tmp_path: Path) -> None:
    """Two clients are always at work, client 0 for 1 second and client 1 for 3; the server moves with each answer.

    t=1: client 0 answers Δ = ½(8 − 0) = 4 of version 0: θ = 4. It is asked again with version 1.
    t=2: Δ = ½(8 − 4) = 2 of version 1: θ = 6. Asked again with version 2.
    t=3: both answer. Client 1's visit was drawn first, so it comes first: Δ = ½(16 − 0) = 8 of version 0, two
         steps old, weighs 3^−½: θ = 6 + 8/√3. Then client 0's Δ = ½(8 − 6) = 1 of version 2, one step old by
         now, weighs 2^−½.
    """
    federated = federation(tmp_path, [1.0, 3.0], "fedavg", cohort=2, steps=4, buffer=1, staleness=0.5)
    history = []
    found = []
    for metrics in federated.run():
        history.append(metrics)
        found.append(float(federated.server.vectors["theta"][0]))
    assert found == pytest.approx([4, 6, 6 + 8 / 3**0.5, 6 + 8 / 3**0.5 + 1 / 2**0.5], abs=1e-12)
    assert [m.score(CLOCK) for m in history] == [1.0, 2.0, 3.0, 3.0]
    assert [m.score(STALENESS) for m in history] == [0, 0, 2, 1]
    assert [m.arrived for m in history] == [(0,), (0,), (1,), (0,)]


def test_fedasync_by_hand(tmp_path: Path) -> None:
    """The same visits mixed as models, α = ½ and no discount: θ ← θ + ½(w_i − θ).

    t=1: w = 4, θ = 2. t=2: w = 2 + ½(8 − 2) = 5, θ = 3.5. t=3: w = 0 + ½·16 = 8, θ = 5.75;
    w = 3.5 + ½(8 − 3.5) = 5.75, so θ = 5.75.
    """
    federated = federation(
        tmp_path,
        [1.0, 3.0],
        "fedavg:server_lr=0.5",
        cohort=2,
        steps=4,
        buffer=1,
        staleness=0.0,
        aggregate="models",
    )
    assert thetas(federated) == pytest.approx([2, 3.5, 5.75, 5.75], abs=1e-12)


def test_buffered_fedacg_by_hand(tmp_path: Path) -> None:
    """λ = ½, β = 0, no discount. The lookahead φ = θ + ½m is what a client gets, whenever it is asked.

    t=1: Δ = 4: m = 4, θ = 4. Asked anew at φ = 6. t=2: Δ = ½(8 − 6) = 1: m = 3, θ = 7. Asked anew at φ = 8.5.
    t=3: client 1's Δ = 8 of version 0: m = 9.5, θ = 16.5; client 0's Δ = ½(8 − 8.5) = −¼: m = 4.5, θ = 21.
    """
    federated = federation(
        tmp_path, [1.0, 3.0], "fedacg:lam=0.5:beta=0", cohort=2, steps=4, buffer=1, staleness=0.0
    )
    assert thetas(federated) == pytest.approx([4, 7, 16.5, 21], abs=1e-12)


def growth(lam: float, rate: float, h: float, stale: int) -> float:
    """The factor per step by which θ leaves or nears the optimum, if all answers are so many steps old.

    On a quadratic a client answers Δ = −hφ. So m ← λm − η_g h φ_{t−τ}, θ ← θ + m and φ = θ + λm is linear in
    (θ, m, φ_{t−1}, …, φ_{t−τ}), and the largest eigenvalue says how it goes on.
    """
    now = np.eye(2 + stale)
    phi = now[0] + lam * now[1]
    m = lam * now[1] - rate * h * (now[1 + stale] if stale else phi)
    rows = [now[0] + m, m, phi, *now[2:]][: 2 + stale]
    return float(abs(np.linalg.eigvals(np.array(rows))).max())


@pytest.mark.parametrize(
    ("method", "lam", "rate", "converges"),
    [
        ("fedavg", 0.0, 1.0, True),
        ("fedacg:lam=0.85:beta=0", 0.85, 1.0, False),
        ("fedacg:lam=0.3:beta=0", 0.3, 1.0, True),
        ("fedacg:lam=0.85:beta=0:server_lr=0.15", 0.85, 0.15, True),
    ],
)
def test_momentum_and_stale_answers_do_not_go_together(
    method: str, lam: float, rate: float, converges: bool, tmp_path: Path
) -> None:
    """Two clients that take equally long, a step with each answer: all are one step old but for the first.

    Both pull halfway to their points. FedACG's λ = 0.85, which converges without delays, diverges as the
    eigenvalue says; with η_g = 1 − λ, whose steps add up to those of FedBuff, it converges.
    """
    assert growth(lam, rate, 0.5, stale=0) < 1
    assert (growth(lam, rate, 0.5, stale=1) < 1) == converges
    federated = federation(tmp_path, [1.0, 1.0], method, cohort=2, steps=120, buffer=1, staleness=0.0)
    found = thetas(federated)
    ends = [abs(theta - 12) for theta in found[-20:]]
    assert (max(ends) < 10) if converges else (max(ends) > 1e4)


def test_only_versions_still_in_use_are_kept(tmp_path: Path) -> None:
    federated = federation(tmp_path, [1.0, 3.0], "fedavg", cohort=2, steps=4, buffer=1)
    kept = []
    for _ in federated.run():
        names = (name for name in federated.server.vectors if name.startswith(VERSION))
        kept.append(sorted({int(name.split("/")[1]) for name in names}))
    assert kept == [[0], [0], [2], [3]]  # in the end client 1 is at work on what was broadcast after three steps


SLOW = ("clock.profile=phones", "asynchronous.buffer=2", "cohort.size=4", "rounds=12")


@pytest.mark.parametrize("method", ["fedacg", "feddyn"])
def test_bits_are_the_same_on_workers(method: str, tmp_path: Path) -> None:
    named = (*SLOW, f"method.name={method}")
    alone = played(tmp_path, *named)
    assert max(alone.history.series(STALENESS).values()) > 0
    for workers in (1, 2):
        spread = played(tmp_path, *named, "engine.name=processes", f"engine.workers={workers}")
        assert digest(spread) == digest(alone)
        assert [m.scores for m in spread.history] == [m.scores for m in alone.history]


@pytest.mark.parametrize("method", ["fedacg", "feddyn", "fedavg+topk"])
def test_a_stopped_run_goes_on_with_what_is_in_flight(method: str, tmp_path: Path) -> None:
    experiment = tiny(tmp_path, *SLOW, f"method.name={method}")
    whole = play(experiment, prepare(experiment))
    for stop in (3, 7):
        with pytest.raises(KeyboardInterrupt):
            play(
                experiment, prepare(experiment), folder=tmp_path / "run", resume=True, callbacks=[StopAfter(stop)]
            )
    again = play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    assert digest(again) == digest(whole)
    assert [m.scores for m in again.history] == [m.scores for m in whole.history]


@pytest.mark.slow
def test_kill_9_changes_no_bit(fedacg: Command) -> None:
    folder = fedacg.folder
    text = (folder / "tiny.toml").read_text()
    text += '\n[clock]\nprofile = "phones"\n[asynchronous]\nbuffer = 2\n'
    (folder / "tiny.toml").write_text(text)
    assert fedacg("run", "tiny.toml", "--out", "whole", "-q").code == 0
    moments = random.Random(5)
    for _ in range(4):
        run = start(folder, "run", "tiny.toml", "--out", "killed", "--resume")
        before = lines(folder)
        while lines(folder) <= before and run.poll() is None:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.05))
        run.kill()
        run.communicate()
        assert run.returncode == -signal.SIGKILL
    assert fedacg("run", "tiny.toml", "--out", "killed", "--resume", "-q").code == 0
    whole, killed = (json.loads((folder / run / "summary.json").read_text()) for run in ("whole", "killed"))
    assert whole["vector_sha256"] == killed["vector_sha256"]


def test_nobody_works_twice_at_a_time(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "clock.profile=phones", "asynchronous.buffer=4", "cohort.size=15", "rounds=30")
    planned = plan(experiment, prepare(experiment))
    federated = planned.federation(SerialEngine(), ClientStates(tmp_path / "c"), [])
    assert isinstance(federated, AsynchronousFederation)
    for metrics in federated.run():
        busy = [*metrics.arrived, *(visit.client for visit in federated._timetable.visits)]
        assert len(set(metrics.arrived)) == len(metrics.arrived) == 4
        assert len({visit.client for visit in federated._timetable.visits}) == len(federated._timetable.visits)
        assert len(busy) <= 15 + 4


def test_clients_that_fail_give_their_place_to_others(tmp_path: Path) -> None:
    lossy = played(tmp_path, *SLOW, "failures.drop=0.5")
    assert len(lossy.history) == 12
    assert lossy.history.bytes_down > played(tmp_path, *SLOW).history.bytes_down


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["asynchronous.buffer=21"], ["asynchronous.buffer", "20 clients"]),
        (["asynchronous.staleness=1"], ["asynchronous.staleness", "asynchronous.buffer is 0"]),
        (["asynchronous.buffer=2", "clock.profile=phones", "clock.deadline=1"], ["clock.deadline"]),
        (["asynchronous.buffer=2", "analysis.every=1"], ["analysis"]),
        (["asynchronous.buffer=2", "method.name=feddane"], ["feddane", "two exchanges"]),
        (["asynchronous.buffer=2", "failures.drop=1"], ["nobody"]),
    ],
)
def test_what_has_no_meaning_without_waiting_is_refused(
    fedacg: Command, settings: list[str], words: list[str]
) -> None:
    outcome = fedacg("run", "tiny.toml", "-q", *(word for setting in settings for word in ("-s", setting)))
    if "nobody" in words:
        assert (outcome.code, "nobody is at work" in outcome.err) == (1, True)
    else:
        refused(outcome, *words)


def test_a_checkpoint_without_its_versions_is_refused(tmp_path: Path) -> None:
    experiment: Experiment = tiny(tmp_path, *SLOW)
    federated = plan(experiment, prepare(experiment)).federation(SerialEngine(), ClientStates(tmp_path / "c"), [])
    history = [next(federated.run())]
    server = federated.server
    bare = {name: vector for name, vector in server.vectors.items() if not name.startswith(VERSION)}
    fresh = plan(experiment, prepare(experiment)).federation(SerialEngine(), ClientStates(tmp_path / "d"), [])
    with pytest.raises(Exception, match="lacks the broadcast"):
        fresh.resume(type(server)(1, bare), history)
    assert torch.equal(bare["theta"], server.vectors["theta"])
