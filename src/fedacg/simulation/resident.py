"""A model that stays where the work is done, with the data beside it: it is evaluated, whole or client by client.

Its parameters are overwritten in place for whatever is asked next. What trains it is in worker.py.
"""

from collections.abc import Sequence

import torch

from fedacg.core.randomness import stream_seed
from fedacg.core.round import Message
from fedacg.core.tensors import device_of_worker, seed_layers
from fedacg.core.vector import FlatModel, clone
from fedacg.data.device_copy import settle
from fedacg.data.examples import Examples, feed, fetch
from fedacg.methods.baselines import OWN, OWN_BUFFERS
from fedacg.methods.method import Method
from fedacg.methods.parts import Forward
from fedacg.simulation.clients import FIGURES
from fedacg.simulation.engine import Answers, Held, Job, Measured, See, Task, check_device, chunks, to_device
from fedacg.simulation.local import train
from fedacg.simulation.scoring import Evaluation, examples_per_pass, measure, total


class Resident:
    """One model and a job's data on one device."""

    def __init__(self, job: Job, number: int = 0) -> None:
        self.job = job
        check_device(job.device)
        self.device = device_of_worker(job.device, number)
        self.flat = FlatModel(clone(job.module).to(self.device), channels_last=job.channels_last)
        self._data = settle(job.data, self.device)
        self._pass = 0

    def figures(self, group: Sequence[Task], broadcast: Message, kept: Message) -> Answers:
        """Evaluate the broadcast model, or a client's own, on the examples for evaluating clients."""
        rows = torch.zeros(len(group), FIGURES, dtype=torch.float64)
        for row, task in enumerate(group):
            mine = to_device({name: each[row] for name, each in kept.items()}, self.device)
            own = OWN in mine
            self.flat.load(
                mine[OWN] if own else broadcast["phi"],
                mine[OWN_BUFFERS] if own and OWN_BUFFERS in mine else broadcast["buffers"],
            )
            on = self._measured.test[task.client] if task.measure == "client" else self._held(task.measure)
            found = [self._on(on)]
            if task.measure == "client" and task.steps:
                self._fine_tune(task)
                found.append(self._on(on))
            numbers = [n for each in found for n in (each.loss, each.correct, each.counted)]
            rows[row, : 1 + len(numbers)] = torch.tensor([len(on), *numbers], dtype=torch.float64)
        return Answers(group, [0] * len(group), [0.0] * len(group), upload={"figures": rows}, keep={})

    @property
    def _measured(self) -> Measured:
        assert self.job.measured is not None
        return self.job.measured

    def _fine_tune(self, task: Task) -> None:
        """Plain steps on the client's training examples, from where the model is."""
        job = self.job
        plain = Method(job.method.rule, (job.method.empirical,))
        self._seed_layers(task, "personal")
        self.flat.module.train()
        train(
            self.flat,
            self._measured.train[task.client],
            job.data.pipeline,
            plain,
            job.local,
            [task.round.lr] * task.steps,
            lambda purpose: task.random(f"personal {purpose}"),
        )

    def _held(self, part: str) -> Examples:
        held = self._data.validation if part == "validation" else self._data.test
        assert held is not None
        return held

    def _on(self, examples: Examples) -> Evaluation:
        """Sums over all of some examples for the model as it is."""
        spans = chunks(len(examples), self.job.evaluate_batch)
        return total([self._sums(examples, first, last) for first, last in spans])

    def evaluate(
        self, model: Message, first: int, last: int, part: Held = "test", see: See | None = None
    ) -> Evaluation:
        """Sums over the examples of a part from `first` up to `last`, whose outputs are shown to `see`."""
        self.flat.load(model["theta"], model["buffers"])
        return self._sums(self._held(part), first, last, see)

    @torch.no_grad()
    def _sums(self, examples: Examples, first: int, last: int, see: See | None = None) -> Evaluation:
        """Sums over the examples from `first` up to `last` for the model as it is."""
        flat = self.flat
        flat.module.eval()
        found, seen = [], []
        for index in torch.split(torch.arange(first, last), self._pass_over(examples)):
            x, y = fetch(examples, index, self.device)
            forward = Forward(flat.module, feed(flat, self._data.pipeline, x), y)
            loss = float(self.job.method.empirical(forward)) * len(y)
            found.append(measure(self.job.aim, forward.logits, y, loss))
            if see is not None:
                outputs = forward.logits.cpu()  # NumPy has no bfloat16
                seen.append((outputs.float() if outputs.dtype == torch.bfloat16 else outputs, y.cpu()))
        if see is not None:
            see(*map(torch.cat, zip(*seen, strict=True)))
        return total(found)

    def _pass_over(self, examples: Examples) -> int:
        """How many examples go through the network at once; found once, with the first."""
        if not self._pass and len(examples):
            x, _ = fetch(examples, torch.arange(1), self.device)
            self._pass = examples_per_pass(self.flat.module, feed(self.flat, self._data.pipeline, x))
        return self._pass or 1

    def _seed_layers(self, task: Task, purpose: str) -> None:
        seed_layers(self.device, stream_seed(self.job.seed, purpose, task.round.number, task.client))
