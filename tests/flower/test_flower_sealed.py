"""`+secure` over Flower's SecAgg+: the server opens a mean that is the plain one, also when a node leaves."""

from pathlib import Path

import pytest
import torch

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, read_toml
from fedacg.flower import sealed, server_app
from fedacg.flower.deployment import describe_app, write_app
from fedacg.runs.build import prepare
from fedacg.runs.contents import load_moment
from fedacg.runs.runner import play as simulated
from support.federation_processes import Deployment
from support.flower_grid import LoopGrid, Trial, node_id

SETTINGS = ("cohort.size=3", "cohort.weights='uniform'", "rounds=2")


def play(trial: Trial, grid: LoopGrid) -> torch.Tensor:
    return server_app.serve(trial.experiment, grid, {"out": str(trial.out)}).vector


@pytest.mark.parametrize("method", ["fedacg+secure", "scaffold+secure"])
@pytest.mark.parametrize(("rounds", "most"), [(1, 2 * 4 / 2**22), (2, 1e-4)])
def test_nodes_that_seal_end_where_a_simulation_does_within_the_rounding(
    method: str, rounds: int, most: float, tmp_path: Path
) -> None:
    trial = Trial(tmp_path, *SETTINGS, f"method.name='{method}'", "method.clip=2.0", f"rounds={rounds}")
    found = play(trial, trial.grid())
    expected = trial.simulate().vector
    # Flower writes a number in 22 bits from −2 to 2, rounded at random. That bounds a first round; in a second one
    # clients train from a slightly different model.
    assert float((found - expected).abs().max()) < most
    assert not torch.equal(found, expected)


def test_a_node_that_leaves_in_the_middle_is_left_out_of_the_sum(tmp_path: Path) -> None:
    trial = Trial(tmp_path, *SETTINGS, "method.name='fedavg+secure'", "method.clip=2.0", "rounds=1")
    grid = trial.grid()

    def leave(round: int, node: int) -> None:
        if node == node_id(1):  # its keys are shared by now, and its update is asked for
            grid.nodes.pop(node, None)

    grid.before_train = leave
    found = play(trial, grid)
    expected = trial.simulate(cohorts=[[0, 2]]).vector
    assert float((found - expected).abs().max()) < 2 * 4 / 2**22


def test_what_a_node_sends_is_masked(tmp_path: Path) -> None:
    """The masked update of a node has nothing of its own, and no array of a reply holds one."""
    trial = Trial(tmp_path, *SETTINGS, "method.name='fedavg+secure'", "rounds=1")
    grid, seen = trial.grid(), []
    for node in grid.nodes.values():

        def look(reply):  # type: ignore[no-untyped-def]
            masked = reply.content.config_records[sealed.RECORD_KEY_CONFIGS].get("masked_params")
            if masked is not None:
                assert all(len(array) == 0 for array in reply.content.array_records.values())
                seen.extend(sealed.np.frombuffer(max(masked, key=len)[-4000:], dtype="<i8").tolist())
            return reply

        node.tamper = look
    play(trial, grid)
    values = torch.tensor(seen, dtype=torch.float64) % 2**32 / 2**32
    assert len(values) > 1000
    assert abs(float(values.mean()) - 0.5) < 0.05
    assert float(values.std()) == pytest.approx(12**-0.5, rel=0.1)


@pytest.mark.slow
def test_a_real_node_that_is_killed_in_the_middle_of_a_sealed_round(tmp_path: Path) -> None:
    app = tmp_path / "app"
    # One round, since the rounding of a first one goes through the training of a second, which has no such bound.
    settings = ["rounds=1", "method.name='fedacg+secure'", "method.clip=2.0", "cohort.weights='uniform'"]
    write_app(app, describe_app(find("quickstart"), settings, nodes=3, own_data=False), nodes=3)
    (tmp_path / "federation").mkdir()
    with Deployment(tmp_path / "federation", nodes=3) as deployment:
        run = deployment.run(app)
        run.wait_for("round 1: keys are shared, and updates are asked for")
        deployment.kill("node-1")
        assert run.wait(600) == "finished:completed", run.text
        assert "round 1 of 1: 2 of 3 answered" in run.text
        folder = deployment.folder / "runs" / "quickstart-fedacg+secure-s0"
        saved = load_moment(folder)
    plain = Experiment.parse(read_toml(app / "experiment.toml"))
    expected = simulated(plain, prepare(plain), cohorts=[[0, 2]])
    assert saved.round == 1
    assert float((saved.vectors["theta"] - expected.vector).abs().max()) < 2 * 4 / 2**22
