"""Methods whose clients keep something: interrupted anywhere and resumed, they give the same bits."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedacg import methods
from fedacg.config.experiment import Experiment
from fedacg.config.participation import CohortSettings
from fedacg.config.sections import EvaluateSettings, LocalSettings
from fedacg.core.round import Message
from fedacg.data.own_data import from_pairs
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError
from fedacg.methods import Method
from fedacg.methods.parts import Correction
from fedacg.runs.build import prepare
from fedacg.runs.client_states import ClientStates
from fedacg.runs.contents import load_moment
from fedacg.runs.runner import play
from fedacg.simulation.engine import Answers, ClientMemory, Engine, Job, Task, Training
from fedacg.simulation.federation import Federation
from fedacg.simulation.sampling import Sampling
from support.command import TINY, Command, digests_with_and_without_kills
from support.quadratics import Point, client, half_square
from support.runs import StopAfter, digest, tiny

STATEFUL = ["feddyn", "moon", "feddc"]


class Breaking(SerialEngine):
    """Fails in a round after some of its clients have answered."""

    def __init__(self, round: int, answers: int) -> None:
        self._round, self._answers = round, answers

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        answers = super().train(broadcast, tasks, kept).answers
        return Training(self._broken(answers) if tasks[0].round.number == self._round else answers)

    def _broken(self, all: Iterator[Answers]) -> Iterator[Answers]:
        yield from islice(all, self._answers)
        raise ConnectionError("somebody pulled the plug")


def described(tmp_path: Path, method: str, *settings: str) -> Experiment:
    return tiny(tmp_path, f"method.name={method}", "rounds=5", "data.clients=5", *settings)


@pytest.mark.parametrize("room", [0, 10**6])
@pytest.mark.parametrize(("method", "seconds"), [("feddyn", 0), ("feddyn", 1000), ("moon", 1000), ("feddc", 1000)])
def test_a_round_that_breaks_off_in_the_middle_is_played_again(
    tmp_path: Path, method: str, seconds: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedacg.runs.runner.ROOM", room)
    # Three of five clients per round: those of the broken round took part before and will be again.
    experiment = described(tmp_path, method, f"save.seconds={seconds}")
    whole = play(experiment, prepare(experiment))
    for round, answers in ((1, 1), (3, 2), (5, 1)):
        with pytest.raises(ConnectionError):
            play(
                experiment,
                prepare(experiment),
                folder=tmp_path / "run",
                resume=True,
                engine=Breaking(round, answers),
            )
        if round > 1:
            assert load_moment(tmp_path / "run").round == round - 1
        written = {int(path.stem.partition("-")[2]) for path in (tmp_path / "run" / "clients").glob("*/*")}
        assert (round in written) is (room == 0), "the broken round has left states behind, if they had no room"
    resumed = play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    assert digest(resumed) == digest(whole)


@pytest.mark.parametrize("method", STATEFUL)
def test_ctrl_c_between_checkpoints_and_resume_give_the_same_bits(tmp_path: Path, method: str) -> None:
    experiment = described(tmp_path, method, "save.seconds=1000")
    whole = play(experiment, prepare(experiment))
    for stop in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            play(
                experiment,
                prepare(experiment),
                folder=tmp_path / "run",
                resume=True,
                callbacks=[StopAfter(stop)],
            )
    resumed = play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    assert digest(resumed) == digest(whole)
    held = sorted(path.stem.partition("-")[0] for path in (tmp_path / "run" / "clients").glob("*/*"))
    assert held == sorted({str(i) for metrics in resumed.history for i in metrics.cohort}), "one state each"


def test_replacing_a_run_forgets_its_clients_states(tmp_path: Path) -> None:
    experiment = described(tmp_path, "feddyn")
    first = play(experiment, prepare(experiment), folder=tmp_path / "run")
    again = play(experiment, prepare(experiment), folder=tmp_path / "run", overwrite=True)
    assert digest(again) == digest(first)
    plain = described(tmp_path, "fedavg")
    play(plain, prepare(plain), folder=tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "clients").exists()


def test_a_run_without_a_checkpoint_starts_with_no_states(tmp_path: Path) -> None:
    experiment = described(tmp_path, "feddc")
    whole = play(experiment, prepare(experiment), folder=tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    resumed = play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    assert digest(resumed) == digest(whole)


CLIENTS = [client((1, 0), (3, 1)), client((0, 2)), client((-1, 4), (2, 2), (0, 0)), client((5, -3))]
COHORTS = [[0, 1, 2], [1, 2, 3], [2, 1, 0], [3, 1]]


def final(method: Method, engine: Engine, folder: Path) -> dict[str, Tensor]:
    """The server's vectors after four rounds on two-parameter problems."""
    job = Job(
        module=Point(),
        channels_last=False,
        data=from_pairs(CLIENTS, CLIENTS[0]),
        method=method.with_loss(half_square),
        local=LocalSettings(epochs=2, batch=1),
        seed=0,
        evaluate_batch=100,
    )
    federation = Federation(
        job,
        engine,
        rounds=4,
        sampling=Sampling(CohortSettings(), clients=len(job.data.clients), seed=0, cohorts=COHORTS),
        evaluate=EvaluateSettings(),
        memory=ClientStates(folder),
    )
    list(federation.run())
    return dict(federation.server.vectors)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessEngine]:
    engine = ProcessEngine(1)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("method", "moment"),
    [("feddyn", "before the first step"), ("feddc", "after all was written but the word that it was")],
)
def test_a_worker_killed_in_a_clients_second_visit_leaves_no_trace(
    method: str, moment: str, tmp_path: Path, pool: ProcessEngine
) -> None:
    once = tmp_path / "killed"
    last = moment.startswith("after")

    def die() -> None:
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    class Bomb:
        """In a message's place for a vector: once it is a row, whoever comes to write it is killed."""

        dtype = torch.float64
        armed = False

        def reshape(self, *shape: int) -> "Bomb":
            self.armed = True
            return self

        def to(self, device: torch.device) -> "Bomb":
            return self

        def unbind(self) -> list["Bomb"]:
            return [self]

        def unsqueeze(self, dim: int) -> "Bomb":
            return self

        def numel(self) -> int:
            if self.armed:
                die()
            return 1

    class Killer(Correction):
        """Kills its worker once, on a client that comes back with a state."""

        def begin(self, assignment: object) -> None:
            self._back = len(assignment.kept) > 0 and not once.exists()  # type: ignore[attr-defined]

        def correct(self, g: Tensor, w: Tensor) -> None:
            if self._back and not last:
                die()

        def keep(self, arrived: Callable[[str], Tensor]) -> Message:
            return {"last": Bomb()} if self._back and last else {}  # type: ignore[dict-item]

    plain = methods.build(method, {"alpha": 0.3})
    expected = final(plain, SerialEngine(), tmp_path / "serial")
    deadly = replace(plain, objective=(*plain.objective, Killer()))
    before = pool.pids
    found = final(deadly, pool, tmp_path / "processes")
    assert once.exists()
    assert pool.pids != before
    assert expected.keys() == found.keys()
    for name in expected:
        assert torch.equal(expected[name], found[name]), name
    for path in (tmp_path / "serial").glob("*/*"):
        twin = tmp_path / "processes" / path.relative_to(tmp_path / "serial")
        assert path.read_bytes() == twin.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("method", STATEFUL)
def test_kill_9_at_random_moments_and_resume_give_the_same_bits(fedacg: Command, method: str) -> None:
    folder = fedacg.folder
    text = TINY.replace("rounds = 40", "rounds = 60").replace("clients = 20", "clients = 8")
    text += f'[method]\nname = "{method}"\n'
    (folder / "tiny.toml").write_text(text)
    whole, killed = digests_with_and_without_kills(folder, 2, random.Random(method))
    assert whole == killed


def test_a_folder_whose_states_have_gone_is_refused(tmp_path: Path) -> None:
    experiment = described(tmp_path, "feddyn")
    with pytest.raises(KeyboardInterrupt):
        play(experiment, prepare(experiment), folder=tmp_path / "run", callbacks=[StopAfter(2)])
    lost = next((tmp_path / "run" / "clients").iterdir())
    for path in lost.iterdir():
        path.unlink()
    with pytest.raises(InputError, match=f"states of clients that took part are missing, such as {lost.name}"):
        play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
