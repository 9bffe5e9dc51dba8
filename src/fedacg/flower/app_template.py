"""A new Flower app in a folder: the experiment in a file, and the few lines that make it an app."""

import json
import re
from importlib import resources
from pathlib import Path
from string import Template

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import Tree, override
from fedacg.errors import InputError
from fedacg.flower.options import ServerOptions, as_deployed, has_own_data
from fedacg.runs.build import check_methods

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_FILES = ("pyproject.toml", "README.md", "server_app.py", "client_app.py")


def describe(tree: Tree, settings: list[str], nodes: int, own_data: bool) -> Experiment:
    """The experiment of an app for this many nodes; explicit settings come last and win."""
    tree = {key: value for key, value in tree.items() if key != "population"}
    if own_data:
        tree["data"] = {"name": "folder", "split": "natural", "clients": 0}
    else:
        tree["data"] = {**tree.get("data", {}), "clients": nodes}
    cohort = tree.get("cohort", {})
    if cohort.get("size", 0) > nodes:
        tree["cohort"] = {**cohort, "size": nodes}
    experiment = Experiment.parse(override(tree, settings))
    check_methods([experiment])
    return as_deployed(experiment)


def write(folder: Path, experiment: Experiment, nodes: int) -> list[Path]:
    """Write an app that waits for this many nodes; existing files are not overwritten."""
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{folder}: the folder of a Flower app must begin with a letter and have only letters, digits and "
            "hyphens, 32 at most"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists and is not an empty folder")
    clients = experiment.data.clients
    words = _OWN if has_own_data(experiment) else _SPLIT
    start = "\n".join(
        _START.format(port=9094 + n, config=words["config"].format(n=n, clients=clients)) for n in range(nodes)
    )
    folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("fedacg.flower") / "template"
    for file in _FILES:
        text = (templates / f"{file}.txt").read_text(encoding="utf-8")
        (folder / file).write_text(
            Template(text).substitute(name=name, config=_config(nodes), data=words["data"], start=start),
            encoding="utf-8",
        )
    (folder / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    return [folder / file for file in ("experiment.toml", *_FILES)]


_START = "flower-supernode --insecure --superlink 127.0.0.1:8000 --port {port} --node-config '{config}'"
_OWN = {
    "config": 'data="/path/to/node-{n}"',
    "data": """\
Each node trains on its own folder, with `.npz` files of the arrays `x` and `y`; those whose names begin with
`test` are for testing. The name of the folder identifies the node, or `client="NAME"` does; names must be
unique.""",
}
_SPLIT = {
    "config": "partition-id={n} num-partitions={clients}",
    "data": """\
The data set is split among the nodes as in a simulation, for trials: `partition-id` is the number of the client
whose examples a node uses. For nodes with their own data, make the app with `--own-data`.""",
}


def _config(nodes: int) -> str:
    """The server's options with their defaults; Flower allows setting only options listed here."""
    defaults = {field.alias: field.default for field in ServerOptions.model_fields.values()}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in {**defaults, "nodes": nodes}.items())
