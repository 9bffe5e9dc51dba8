"""A rehearsal of a job: one client's step on a copy, which shows what its messages are made of."""

from dataclasses import replace

import torch

from fedacg.core.round import Message, Round, kinds
from fedacg.data.examples import Examples, ViewExamples
from fedacg.simulation.engine import Job, Task, Traffic
from fedacg.simulation.worker import Worker

FEW = 2
"""Examples of the rehearsal: normalisation over a batch needs more than one."""


def rehearse(job: Job) -> Traffic:
    """One step of one client on two examples, from the state before the first round: what is sent and kept.

    It changes nothing, and what cannot work at all fails here, before anything is begun.
    """
    clients = job.data.clients
    client = next((c for c in range(min(len(clients), 64)) if clients.size(c) >= FEW), 0)
    few = ViewExamples(clients[client], torch.arange(min(FEW, clients.size(client))))
    worker = Worker(replace(job, group=1, device="cpu", data=replace(job.data, clients=_One(client, few))))
    rule, buffers = job.method.rule, worker.flat.read_buffers()
    round = Round(number=1, clients=len(clients), expected=1, lr=job.local.lr, seed=job.seed)
    state = job.first_state(worker.flat.w.clone())
    first: Message = {}
    with torch.random.fork_rng(devices=[]):
        if rule.first_exchange:
            phi = rule.broadcast(state, round)["phi"]
            (gradient,) = worker.serve([Task(round, client, 0)], {"phi": phi, "buffers": buffers}, {})
            first = gradient.upload
            state = rule.learn(state, first["gradient"], round)
        broadcast = {**rule.broadcast(state, round), "buffers": buffers}
        answer = worker.train(Task(round, client, 1), broadcast, {})
    return Traffic(*map(kinds, (broadcast, answer.upload, first, answer.keep)))


class _One:
    """A federation in which only one client can be asked."""

    def __init__(self, client: int, examples: Examples) -> None:
        self._client, self._examples = client, examples

    def __len__(self) -> int:
        return self._client + 1

    def __getitem__(self, client: int) -> Examples:
        return self._examples

    def size(self, client: int) -> int:
        return len(self._examples)
