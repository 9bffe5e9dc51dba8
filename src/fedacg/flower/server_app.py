"""The server's side of the complete app: the round loop and run folder of a simulation, with nodes for workers."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedacg.config.experiment import Experiment
from fedacg.core.files import safe_name
from fedacg.core.vector import clone, trainable
from fedacg.errors import InputError, SettingError
from fedacg.flower.checks import Refused
from fedacg.flower.engine import GridEngine
from fedacg.flower.membership import FILE, Membership, NamedRoll, Roll, SplitRoll
from fedacg.flower.nodes import Nodes
from fedacg.flower.options import ServerOptions, has_own_data, read_experiment, server_options
from fedacg.flower.records import Announcement
from fedacg.models import parameters
from fedacg.runs.build import Ingredients, load_data, prepare
from fedacg.runs.callbacks import Callback, RunView
from fedacg.runs.folder import RunFolder
from fedacg.runs.history import human_bytes
from fedacg.runs.runner import Result, play

_log = logging.getLogger("flwr")


def make(path: Path) -> ServerApp:
    """The ServerApp of the experiment in a file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(read_experiment(path), grid, context.run_config)

    return app


def serve(experiment: Experiment, grid: Grid, config: Mapping[str, Any]) -> Result:
    """Run an experiment with the nodes of a grid, resuming from its run folder."""
    options = server_options(config)
    name = f"{experiment.name}-{experiment.method.name}-s{experiment.seed}"
    folder = (Path(options.out) if options.out else Path("runs") / safe_name(name)).resolve()
    holds_run = (folder / "experiment.toml").exists()
    if holds_run and not options.resume and not options.overwrite:
        raise InputError(f"{folder}: holds a run; resume it with resume=true or replace it with overwrite=true")
    RunFolder(folder).close()  # refuse a folder that another server writes, before waiting for nodes
    if options.overwrite:
        (folder / FILE).unlink(missing_ok=True)
    members = Membership.open(folder)
    nodes = Nodes(grid, partial(_check_network, experiment, options))
    roll = _roll(experiment, options, folder, members, nodes)
    nodes.open(roll, options.min_replies)
    cohort = experiment.cohort.count(len(roll.data.clients))
    if options.min_replies > cohort:
        raise InputError(f"min-replies = {options.min_replies}: only {cohort} clients are asked per round")
    members.save(folder)
    ingredients = prepare(experiment, roll.data, deployed=True)
    if isinstance(roll, NamedRoll):
        roll.clients.dtype = _input_type(ingredients)
    _log.info("run folder: %s", folder)
    result = play(
        experiment,
        ingredients,
        folder=folder,
        resume=not options.overwrite,
        overwrite=options.overwrite,
        engine=GridEngine(grid, nodes, options, members, folder),
        presence=nodes,
        callbacks=[Log()],
    )
    _log.info("vector sha256: %s", result.summary["vector_sha256"])
    return result


def _roll(experiment: Experiment, options: ServerOptions, folder: Path, members: Membership, nodes: Nodes) -> Roll:
    """The members of the federation, once enough nodes are connected."""
    if not has_own_data(experiment):
        data = load_data(experiment)
        nodes.gather(options.nodes or len(data.clients))
        return SplitRoll(data)
    if experiment.data.validation:
        why = "the nodes have their own data, of which the server cannot hold out any"
        raise SettingError("data.validation", f"{experiment.data.validation:g}", why)
    count = options.nodes or experiment.data.clients
    if count == 0:
        raise InputError(
            "nodes = 0: with nodes' own data, must be the number of nodes to wait for before the first round"
        )
    nodes.gather(count)
    return NamedRoll(folder, members, nodes.announced, options)


def _input_type(ingredients: Ingredients) -> torch.dtype:
    """The type of inputs that a network takes: that of its parameters, or whole numbers, as ids of symbols are."""
    module = clone(ingredients.module).eval()
    own = trainable(module)[0].dtype
    try:
        with torch.no_grad():
            module(torch.zeros(1, *ingredients.data.shape, dtype=own))
    except (InputError, RuntimeError, TypeError):
        return torch.int64
    return own


def _check_network(experiment: Experiment, options: ServerOptions, found: Announcement) -> None:
    """Refuse a node whose inputs the network does not take, or for which it would be too large."""
    if not has_own_data(experiment):
        return
    model, classes = experiment.model, options.classes or found.classes
    try:
        # A node that has seen one class is welcome: others may have seen more.
        size = parameters(model.name, classes=max(classes, 2), shape=found.shape, **model.options)
    except InputError as error:
        raise Refused(str(error)) from None
    if size > options.max_parameters:
        raise Refused(
            f"with inputs of shape {found.shape} and {classes} classes, the network has {size:.3g} parameters, "
            f"at most {options.max_parameters:g} are accepted; max-parameters sets the limit"
        )


class Log(Callback):
    """A callback that writes one line per round to Flower's log."""

    def begin(self, run: RunView) -> None:
        experiment, done = run.experiment, run.done
        self._rounds = experiment.rounds
        after = f", after round {done}" if done else ""
        _log.info("%s (seed %d): %d rounds%s", experiment.method.name, experiment.seed, self._rounds, after)

    def round(self, run: RunView) -> None:
        metrics = run.metrics
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
