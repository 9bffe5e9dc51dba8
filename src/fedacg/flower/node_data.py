"""The examples a node trains on: a folder of its own, or one of the clients of the experiment's split."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedacg.config.experiment import Experiment
from fedacg.data import folder
from fedacg.data.examples import Examples, FederatedData
from fedacg.errors import InputError
from fedacg.flower.options import NodeOptions, has_own_data
from fedacg.flower.records import Announcement
from fedacg.runs.build import load_data
from fedacg.version import __version__


@dataclass(frozen=True)
class OnlyClient:
    """The client of this node, by whatever number the server knows it; the others are somewhere else."""

    examples: Examples
    count: int = 1
    """N"""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int, /) -> Examples:
        return self.examples

    def size(self, client: int) -> int:
        return len(self.examples)


@dataclass(frozen=True)
class NodeData:
    """Who the node is, and what it has."""

    client: int | str
    examples: Examples
    data: FederatedData

    def announce(self) -> Announcement:
        data = self.data
        return Announcement(self.client, len(self.examples), len(data.test), data.classes, data.shape, __version__)

    def as_client(self, classes: int, clients: int) -> FederatedData:
        """The data as one of so many clients of a federation with so many classes."""
        return replace(self.data, clients=OnlyClient(self.examples, clients), classes=classes)


def read_node_data(experiment: Experiment, options: NodeOptions) -> NodeData:
    if options.partition is None:
        return _own(experiment, options)
    if has_own_data(experiment):
        raise InputError(
            f'node config: partition-id = {options.partition}: the experiment has no split; give data="FOLDER"'
        )
    data = load_data(experiment)
    if options.partitions not in (None, len(data.clients)):
        raise InputError(
            f"node config: num-partitions = {options.partitions}: the experiment has {len(data.clients)} clients"
        )
    if options.partition >= len(data.clients):
        raise InputError(
            f"node config: partition-id = {options.partition}: must be from 0 to {len(data.clients) - 1}"
        )
    return NodeData(options.partition, data.clients[options.partition], data)


def _own(experiment: Experiment, options: NodeOptions) -> NodeData:
    if not has_own_data(experiment):
        raise InputError(
            f"node config: data = {options.data}: goes with data.name = folder and no data.path; with this "
            "experiment, give partition-id=NUMBER"
        )
    path = Path(options.data).expanduser().resolve()
    if not path.is_dir():
        raise InputError(f"node config: data = {options.data}: there is no such folder")
    whole = folder.read_clients([path])
    mine = OnlyClient(whole.train)
    data = FederatedData(whole.name, mine, whole.test, whole.pipeline, whole.classes, whole.shape)
    return NodeData(options.client or path.name, whole.train, data)
