"""The complete app: rounds that go on without a node, states that stay at nodes, servers that come back."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from fedacg.errors import InputError
from fedacg.runs.contents import load_moment
from fedacg.runs.folder import RunFolder
from support.flower_grid import OWN, LoopGrid, Trial, node_id, write_clients


class Stopped(BaseException):
    """Stands for a server that is killed."""


def stop_at(round: int, client: int) -> Callable[[int, int], None]:
    """Stop the server just before this client is asked in a round, when others have been asked already."""

    def before(this: int, node: int) -> None:
        if (this, node) == (round, node_id(client)):
            raise Stopped

    return before


# What crosses the wire


@pytest.mark.parametrize(
    ("method", "down", "up"),
    [("fedavg", 1, 1), ("fedacg", 1, 1), ("fedcm", 2, 1), ("feddc", 2, 2), ("feddyn", 1, 1)],
)
def test_as_many_vectors_cross_the_wire_as_the_method_sends(
    method: str, down: int, up: int, tmp_path: Path
) -> None:
    trial = Trial(tmp_path, f"method.name={method}", "rounds=1", "model.hidden=[64]")
    grid = trial.grid()
    trial.federate(grid)
    vector = 4 * load_moment(trial.out).vectors["theta"].numel()
    for sizes, vectors in ((grid.down, down), (grid.up, up)):
        assert len(sizes) == 2
        assert all(0 <= size - vectors * vector < 2000 for size in sizes)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_quantised_uploads_cross_the_wire_as_packed_bytes(bits: int, tmp_path: Path) -> None:
    trial = Trial(tmp_path, "method.name=fedacg+paq", f"method.bits={bits}", "rounds=1", "model.hidden=[256]")
    grid = trial.grid()
    trial.federate(grid)
    entries = load_moment(trial.out).vectors["theta"].numel()
    buckets = -(-entries // 512)
    assert all(0 <= size - (buckets * 4 + buckets * 512 * bits // 8) < 2000 for size in grid.up)
    assert trial.rounds[0]["bytes_up"] == 2 * (buckets * 4 + buckets * 512 * bits // 8)


# States


def test_states_stay_at_the_nodes_and_the_server_keeps_receipts(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "method.name=feddyn", "cohort.size=3")
    trial.federate(trial.grid())
    receipts = sorted((trial.out / "clients").glob("*/*.safetensors"))
    assert [str(path.relative_to(trial.out)) for path in receipts] == [
        f"clients/0/{c}-4.safetensors" for c in range(3)
    ]
    assert all([v.tolist() for v in load_file(path).values()] == [[4]] for path in receipts)
    states = sorted((tmp_path / "states").rglob("*.safetensors"))
    federation = json.loads((trial.out / "federation.json").read_text())["name"]
    # The last visit, and the one before it, which a server that goes back may ask for.
    assert [str(path.relative_to(tmp_path / "states")) for path in states] == [
        f"{federation}/{client}/0/{client}-{visit}.safetensors" for client in range(3) for visit in (3, 4)
    ]
    assert {tuple(load_file(path)) for path in states} == {("g",)}


def test_a_method_without_states_leaves_nothing_at_the_nodes(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "rounds=2")
    trial.federate(trial.grid())
    assert not (tmp_path / "states").exists()
    assert not (trial.out / "clients").exists()


@pytest.mark.parametrize("method", ["fedacg", "feddyn", "feddc", "moon"])
def test_a_lost_reply_leaves_both_sides_as_if_the_client_had_not_been_asked(method: str, tmp_path: Path) -> None:
    trial = Trial(tmp_path, f"method.name={method}", "cohort.size=3", "rounds=4")
    grid = trial.grid()
    honest = grid.nodes[node_id(1)]

    def lose_the_second_reply(round: int, node: int) -> None:
        honest.tamper = (lambda reply: 1 / 0) if round == 2 else None  # type: ignore[assignment, return-value]

    grid.before_train = lose_the_second_reply
    trial.federate(grid)
    answered = [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert [line["answered"] for line in trial.rounds] == answered
    assert trial.digest == trial.simulate(cohorts=answered).summary["vector_sha256"]


def test_a_node_that_has_lost_its_state_cannot_go_on_with_another(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "method.name=feddyn", "cohort.size=3", "rounds=3")
    grid = trial.grid()

    def lose_the_disk(round: int, node: int) -> None:
        if (round, node) == (2, node_id(0)):
            for path in (tmp_path / "states").glob("*/0/0/0-1.safetensors"):
                path.unlink()

    grid.before_train = lose_the_disk
    trial.federate(grid)
    assert [line["answered"] for line in trial.rounds] == [[0, 1, 2], [1, 2], [1, 2]]
    assert "what it kept in round 1 is no longer at this node" in trial.rounds[1]["lost"]["0"]


# Servers that come back


@pytest.mark.parametrize("method", ["fedacg", "feddyn", "feddc+paq"])
def test_a_server_that_is_killed_in_a_round_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    trial = Trial(tmp_path, f"method.name={method}", "cohort.size=3", "rounds=5")
    expected = trial.simulate()
    for round in (1, 3, 4):
        grid = trial.grid()
        grid.before_train = stop_at(round, client=2)  # clients 0 and 1 have trained, and kept what they keep
        with pytest.raises(Stopped):
            trial.federate(grid)
        assert len(trial.rounds) == round - 1
    before = load_moment(trial.out)
    assert before.round == 3
    trial.federate(trial.grid())
    assert [line["round"] for line in trial.rounds] == [1, 2, 3, 4, 5]
    assert trial.digest == expected.summary["vector_sha256"]


def test_every_round_is_saved_when_it_ends(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "save.seconds=1000", "rounds=3")
    grid = trial.grid()
    saved = []

    def look(round: int, node: int) -> None:
        saved.append(
            (round, load_moment(trial.out).round if (trial.out / "checkpoint.safetensors").exists() else 0)
        )

    grid.before_train = look
    trial.federate(grid)
    assert set(saved) == {(1, 0), (2, 1), (3, 2)}


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "rounds=2")
    trial.federate(trial.grid())
    lines, digest = trial.rounds, trial.digest
    grid = trial.grid()
    trial.federate(grid)
    assert (trial.rounds, trial.digest, grid.down) == (lines, digest, [])


def test_a_folder_is_gone_on_with_only_by_the_same_experiment(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "rounds=1")
    trial.federate(trial.grid())
    with pytest.raises(
        InputError, match="holds a run; resume it with resume=true or replace it with overwrite=true"
    ):
        trial.federate(trial.grid(), resume=False)
    other = Trial(tmp_path, "rounds=1", "local.lr=0.2")
    with pytest.raises(InputError, match=r"a different experiment: local\.lr is 0\.1 there and 0\.2 here"):
        other.federate(other.grid())
    before = json.loads((trial.out / "federation.json").read_text())["name"]
    other.federate(other.grid(), overwrite=True)
    assert json.loads((trial.out / "federation.json").read_text())["name"] != before
    assert other.digest == other.simulate().summary["vector_sha256"]


# Nodes that come and go


def test_a_round_goes_on_without_a_node_that_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial(tmp_path, "cohort.size=3", "rounds=3")
    grid = trial.grid()

    def lose(round: int, node: int) -> None:
        if round == 2:
            grid.nodes.pop(node_id(1), None)

    grid.before_train = lose
    trial.federate(grid)
    assert [(line["cohort"], line["answered"]) for line in trial.rounds] == [
        ([0, 1, 2], [0, 1, 2]),
        ([0, 1, 2], [0, 2]),
        ([0, 2], [0, 2]),  # by now it is known to be gone
    ]
    assert trial.rounds[1]["lost"] == {"1": "the node is gone"}
    assert trial.digest == trial.simulate(cohorts=[[0, 1, 2], [0, 2], [0, 2]]).summary["vector_sha256"]


def test_cohorts_are_drawn_by_the_seed_from_those_who_are_there(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "data.clients=6", "cohort.size=2", "rounds=8")
    grid = trial.grid([5, 1, 3, 4])
    trial.federate(grid, nodes=4)
    drawn = [line["cohort"] for line in trial.rounds]
    assert {client for cohort in drawn for client in cohort} == {1, 3, 4, 5}
    again = Trial(tmp_path, "data.clients=6", "cohort.size=2", "rounds=8")
    again.out = tmp_path / "again"
    again.federate(again.grid([1, 3, 4, 5]), nodes=4)
    assert [line["cohort"] for line in again.rounds] == drawn
    assert again.digest == trial.digest


def test_a_node_that_comes_back_under_another_id_is_the_same_client(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "method.name=feddyn", "cohort.size=3", "rounds=4")
    grid = trial.grid()

    def restart(round: int, node: int) -> None:
        if round == 2 and node_id(1) in grid.nodes:
            grid.nodes[77] = grid.nodes.pop(node_id(1))

    grid.before_train = restart
    trial.federate(grid)
    answered = [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert [line["answered"] for line in trial.rounds] == answered
    assert trial.digest == trial.simulate(cohorts=answered).summary["vector_sha256"]


def test_the_first_round_waits_for_the_nodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Gathering(LoopGrid):
        def get_node_ids(self) -> list[int]:
            looked.append(len(self.down))
            return list(self.nodes)[: len(looked)]

    looked: list[int] = []
    caplog.set_level(logging.INFO, "flwr")
    trial = Trial(tmp_path, "cohort.size=3", "rounds=1")
    trial.federate(Gathering(trial.grid().nodes))
    assert looked[:3] == [0, 0, 0]
    assert trial.rounds[0]["answered"] == [0, 1, 2]
    assert "waiting for nodes: 1 of 3 are connected" in caplog.text


def test_no_round_is_played_while_too_few_are_there(tmp_path: Path) -> None:
    class Away(LoopGrid):
        """Everybody is away for a while after the first round."""

        def get_node_ids(self) -> list[int]:
            nonlocal away
            if self.down and away:
                away -= 1
                return list(self.nodes)[:1]
            return list(self.nodes)

    away = 2
    trial = Trial(tmp_path, "cohort.size=3", "rounds=3")
    trial.federate(Away(trial.grid().nodes), min_replies=2)
    assert away == 0
    assert [line["answered"] for line in trial.rounds] == [[0, 1, 2]] * 3


def test_with_too_few_replies_nothing_moves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial(tmp_path, "method.name=feddyn", "cohort.size=3", "cohort.weights=uniform", "rounds=3")
    grid = trial.grid()

    def lose_two(round: int, node: int) -> None:
        for client in (0, 1):
            grid.nodes[node_id(client)].tamper = (lambda reply: 1 / 0) if round == 2 else None  # type: ignore[assignment, return-value]

    grid.before_train = lose_two
    trial.federate(grid, min_replies=2)
    assert [line["answered"] for line in trial.rounds] == [[0, 1, 2], [], [0, 1, 2]]
    assert trial.rounds[1]["lost"]["2"] == "only 1 of the 2 replies that a round needs"
    assert trial.rounds[0]["test_loss"] == trial.rounds[1]["test_loss"]
    assert "round 2: only 1 of the 2 replies that a round needs; nothing moves" in caplog.text


def test_a_round_ends_at_its_deadline_without_those_who_are_late(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "cohort.size=3", "rounds=2")
    grid = trial.grid()

    def fall_silent(round: int, node: int) -> None:
        grid.nodes[node_id(2)].silent = True

    grid.before_train = fall_silent
    trial.federate(grid, deadline=0.7)
    assert [line["answered"] for line in trial.rounds] == [[0, 1]] * 2
    assert trial.rounds[0]["lost"] == {"2": "no reply within 0.7 seconds"}


def test_of_two_nodes_with_the_same_client_one_waits_until_the_other_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = Trial(tmp_path, "cohort.size=3", "rounds=3")
    grid = trial.grid()
    asked: list[int] = []

    def twin(round: int, node: int) -> None:
        asked.append(node)
        if round == 1:
            grid.nodes[5000] = trial.node(**{"partition-id": 1})
        if round == 2:
            grid.nodes.pop(node_id(1), None)

    grid.before_train = twin
    trial.federate(grid)
    assert caplog.text.count("node 5000 waits: another node already serves client 1") == 1
    assert asked[3:6] == [node_id(0), node_id(1), node_id(2)]
    assert asked[6:] == [node_id(0), 5000, node_id(2)]


def test_a_node_of_another_split_cannot_take_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "other").mkdir()
    other = Trial(tmp_path / "other", "data.clients=5")
    trial = Trial(tmp_path, "rounds=1")
    grid = trial.grid([1, 2])
    grid.nodes[node_id(0)] = other.node(**{"partition-id": 0})
    grid.nodes[9] = other.node(**{"partition-id": 4})
    trial.federate(grid, nodes=2)
    assert trial.rounds[0]["answered"] == [1, 2]
    assert f"node {node_id(0)} cannot take part: it has 288 examples, client 0 has 480" in caplog.text
    assert "node 9 cannot take part: it is client 4, expected a number from 0 to 2" in caplog.text


# Nodes with data of their own


def own_trial(folder: Path, *settings: str, **sizes: int) -> Trial:
    write_clients(folder / "data", sizes)
    return Trial(folder, *settings, text=OWN)


def own_node(trial: Trial, name: str, **config: Any) -> Any:
    return trial.node(data=str(trial.folder / "data" / name), **config)


def test_a_newcomer_gets_the_next_number_and_keeps_it(tmp_path: Path) -> None:
    trial = own_trial(tmp_path, b=10, c=10, a=10)
    grid = LoopGrid({1: own_node(trial, "c"), 2: own_node(trial, "b")})

    def come(round: int, node: int) -> None:
        if round == 1:
            grid.nodes[3] = own_node(trial, "a")
        if round == 3:
            raise Stopped

    grid.before_train = come
    with pytest.raises(Stopped):
        trial.federate(grid, nodes=2)
    assert json.loads((trial.out / "federation.json").read_text())["clients"] == ["b", "c", "a"]
    assert [line["cohort"] for line in trial.rounds] == [[0, 1], [0, 1, 2]]
    trial.federate(LoopGrid({1: own_node(trial, "a"), 2: own_node(trial, "c")}), nodes=2)
    assert trial.rounds[-1]["cohort"] == [1, 2]


def test_a_node_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    trial = own_trial(tmp_path, "rounds=1", a=10, b=10)
    trial.federate(LoopGrid({1: own_node(trial, "a", client="z"), 2: own_node(trial, "b")}), nodes=2)
    assert json.loads((trial.out / "federation.json").read_text())["clients"] == ["b", "z"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"data": "SHAPE"}, "its examples have shape (5,), those of the federation (4,)"),
        ({"data": "CLASSES"}, "it has 9 classes, the federation 3"),
        ({"partition-id": 0}, "the experiment has no split"),
        ({"data": "nowhere"}, "there is no such folder"),
        ({"data": "EMPTY"}, "has no training examples"),
        ({}, "must have either data="),
        ({"data": "SHAPE", "partition-id": 0}, "must have either data="),
        ({"data": "SHAPE", "threads": 0}, "threads = 0: must be greater than or equal to 1"),
    ],
)
def test_a_node_that_does_not_fit_is_left_out_and_named(
    config: dict[str, Any], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = own_trial(tmp_path, "rounds=2", a=10, b=10)
    (tmp_path / "EMPTY").mkdir()
    for name, shape, classes in (("SHAPE", (9, 5), 3), ("CLASSES", (9, 4), 9)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "x.npz", x=np.zeros(shape, np.float32), y=np.arange(9) % classes)
    config = {key: str(tmp_path / value) if key == "data" else value for key, value in config.items()}
    grid = LoopGrid({1: own_node(trial, "a"), 2: own_node(trial, "b")})

    def come(round: int, node: int) -> None:
        grid.nodes[9] = trial.node(**config)

    grid.before_train = come
    trial.federate(grid, nodes=2)
    assert words in re.sub(r"\s+", " ", caplog.text)
    assert "node 9 cannot take part" in caplog.text
    assert [line["answered"] for line in trial.rounds] == [[0, 1]] * 2


def test_one_misfit_at_the_start_does_not_keep_the_others_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = own_trial(tmp_path, "rounds=1", b=10, c=10)
    (tmp_path / "data" / "a").mkdir()
    np.savez(tmp_path / "data" / "a" / "x.npz", x=np.zeros((20, 5), np.float32), y=np.arange(20))
    grid = LoopGrid({number: own_node(trial, name) for number, name in enumerate("abc")})
    trial.federate(grid, nodes=3)
    assert "node 0 cannot take part: its examples have shape (5,)" in caplog.text
    members = json.loads((trial.out / "federation.json").read_text())
    assert (members["clients"], members["classes"], members["shape"]) == (["b", "c"], 3, [4])


def test_a_node_whose_data_grow_must_announce_itself_anew(tmp_path: Path) -> None:
    trial = own_trial(tmp_path, "rounds=4", a=10, b=10)
    grid = LoopGrid({1: own_node(trial, "a"), 2: own_node(trial, "b")})

    def grow(round: int, node: int) -> None:
        if (round, node) == (2, 1):
            more = tmp_path / "data" / "b" / "more.npz"
            np.savez(more, x=np.ones((5, 4), np.float32), y=np.zeros(5, np.int64))
        if (round, node) == (3, 1):
            grid.nodes[3] = grid.nodes.pop(2)  # it is restarted

    grid.before_train = grow
    trial.federate(grid, nodes=2)
    assert [line["examples"] for line in trial.rounds] == [20, 10, 10, 25]
    reason = "num-examples is 15, the node announced 10; if its data changed, restart it"
    assert trial.rounds[1]["lost"] == {"1": reason}


@pytest.mark.parametrize(("tested_by", "tests"), [("auto", 3), ("nodes", 3), ("nobody", 0)])
def test_who_tests_can_be_chosen(tested_by: str, tests: int, tmp_path: Path) -> None:
    trial = own_trial(tmp_path, a=10, b=10)
    trial.federate(LoopGrid({1: own_node(trial, "a"), 2: own_node(trial, "b")}), nodes=2, tested_by=tested_by)
    assert sum("test_accuracy" in line for line in trial.rounds) == tests


def test_a_test_result_that_cannot_be_had_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trial = own_trial(tmp_path, "rounds=1", a=10, b=10)
    grid = LoopGrid({1: own_node(trial, "a"), 2: own_node(trial, "b")})
    whole = grid.nodes[2].app

    def broken(message: Any, context: Any) -> Any:
        if message.metadata.message_type == "evaluate":
            raise ValueError("no test files")
        return whole(message, context)

    grid.nodes[2].app = broken  # type: ignore[assignment]
    trial.federate(grid, nodes=2)
    assert "no test result from client 1 at node 2: no test files" in caplog.text
    assert trial.rounds[0]["test_accuracy"] in (0, 1 / 3, 2 / 3, 1)


def test_with_own_data_the_number_of_nodes_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nodes = 0: with nodes' own data, must be the number of nodes"):
        Trial(tmp_path, text=OWN).federate(LoopGrid({}))


# Options


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"min_replies": 0}, "min-replies = 0: must be greater than or equal to 1"),
        ({"deadline": -1}, "deadline = -1: must be greater than or equal to 0"),
        ({"deadlin": 5}, "unknown key 'deadlin': did you mean 'deadline'?"),
        ({"tested_by": "me"}, "tested-by = 'me': must be 'auto', 'nodes' or 'nobody'"),
        ({"resume": "yes"}, "resume = 'yes': must be a valid boolean"),
    ],
)
def test_a_wrong_option_of_the_server_is_refused(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        Trial(tmp_path).federate(LoopGrid({}), **config)


def test_more_replies_than_clients_are_asked_cannot_be_wanted(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    with pytest.raises(InputError, match="min-replies = 3: only 2 clients are asked per round"):
        trial.federate(trial.grid(), min_replies=3)


def test_a_folder_that_another_server_writes_is_left_alone(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    other = RunFolder(trial.out)
    (trial.out / "federation.json").write_text("theirs")
    with pytest.raises(InputError, match="in use by another run"):
        trial.federate(trial.grid(), overwrite=True)
    assert (trial.out / "federation.json").read_text() == "theirs"
    other.close()


def test_a_population_that_changes_by_itself_is_refused(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "population.present=2", "population.replace=0.0")
    with pytest.raises(
        InputError, match=r"population\.present = 2: in a real federation, the connected nodes are present"
    ):
        trial.federate(trial.grid())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"partition-id": 3}, "partition-id = 3: must be from 0 to 2"),
        ({"partition-id": 1, "num-partitions": 4}, "num-partitions = 4: the experiment has 3 clients"),
        ({"data": "somewhere"}, "is for data.name = folder"),
    ],
)
def test_a_node_config_that_does_not_fit_the_split_is_named(
    config: dict[str, Any], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = Trial(tmp_path, "rounds=1")
    grid = trial.grid()
    grid.nodes[5] = trial.node(**config)
    trial.federate(grid)
    assert f"node 5 cannot take part: node config: {words}" in caplog.text.replace("data = somewhere: ", "")
