"""`fedacg deploy init`: an app that Flower takes, with the experiment of a simulation in it."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.flower.deployment import NodeOptions, ServerOptions, server_options
from support.command import Command
from support.flower_grid import LoopGrid, Node

FILES = ["experiment.toml", "pyproject.toml", "README.md", "server_app.py", "client_app.py"]
FLOWERS_OWN_WARNING = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
"""It still uses a name that pathspec has given up."""


def experiment(app: Path) -> Experiment:
    return Experiment.parse(read_toml(app / "experiment.toml"))


def commands(app: Path) -> list[str]:
    """What its README says is to be typed."""
    (block,) = re.findall(r"```sh\n(.*?)```", (app / "README.md").read_text(), re.DOTALL)
    return str(block).splitlines()


@FLOWERS_OWN_WARNING
def test_an_app_is_written_and_flower_takes_it(fedacg: Command) -> None:
    outcome = fedacg("deploy", "init", "demo", "--set", "rounds=2")
    app = fedacg.folder / "demo"
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [*(f"demo/{name}" for name in FILES), "how to start it: demo/README.md"]
    assert sorted(path.name for path in app.iterdir()) == sorted(FILES)
    assert load_and_validate(app / "pyproject.toml")[1] == []  # no warnings either
    assert len(build_fab_from_disk(app)) > 0


def test_the_written_app_plays_what_fedacg_run_plays(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app as Flower loads it, from files, with the config that stands in its pyproject.toml."""
    settings = ["--set", "rounds=2", "--set", "local.epochs=1"]
    fedacg("deploy", "init", "demo", "quickstart", "--method", "feddyn:alpha=0.2", *settings)
    app = fedacg.folder / "demo"
    described = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("server_app", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    server, client = (
        load_app(described["components"][kind], ValueError, app) for kind in ("serverapp", "clientapp")
    )
    assert isinstance(server, ServerApp)
    assert isinstance(client, ClientApp)
    states = str(fedacg.folder / "states")
    nodes = {n: Node(client, {"partition-id": n, "num-partitions": 3, "state": states}) for n in range(3)}
    server(LoopGrid(nodes), Context(1, 1, {}, RecordDict(), flatten_dict(described["config"])))
    assert fedacg("run", "demo/experiment.toml", "--out", "simulated", "--quiet").code == 0
    digests = [
        json.loads((fedacg.folder / run / "summary.json").read_text())["vector_sha256"]
        for run in ("runs/quickstart-feddyn-s0", "simulated")
    ]
    assert digests[0] == digests[1]
    for name in ("server_app", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@FLOWERS_OWN_WARNING
def test_files_that_are_not_the_apps_stay_out_of_its_bundle(fedacg: Command) -> None:
    fedacg("deploy", "init", "demo")
    app = fedacg.folder / "demo"
    before = build_fab_from_disk(app)
    (app / "runs").mkdir()
    (app / "runs" / "metrics.jsonl").write_text("{}\n")
    (app / "secret.toml").write_text("key = 1\n")
    assert build_fab_from_disk(app) == before


def test_every_option_of_the_server_stands_in_the_app_with_its_default(fedacg: Command) -> None:
    fedacg("deploy", "init", "demo", "--nodes", "5")
    config = tomllib.loads((fedacg.folder / "demo" / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "config"
    ]
    assert server_options(config) == ServerOptions(nodes=5)
    assert set(config) == {field.alias for field in ServerOptions.model_fields.values()}


def test_the_readme_starts_as_many_nodes_as_the_app_waits_for(fedacg: Command) -> None:
    fedacg("deploy", "init", "demo", "--nodes", "2")
    first, *nodes, last = commands(fedacg.folder / "demo")
    assert (first, last) == ("flower-superlink --insecure", "flwr run demo here --stream")
    assert [re.findall(r"--port (\d+) --node-config '(.*)'", line) for line in nodes] == [
        [("9094", "partition-id=0 num-partitions=2")],
        [("9095", "partition-id=1 num-partitions=2")],
    ]


def test_the_split_has_a_client_for_every_node_unless_it_is_set(fedacg: Command) -> None:
    fedacg("deploy", "init", "few", "--nodes", "2")
    fedacg("deploy", "init", "many", "--nodes", "2", "--set", "data.clients=40", "--set", "cohort.size=3")
    few, many = (experiment(fedacg.folder / name) for name in ("few", "many"))
    assert (few.data.clients, few.cohort.size) == (2, 2)
    assert (many.data.clients, many.cohort.size) == (40, 3)
    assert "num-partitions=40" in (fedacg.folder / "many" / "README.md").read_text()


def test_nodes_can_have_data_of_their_own(fedacg: Command) -> None:
    fedacg("deploy", "init", "demo", "cifar10-large", "--own-data")
    data = experiment(fedacg.folder / "demo").data
    assert (data.name, data.path, data.split, data.clients) == ("folder", "", "natural", 0)
    assert 'data="/path/to/node-0"' in commands(fedacg.folder / "demo")[1]


def test_what_a_real_federation_does_not_simulate_is_left_out(fedacg: Command) -> None:
    fedacg("deploy", "init", "demo", "cifar100-dynamic")
    found = experiment(fedacg.folder / "demo")
    assert found.population.present == 0
    assert (found.engine.fuse, found.save.seconds) == ("off", 0)


@pytest.mark.parametrize("name", ["9lives", "a_b", "a.b", "a" * 33])
def test_a_name_that_flower_does_not_take_is_refused(name: str, fedacg: Command) -> None:
    outcome = fedacg("deploy", "init", name)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {name}: the folder of a Flower app must begin with a letter")
    assert not (fedacg.folder / name).exists()


def test_a_folder_that_has_something_in_it_is_left_alone(fedacg: Command) -> None:
    (fedacg.folder / "demo").mkdir()
    (fedacg.folder / "demo" / "thesis.tex").write_text("")
    outcome = fedacg("deploy", "init", "demo")
    assert (outcome.code, outcome.err) == (2, "error: demo: exists and is not an empty folder\n")
    assert [path.name for path in (fedacg.folder / "demo").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "local.lr=-1"], "local.lr = -1: must be greater than 0"),
        (["--method", "fedxyz"], "unknown method 'fedxyz'"),
        (["nosuch"], "unknown recipe 'nosuch'"),
    ],
)
def test_a_wrong_experiment_is_refused_and_nothing_written(
    arguments: list[str], words: str, fedacg: Command
) -> None:
    outcome = fedacg("deploy", "init", "demo", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert not (fedacg.folder / "demo").exists()


def test_without_flower_deploy_says_how_to_get_it(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("fedacg.cli.program.find_spec", lambda name: None if name == "flwr" else find(name))
    outcome = fedacg("deploy", "init", "demo")
    assert outcome.code == 2
    assert outcome.err == "error: fedacg deploy: needs Flower; install it with pip install 'fedacg[flower]'\n"


def test_only_the_room_flower_imports_flower() -> None:
    """Nothing but fedacg.flower needs flwr: the rest is imported while importing it is an error."""
    program = (
        "import sys, pkgutil, importlib\n"
        "sys.modules['flwr'] = None\n"
        "import fedacg\n"
        "for each in pkgutil.walk_packages(fedacg.__path__, 'fedacg.'):\n"
        "    if not each.name.startswith('fedacg.flower') and not each.name.endswith(('__main__', '_process')):\n"
        "        importlib.import_module(each.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_guide_has_every_option_of_server_and_node() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in guide.splitlines() if line.startswith("| `")
    ]
    expected = [[f"`{f.alias}`", f"`{json.dumps(f.default)}`"] for f in ServerOptions.model_fields.values()]
    assert [row[:2] for row in rows if len(row) == 3] == expected
    keys = [f"`{field.alias or name}`" for name, field in NodeOptions.model_fields.items()]
    assert [row[0] for row in rows if len(row) == 2 and row[0] in keys] == keys
