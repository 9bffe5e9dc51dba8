"""What clients keep: a file a visit, the states of any checkpoint to go back to, and nothing nobody asks for."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedacg
from fedacg.errors import RunError
from fedacg.runs.build import prepare
from fedacg.runs.client_states import ClientStates
from fedacg.runs.runner import play
from support.quadratics import Point, client, half_square
from support.runs import digest, tiny


def vector(value: float) -> dict[str, Tensor]:
    return {"g": torch.full((3,), value)}


def found(memory: ClientStates, clients: int = 3) -> list[float | None]:
    """The value each client kept, None for none."""
    states = [memory.read(client) for client in range(clients)]
    return [float(state["g"][0]) if state else None for state in states]


def visits(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*/*")}


def three_rounds(folder: Path, room: int = 0, checkpoint: int = 0) -> ClientStates:
    """Clients 0 and 1 take part in round 1, 1 and 2 in round 2, 1 in round 3; a state is round + client/10.

    There may be a checkpoint after one of the rounds.
    """
    memory = ClientStates(folder, room=room)
    memory.rewind(0)
    for round, cohort in enumerate(([0, 1], [1, 2], [1]), start=1):
        for i in cohort:
            memory.write(round, i, vector(round + i / 10))
        if round == checkpoint:
            memory.settle(round)
            memory.forget(round)
    return memory


def test_who_never_took_part_has_nothing_and_takes_no_room(tmp_path: Path) -> None:
    memory = ClientStates(tmp_path / "clients")
    memory.rewind(0)
    assert not (tmp_path / "clients").exists()
    assert found(memory) == [None, None, None]
    memory.write(1, 2, vector(5))
    assert found(memory) == [None, None, 5]
    assert visits(tmp_path / "clients") == {"2-1"}


def test_the_last_visit_counts(tmp_path: Path) -> None:
    assert found(three_rounds(tmp_path)) == pytest.approx([1.0, 3.1, 2.2])


@pytest.mark.parametrize(
    ("round", "expected"),
    [(0, [None] * 3), (1, [1.0, 1.1, None]), (2, [1.0, 2.1, 2.2]), (3, [1.0, 3.1, 2.2]), (9, [1.0, 3.1, 2.2])],
)
def test_going_back_finds_the_states_of_that_round(
    tmp_path: Path, round: int, expected: list[float | None]
) -> None:
    three_rounds(tmp_path, checkpoint=round)
    for _ in range(2):  # going back twice is going back once
        memory = ClientStates(tmp_path)
        memory.rewind(round)
        assert [x is None for x in found(memory)] == [x is None for x in expected]
        assert [x for x in found(memory) if x] == pytest.approx([x for x in expected if x])
    assert all(int(visit.split("-")[1]) <= round for visit in visits(tmp_path))


def test_rounds_go_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    memory = ClientStates(tmp_path)
    for round in (9, 10, 11, 100):
        memory.write(round, 0, vector(round))
    again = ClientStates(tmp_path)
    again.rewind(99)
    assert found(again, 1) == [11]


def test_a_checkpoint_keeps_what_a_resume_from_it_needs(tmp_path: Path) -> None:
    # The checkpoint of round 2 is written while round 3 is under way: 3.1 is not part of it, 1.1 is outdated.
    memory = three_rounds(tmp_path)
    memory.settle(2)
    memory.forget(2)
    assert visits(tmp_path) == {"0-1", "1-2", "1-3", "2-2"}
    assert found(memory) == pytest.approx([1.0, 3.1, 2.2]), "this run goes on"
    resumed = ClientStates(tmp_path)
    resumed.rewind(2)
    assert found(resumed) == pytest.approx([1.0, 2.1, 2.2])


def test_after_a_checkpoint_everybody_has_one_state(tmp_path: Path) -> None:
    memory = three_rounds(tmp_path)
    memory.forget(3)
    assert visits(tmp_path) == {"0-1", "1-3", "2-2"}
    memory.write(4, 0, vector(4))
    memory.forget(4)
    assert visits(tmp_path) == {"0-4", "1-3", "2-2"}


def test_a_kill_between_a_visit_and_its_checkpoint_costs_only_the_visit(tmp_path: Path) -> None:
    memory = three_rounds(tmp_path)
    memory.forget(2)
    (tmp_path / "0" / "1-3.safetensors").write_bytes(b"half a fi")
    (tmp_path / "0" / "2-3.safetensors").touch()
    (tmp_path / "0" / "0-4.safetensors").write_bytes(b"\0" * 8)
    resumed = ClientStates(tmp_path)
    resumed.rewind(2)
    assert found(resumed) == pytest.approx([1.0, 2.1, 2.2])
    assert visits(tmp_path) == {"0-1", "1-2", "2-2"}


def test_what_a_kill_left_over_goes_with_the_next_visit(tmp_path: Path) -> None:
    three_rounds(tmp_path)  # killed after the checkpoint of round 3, before anything was forgotten
    resumed = ClientStates(tmp_path)
    resumed.rewind(3)
    resumed.write(4, 1, vector(4.1))
    resumed.forget(4)
    assert visits(tmp_path) == {"0-1", "1-4", "2-2"}


def test_ctrl_c_while_old_states_are_removed_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = three_rounds(tmp_path)
    unlink = Path.unlink

    def interrupted(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.forget(3)
    monkeypatch.undo()
    memory.forget(3)
    assert visits(tmp_path) == {"0-1", "1-3", "2-2"}
    assert found(memory) == pytest.approx([1.0, 3.1, 2.2])


def test_the_states_a_checkpoint_counts_on_reach_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = three_rounds(tmp_path)
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(str(Path(f"/proc/self/fd/{file}").readlink())))
    memory.settle(2)  # round 3 was interrupted: client 1's state of round 2 is the one that counts
    states = {str(tmp_path / "0" / f"{visit}.safetensors") for visit in ("0-1", "1-2", "2-2")}
    assert synced == states | {str(folder) for folder in (tmp_path / "0", tmp_path, tmp_path.parent)}


def test_many_states_reach_the_disk_with_their_whole_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ClientStates(tmp_path, room=10**6)
    for i in range(100):
        memory.write(1, i, vector(i))
    waited: list[Path] = []
    synced: list[int] = []

    def whole(path: Path) -> bool:
        waited.append(path)
        return True

    monkeypatch.setattr("fedacg.core.files._sync_file_system", whole)
    monkeypatch.setattr(os, "fsync", synced.append)
    memory.settle(1)
    assert len(visits(tmp_path)) == 100, "all are written before the wait"
    assert (len(waited), synced) == (1, [])
    monkeypatch.setattr("fedacg.core.files._sync_file_system", lambda path: False)
    memory.settle(1)
    assert len(synced) == 100 + 3, "one by one where the system cannot"


BYTES = 12
"""Of a state here."""


def test_states_that_no_checkpoint_counts_on_yet_stay_in_memory(tmp_path: Path) -> None:
    memory = three_rounds(tmp_path, room=5 * BYTES)
    assert visits(tmp_path) == set()
    assert found(memory) == pytest.approx([1.0, 3.1, 2.2])
    memory.settle(2)  # what round 3 has written is not asked for, and what round 1 wrote of client 1 is outdated
    assert visits(tmp_path) == {"0-1", "1-2", "2-2"}
    memory.forget(2)
    assert visits(tmp_path) == {"0-1", "1-2", "2-2"}
    assert found(memory) == pytest.approx([1.0, 3.1, 2.2])
    resumed = ClientStates(tmp_path, room=5 * BYTES)
    resumed.rewind(2)
    assert found(resumed) == pytest.approx([1.0, 2.1, 2.2])


def test_where_memory_has_no_more_room_the_oldest_states_are_written(tmp_path: Path) -> None:
    memory = three_rounds(tmp_path, room=2 * BYTES)
    assert visits(tmp_path) == {"0-1", "1-2"}  # client 1 of round 1 was written, too, until round 3
    assert found(memory) == pytest.approx([1.0, 3.1, 2.2])
    memory.settle(3)
    memory.forget(3)
    assert visits(tmp_path) == {"0-1", "1-3", "2-2"}
    memory.write(4, 0, vector(4))
    assert found(memory) == pytest.approx([4, 3.1, 2.2])


def test_states_outdated_before_a_checkpoint_are_never_written(tmp_path: Path) -> None:
    memory = ClientStates(tmp_path, room=2 * BYTES)  # for the round under way, and the one to go back to
    for round in range(1, 50):
        memory.write(round, 0, vector(float(round)))
    assert visits(tmp_path) == set()
    assert found(memory, 1) == [49]
    memory.rewind(48)
    assert found(memory, 1) == [48]


@pytest.mark.parametrize(("checkpoint", "back", "value"), [(0, 48, 48), (3, 48, 48), (3, 3, 3.1)])
def test_a_client_has_few_files_however_late_the_next_checkpoint_is(
    tmp_path: Path, checkpoint: int, back: int, value: float
) -> None:
    memory = three_rounds(tmp_path, checkpoint=checkpoint)
    for round in range(4, 50):
        memory.write(round, 1, vector(round))
    of_checkpoint = {"1-3"} if checkpoint else set()
    assert visits(tmp_path) == {"0-1", *of_checkpoint, "1-48", "1-49", "2-2"}
    resumed = ClientStates(tmp_path)
    resumed.rewind(back)
    assert found(resumed) == pytest.approx([1.0, value, 2.2])


def test_forgotten_states_give_their_room_back(tmp_path: Path) -> None:
    memory = ClientStates(tmp_path, room=2 * BYTES)
    for round in range(1, 50):
        memory.write(round, 0, vector(round))
        memory.forget(round)
    assert visits(tmp_path) == set()
    assert found(memory, 1) == [49]


def test_going_back_keeps_what_only_memory_had(tmp_path: Path) -> None:
    memory = three_rounds(tmp_path, room=100 * BYTES)
    memory.rewind(2)
    assert found(memory) == pytest.approx([1.0, 2.1, 2.2])
    assert visits(tmp_path) == {"0-1", "1-2", "2-2"}


def test_a_state_in_memory_is_a_copy_on_the_way_in_and_out(tmp_path: Path) -> None:
    memory, state = ClientStates(tmp_path, room=100 * BYTES), vector(1)
    memory.write(1, 0, state)
    state["g"].zero_()
    memory.read(0)["g"].zero_()
    assert found(memory, 1) == [1]


def test_states_of_several_vectors_and_types_come_back_as_they_were(tmp_path: Path) -> None:
    memory = ClientStates(tmp_path)
    state = {"h": torch.randn(5, dtype=torch.float64), "g": torch.randn(5)[::1], "buffers": torch.zeros(0)}
    memory.write(1, 7, state)
    back = memory.read(7)
    assert back.keys() == state.keys()
    for name in state:
        assert back[name].dtype == state[name].dtype
        assert torch.equal(back[name], state[name])


@pytest.mark.parametrize(("room", "round"), [(0, 3), (10**6, "[234]")], ids=["at once", "with the checkpoint"])
def test_a_full_disk_is_told_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, round: int | str
) -> None:
    monkeypatch.setattr("fedacg.runs.runner.ROOM", room)
    experiment = tiny(tmp_path, "rounds=4", "method.name=feddyn", "data.clients=5")
    whole = play(experiment, prepare(experiment))
    real = ClientStates.write

    def full(memory: ClientStates, round: int, client: int, state: dict[str, Tensor]) -> None:
        if round == 3:
            monkeypatch.setattr("fedacg.core.files.write_new", _no_space)
        real(memory, round, client, state)

    monkeypatch.setattr(ClientStates, "write", full)
    with pytest.raises(RunError, match=rf"-{round}.safetensors: cannot be written: .*No space left"):
        play(experiment, prepare(experiment), folder=tmp_path / "run")
    monkeypatch.undo()
    resumed = play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    assert digest(resumed) == digest(whole)


def _no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


CLIENTS = [client((1, 0), (3, 1)), client((0, 2)), client((-1, 4), (2, 2)), client((5, -3))]


def short(**settings: object) -> fedacg.Result:
    base = {"model": Point(), "clients": CLIENTS, "test": CLIENTS[0], "method": "feddyn", "loss": half_square}
    local = {"rounds": 6, "participation": 0.5, "local_steps": 2}
    return fedacg.run(**{**base, **local, **settings})  # type: ignore[arg-type]


def test_a_run_without_a_folder_keeps_one_state_a_client_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept: list[set[str]] = []

    def look(_: object) -> None:
        (scratch,) = tmp_path.glob("fedacg-*")
        kept.append(visits(scratch / "clients"))

    short(rounds=20, on_round=look)
    assert max(map(len, kept)) <= len(CLIENTS) + 2, "one each, and one more for the cohort of the moment"
    assert list(tmp_path.iterdir()) == []

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        short(on_round=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_runs_without_folders_do_not_share_states() -> None:
    alone = short().vector
    inner: list[Tensor] = []
    outer = short(on_round=lambda _: inner.append(short().vector)).vector
    assert torch.equal(outer, alone)
    assert len(inner) == 6
    assert all(torch.equal(vector, alone) for vector in inner)


def test_a_run_folder_holds_one_state_for_each_client_that_took_part(tmp_path: Path) -> None:
    result = short(out=tmp_path / "run", rounds=2, cohorts=[[3, 1], [1]])
    assert [m.cohort for m in result.history] == [(3, 1), (1,)]
    assert visits(tmp_path / "run" / "clients") == {"3-1", "1-2"}


def test_a_method_that_keeps_nothing_writes_nothing(tmp_path: Path) -> None:
    short(out=tmp_path / "run", method="fedacg")
    assert not (tmp_path / "run" / "clients").exists()
