"""The engine whose workers are remote nodes: tasks go out over Flower's grid, and replies are checked.

To the round loop it is an engine like any other, except that clients may be lost. What a client keeps stays at its
node; the server keeps a receipt of the last visit that counted, and the node goes back to that visit before the
next. So a reply that was refused, or a server that went back to a checkpoint, leaves both sides as they were.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedacg.core.round import Message as Vectors
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError
from fedacg.flower.checks import Refused
from fedacg.flower.membership import Membership
from fedacg.flower.nodes import Nodes, ask, content
from fedacg.flower.options import ServerOptions
from fedacg.flower.records import Order, UploadReader, norm_of, order, pack, read_tested
from fedacg.flower.sealed import open_mean, sealing
from fedacg.flower.usual import Measured, MedianBound
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
