"""The server's side of the complete app: the round loop and run folder of a simulation, with nodes for workers.

To the round loop `GridEngine` is an engine like any other, except that clients may be lost: tasks go out over
Flower's grid, and replies are checked. What a client keeps stays at its node; the server keeps a receipt of the
last visit that counted, and the node goes back to that visit before the next. So a reply that was refused, or a
server that went back to a checkpoint, leaves both sides as they were.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedacg.config.experiment import Experiment
from fedacg.core.files import safe_name
from fedacg.core.round import Message as Vectors
from fedacg.core.vector import clone, trainable
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError, SettingError
from fedacg.flower.checks import Measured, MedianBound, Refused
from fedacg.flower.deployment import ServerOptions, has_own_data, read_experiment, server_options
from fedacg.flower.membership import FILE, Membership, NamedRoll, Roll, SplitRoll
from fedacg.flower.nodes import Nodes, ask, content
from fedacg.flower.records import Announcement, Order, UploadReader, norm_of, order, pack, read_tested
from fedacg.flower.sealed import open_mean, sealing
from fedacg.models import parameters
from fedacg.runs.build import Ingredients, load_data, prepare
from fedacg.runs.callbacks import Callback, RunView
from fedacg.runs.folder import RunFolder
from fedacg.runs.history import human_bytes
from fedacg.runs.runner import Result, play
from fedacg.simulation.engine import Answer, Answers, ClientMemory, Held, Job, See, Task, Training
from fedacg.simulation.scoring import Evaluation, total

_log = logging.getLogger("flwr")
_VISIT = "visit"
"""The one number of a receipt."""


class GridEngine:
    """Trains at the nodes of a grid, and tests here or there."""

    def __init__(
        self, grid: Grid, nodes: Nodes, options: ServerOptions, members: Membership, folder: Path
    ) -> None:
        self._grid, self._nodes, self._options = grid, nodes, options
        self._members, self._folder = members, folder
        self._bound = MedianBound(options.norm_factor, "norm-factor", members.norms)
        self._here = SerialEngine()

    def setup(self, job: Job) -> None:
        if job.method.rule.first_exchange:
            raise InputError(
                "method: its clients first exchange full gradients, but a node serves one message per round; "
                "it runs only in simulation"
            )
        self._job = job
        self._here.setup(job)
        self._uploads = UploadReader(job, self._options.max_norm)

    def train(self, broadcast: Vectors, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        if sealing(self._job.method.rule):
            return self._train_sealed(broadcast, tasks, kept)
        vectors, serving, deadline = pack(broadcast), self._nodes.serving, self._options.deadline
        messages = {}
        for task in tasks:
            receipt = kept(task.client)
            visit = int(receipt[_VISIT]) if receipt else 0
            words = order(vectors, self._order(task, visit))
            messages[task.client] = Message(words, serving[task.client], MessageType.TRAIN, ttl=deadline or None)
        replies = ask(self._grid, messages, deadline)
        answers, norms, lost = {}, {}, {}
        for task in tasks:
            try:
                answers[task.client], norms[task.client] = self._read(task, replies[task.client])
            except Refused as reason:
                lost[task.client] = str(reason)
        if norms:
            model = {norm_of("delta"): float(broadcast["phi"].norm())}
            too_long = self._bound.judge(tasks[0].round.number, norms, model)
            lost.update(too_long)
            answers = {client: answer for client, answer in answers.items() if client not in too_long}
            self._members.save(self._folder)
        for client in lost:
            who = f"client {client} at node {serving[client]}"
            _log.warning("round %d: nothing from %s: %s", tasks[0].round.number, who, lost[client])
        if answers and len(answers) < self._options.min_replies:
            few = f"only {len(answers)} of the {self._options.min_replies} replies that a round needs"
            _log.warning("round %d: %s; nothing moves", tasks[0].round.number, few)
            lost.update(dict.fromkeys(answers, few))
            answers = {}
        sound = (Answers.of_one(task, answers[task.client]) for task in tasks if task.client in answers)
        return Training(sound, lost)

    def _train_sealed(self, broadcast: Vectors, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        """The same if the server may see only the sum: each client is recorded as having sent the mean."""
        serving, number = self._nodes.serving, tasks[0].round.number if tasks else 0
        orders = {}
        for task in tasks:
            receipt = kept(task.client)
            details = replace(self._order(task, int(receipt[_VISIT]) if receipt else 0), cohort=len(tasks))
            orders[serving[task.client]] = order(pack(broadcast), details)
        try:
            mean, nodes = open_mean(self._grid, self._job, number, broadcast, orders, self._options.deadline)
            if len(nodes) < self._options.min_replies:
                raise Refused(f"only {len(nodes)} of the {self._options.min_replies} replies that a round needs")
            lost = {task.client: "left" for task in tasks if serving[task.client] not in nodes}
        except Refused as reason:
            mean, lost = {}, dict.fromkeys((task.client for task in tasks), str(reason))
        for client, why in lost.items():
            _log.warning("round %d: nothing from client %d at node %d: %s", number, client, serving[client], why)
        keep = {_VISIT: torch.tensor([number])} if self._job.traffic.kept else {}
        size = self._job.data.clients.size
        answers = (
            Answers.of_one(task, Answer(task.client, size(task.client), task.steps, math.nan, mean, keep))
            for task in tasks
            if task.client not in lost
        )
        return Training(answers, lost, stand_ins=True)

    def evaluate(self, model: Vectors, part: Held = "test", see: See | None = None) -> Evaluation:
        if part == "validation":
            return self._here.evaluate(model, part, see)
        if self._options.tested_by == "nobody":
            return total([])
        if self._options.tested_by == "auto" and len(self._job.data.test):
            return self._here.evaluate(model, part, see)
        vectors, serving = pack(model), dict(sorted(self._nodes.serving.items()))
        messages = {
            client: Message(order(vectors, self._ask(client)), node, MessageType.EVALUATE)
            for client, node in serving.items()
        }
        replies = ask(self._grid, messages, self._options.deadline)
        sums = []
        for client, node in serving.items():
            try:
                sums.append(read_tested(content(replies[client]), self._nodes.tests(client)))
            except Refused as reason:
                _log.warning("no test result from client %d at node %d: %s", client, node, reason)
        found = total(sums)
        return found if self._job.data.classes else replace(found, counted=0)

    def close(self) -> None:
        """Nothing was started: the nodes are not the server's to end."""

    def _read(self, task: Task, reply: Message | str) -> tuple[Answer, dict[str, Measured]]:
        """A reply as the round loop takes it, with the receipt that the server keeps of it, and its norms."""
        answer, norms = self._uploads.read(content(reply), task, self._job.data.clients.size(task.client))
        receipt = {_VISIT: torch.tensor([task.round.number])} if self._job.traffic.kept else {}
        return replace(answer, keep=receipt), norms

    def _ask(self, client: int) -> Order:
        data = self._job.data
        return Order(self._members.name, len(data.clients), client, data.classes)

    def _order(self, task: Task, visit: int) -> Order:
        round = task.round
        return replace(
            self._ask(task.client),
            round=round.number,
            expected=round.expected,
            lr=round.lr,
            steps=task.steps,
            visit=visit,
        )


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
