"""The server's side of the complete app: the round loop and run folder of a simulation, with nodes for workers."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedacg.config.experiment import Experiment
from fedacg.core.files import safe_name
from fedacg.errors import InputError
from fedacg.flower.engine import GridEngine
from fedacg.flower.membership import FILE, Membership, NamedRoll, Roll, SplitRoll
from fedacg.flower.nodes import Nodes
from fedacg.flower.options import ServerOptions, has_own_data, read_experiment, server_options
from fedacg.runs.build import load_data, prepare
from fedacg.runs.folder import RunFolder
from fedacg.runs.history import History, human_bytes
from fedacg.runs.runner import Result, play
from fedacg.simulation.metrics import RoundMetrics

_log = logging.getLogger("flwr")


def make(path: Path) -> ServerApp:
    """The ServerApp of the experiment in a file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(read_experiment(path), grid, context.run_config)

    return app


def serve(experiment: Experiment, grid: Grid, config: Mapping[str, Any]) -> Result:
    """Play an experiment with the nodes of a grid, from where its run folder stands."""
    options = server_options(config)
    name = f"{experiment.name}-{experiment.method.name}-s{experiment.seed}"
    folder = (Path(options.out) if options.out else Path("runs") / safe_name(name)).resolve()
    holds_run = (folder / "experiment.toml").exists()
    if holds_run and not options.resume and not options.overwrite:
        raise InputError(f"{folder}: holds a run; go on with resume=true or replace it with overwrite=true")
    RunFolder(folder).close()  # refuses one that another server is writing before anything is waited for
    if options.overwrite:
        (folder / FILE).unlink(missing_ok=True)
    members = Membership.open(folder)
    nodes = Nodes(grid, options.max_examples)
    roll = _roll(experiment, options, folder, members, nodes)
    nodes.open(roll, options.min_replies)
    cohort = experiment.cohort.count(len(roll.data.clients))
    if options.min_replies > cohort:
        raise InputError(f"min-replies = {options.min_replies}: only {cohort} clients are asked in a round")
    members.save(folder)
    _log.info("run folder: %s", folder)
    result = play(
        experiment,
        prepare(experiment, roll.data),
        folder=folder,
        resume=not options.overwrite,
        overwrite=options.overwrite,
        engine=GridEngine(grid, nodes, options, members.name),
        presence=nodes,
        observers=[Log()],
    )
    _log.info("vector sha256: %s", result.summary["vector_sha256"])
    return result


def _roll(experiment: Experiment, options: ServerOptions, folder: Path, members: Membership, nodes: Nodes) -> Roll:
    """The roll of clients, once enough nodes are there to begin."""
    if not has_own_data(experiment):
        data = load_data(experiment)
        nodes.gather(options.nodes or len(data.clients))
        return SplitRoll(data)
    count = options.nodes or experiment.data.clients
    if count == 0:
        raise InputError("nodes = 0: with nodes' own data, say how many must be there before the first round")
    nodes.gather(count)
    return NamedRoll(folder, members, nodes.announced, options.classes)


class Log:
    """An observer that writes a line a round to Flower's log."""

    def begin(self, experiment: Experiment, done: int) -> None:
        self._rounds = experiment.rounds
        after = f", after round {done}" if done else ""
        _log.info("%s (seed %d): %d rounds%s", experiment.method.name, experiment.seed, self._rounds, after)

    def round(self, metrics: RoundMetrics, history: History) -> None:
        accuracy = f", accuracy {100 * metrics.test_accuracy:.1f} %" if metrics.test_accuracy is not None else ""
        _log.info(
            "round %d of %d: %d of %d answered%s; %s down, %s up, %.1f s",
            metrics.round,
            self._rounds,
            len(metrics.arrived),
            len(metrics.cohort),
            accuracy,
            human_bytes(metrics.bytes_down),
            human_bytes(metrics.bytes_up),
            metrics.seconds_train + metrics.seconds_aggregate + metrics.seconds_evaluate,
        )

    def end(self) -> None:
        """Each line was written when it was due."""
