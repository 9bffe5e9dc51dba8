"""Options of those who run a federation: the server's in Flower's run config, a node's in its node config.

Both are flat tables of numbers, strings and booleans. What is learnt, and how, is in the experiment.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from fedacg.config.experiment import Experiment, parse
from fedacg.config.fields import Section
from fedacg.config.recipe import find
from fedacg.config.sections import EngineSettings, SaveSettings
from fedacg.errors import InputError
from fedacg.flower.checks import MAX_NORM, NORM_FACTOR


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
