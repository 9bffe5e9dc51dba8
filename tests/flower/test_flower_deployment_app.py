"""The complete app on a real federation: one SuperLink, three SuperNodes, and a server that is killed."""

import json
from pathlib import Path

import pytest

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override, read_toml
from fedacg.flower.deployment import describe_app, write_app
from fedacg.runs.build import prepare
from fedacg.runs.contents import load_moment
from fedacg.runs.runner import play
from support.federation_processes import Deployment


@pytest.mark.slow
def test_a_killed_server_goes_on_at_the_saved_round_and_ends_as_the_simulation_does(tmp_path: Path) -> None:
    app = tmp_path / "app"
    described = describe_app(find("quickstart"), ["rounds=2"], nodes=3, own_data=False)
    write_app(app, described, nodes=3)
    experiment = Experiment.parse(read_toml(app / "experiment.toml"))
    first = Experiment.parse(override(read_toml(app / "experiment.toml"), ["rounds=1"]))
    for name, each in (("first", first), ("whole", experiment)):
        play(each, prepare(each), folder=tmp_path / name)

    (tmp_path / "federation").mkdir()
    with Deployment(tmp_path / "federation", nodes=3) as deployment:
        folder = deployment.folder / "runs" / "quickstart-fedacg-s0"
        deployment.run(app).wait_for("round 1 of 2: 3 of 3 answered")
        deployment.kill("server")
        saved, expected = load_moment(folder), load_moment(tmp_path / "first")
        assert saved.round == 1
        assert all(saved.vectors[name].equal(expected.vectors[name]) for name in ("theta", "m"))

        deployment.start_server()
        again = deployment.run(app)
        assert again.wait() == "finished:completed", again.text
        assert "fedacg (seed 0): 2 rounds, after round 1" in again.text
        assert "round 1 of 2" not in again.text
        assert deployment.foreign() == []
        assert {"flwr-serverapp", "flwr-clientapp"} <= deployment.guarded()

    digests = [
        json.loads((run / "summary.json").read_text())["vector_sha256"] for run in (folder, tmp_path / "whole")
    ]
    assert digests[0] == digests[1]
    assert load_moment(folder).vectors["m"].equal(load_moment(tmp_path / "whole").vectors["m"])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["round"], line["answered"]) for line in lines] == [(1, [0, 1, 2]), (2, [0, 1, 2])]
