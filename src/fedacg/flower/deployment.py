"""A deployment: the options of those who run it, and the folder of a new Flower app.

The server's options are in Flower's run config, a node's in its node config; both are flat tables of numbers,
strings and booleans. What is learnt, and how, is in the experiment.
"""

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Literal

from pydantic import ConfigDict, Field

from fedacg.config.experiment import Experiment, parse
from fedacg.config.fields import Section
from fedacg.config.recipe import Tree, find, override
from fedacg.config.sections import EngineSettings, SaveSettings
from fedacg.errors import InputError
from fedacg.flower.checks import MAX_NORM, NORM_FACTOR
from fedacg.runs.build import check_methods


class ServerOptions(Section):
    """The keys of `[tool.flwr.app.config]`, and of `flwr run --run-config`."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    out: str = ""
    """The run folder, relative to where the SuperLink was started; runs/NAME-METHOD-sSEED by default."""
    resume: bool = True
    """Resume the run in the folder."""
    overwrite: bool = False
    """Replace the run in the folder."""
    nodes: int = Field(0, ge=0)
    """Nodes that must be connected before the first round; 0 waits for all clients of the experiment."""
    deadline: float = Field(0.0, ge=0)
    """Seconds that a round waits for replies; 0 waits until each has arrived or Flower gives its node up."""
    min_replies: int = Field(1, ge=1)
    """Least number of replies for a round to count, and of nodes for a round to begin."""
    max_examples: int = Field(0, ge=0)
    """Most examples that a node may claim; 0 derives it from what is usual among the nodes."""
    max_norm: float = Field(MAX_NORM, gt=0)
    """Largest norm of a vector that is accepted; it must be finite."""
    norm_factor: float = Field(NORM_FACTOR, ge=0)
    """Largest norm of a vector relative to the usual one; 0 sets no such bound."""
    max_parameters: int = Field(10**8, ge=1)
    """With nodes' own data, the largest network that is built for the inputs and classes that nodes announce."""
    classes: int = Field(0, ge=0)
    """With nodes' own data, the number of classes; 0 derives it from the nodes connected at the start."""
    shape: str = Field("", pattern=r"^([1-9]\d{0,9}(,[1-9]\d{0,9}){0,7})?$")
    """With nodes' own data, the shape of an input, such as 3,32,32; by default, that of most nodes."""
    tested_by: Literal["auto", "nodes", "nobody"] = "auto"
    """Who tests the model: with `auto` the server if it has a test set, otherwise the nodes, on theirs."""

    @property
    def sides(self) -> tuple[int, ...]:
        """The shape of an input as numbers, empty if it is not set."""
        return tuple(map(int, self.shape.split(","))) if self.shape else ()


class NodeOptions(Section):
    """The keys of `flower-supernode --node-config`; those of other apps are ignored."""

    model_config = ConfigDict(extra="ignore")

    data: str = ""
    """A folder of .npz files: the node trains on its own data."""
    client: str = Field("", max_length=64)
    """The node's name then; by default, the folder's name."""
    partition: int | None = Field(None, ge=0, alias="partition-id")
    """For trials: the number of a client of the experiment's own split, on whose examples the node trains."""
    partitions: int | None = Field(None, ge=1, alias="num-partitions")
    state: str = ""
    """Where methods that need it keep vectors between visits; ~/.local/state/fedacg by default."""
    threads: int = Field(1, ge=1)
    """Threads of a training step; with one, the bits are those of a simulation."""

    @property
    def state_folder(self) -> Path:
        return Path(self.state) if self.state else Path.home() / ".local" / "state" / "fedacg"


def server_options(config: Mapping[str, Any]) -> ServerOptions:
    return parse(ServerOptions, config)


def node_options(config: Mapping[str, Any]) -> NodeOptions:
    options = parse(NodeOptions, config)
    if bool(options.data) == (options.partition is not None):
        raise InputError(
            'node config: must have either data="FOLDER", for a node\'s own data, or partition-id=NUMBER, for one '
            "of the clients of the experiment's split"
        )
    return options


def read_experiment(path: Path) -> Experiment:
    """The experiment of an app, as a real federation runs it."""
    experiment = Experiment.parse(find(str(path)))
    if experiment.population.present:
        raise InputError(
            f"population.present = {experiment.population.present}: in a real federation, the connected nodes are "
            "present; leave it out"
        )
    if experiment.clock.profile or experiment.asynchronous.buffer:
        raise InputError("clock.profile, asynchronous.buffer: a real federation has its own time; leave them out")
    return as_deployed(experiment)


def as_deployed(experiment: Experiment) -> Experiment:
    """The same, trained client by client and saved after every round."""
    engine = EngineSettings(name="serial", fuse="off")
    return experiment.model_copy(update={"engine": engine, "save": SaveSettings(seconds=0)})


def has_own_data(experiment: Experiment) -> bool:
    """Whether the examples are the nodes' own: a `folder` that only they know."""
    return experiment.data.name == "folder" and not experiment.data.path


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_FILES = ("pyproject.toml", "README.md", "server_app.py", "client_app.py")


def describe_app(tree: Tree, settings: list[str], nodes: int, own_data: bool) -> Experiment:
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


def write_app(folder: Path, experiment: Experiment, nodes: int) -> list[Path]:
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
