"""The local steps of many clients at once: a client is a row of w, a matrix of flat vectors, and a row of g.

When a model is small, training one client at a time is all overhead. Here every step is taken by a whole group in
one batched computation, with the same operations in the same order as in local.py and the same examples in every
batch, so that a row ends where the client alone would, up to rounding. Which groups there are, and where their
results go, is the engines' matter; whether it pays and whether it is possible at all is decided here.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedacg.config.sections import LocalSettings
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import Examples, FederatedData, Pipeline, fetch_together
from fedacg.data.pipelines import ImagePipeline, PlainPipeline
from fedacg.methods.method import Method
from fedacg.methods.parts import IGNORED, Empirical, Forward, ForwardRows, Loss
from fedacg.simulation.local import correct, make_optimiser, orders, precision

_GROUP = 64
"""Clients that are trained at once, at most."""
_ENTRIES = 2**19
"""Entries of the w of a group, at most: more than that does not stay in a core's cache."""
_FETCH = 64
"""Examples of a client that are fetched at a time, or one batch if that is more."""


def train(
    flat: FlatModel,
    w: Tensor,
    clients: Sequence[Examples],
    pipeline: Pipeline,
    method: Method,
    settings: LocalSettings,
    rates: Sequence[Sequence[float]],
    seeds: Sequence[Callable[[str], int]],
) -> list[float]:
    """Take the steps of each client on its row of w, one for each of its rates, in place; return the mean losses.

    Clients come by falling K: those that still have a step to take are always the first rows.
    """
    gradient = _Gradient(flat, method.losses, settings)
    optimiser = make_optimiser(settings, w)
    columns = _columns(rates, w)
    found: list[tuple[Tensor, Tensor]] = []
    for number, step in enumerate(_steps(flat, clients, pipeline, settings.batch, list(map(len, rates)), seeds)):
        rows = w[: len(step.y)]
        gradient.take(rows, step.x, step.y)
        g = method.step.direction(gradient, rows)
        correct(g, rows, method.corrections, settings)
        rows.addcmul_(optimiser.direction(g, rows), columns[number][: len(rows)], value=-1)
        found.append((gradient.loss, step.sizes))
    total, seen = torch.zeros(2, len(w), dtype=torch.float64)
    # Read only now, and at once: an accelerator need not wait for the host after every step.
    losses = torch.split(torch.cat([loss for loss, _ in found]).cpu(), [len(sizes) for _, sizes in found])
    for loss, (_, sizes) in zip(losses, found, strict=True):
        total[: len(sizes)].addcmul_(loss, sizes)
        seen[: len(sizes)].add_(sizes)
    return [loss / count for loss, count in zip(total.tolist(), seen.tolist(), strict=True)]


def _columns(rates: Sequence[Sequence[float]], w: Tensor) -> Tensor:
    """For every step a column of the clients' rates, zero where a client has no such step."""
    most = len(rates[0])
    rows = [[*mine, *[0.0] * (most - len(mine))] for mine in rates]
    return torch.tensor(rows, dtype=w.dtype).T.unsqueeze(2).to(w.device)


class _Gradient:
    """g of every client's losses on its own batch, a row each, as a `methods.parts.Gradient`."""

    def __init__(self, flat: FlatModel, losses: Sequence[Loss], settings: LocalSettings) -> None:
        self._flat, self._losses, self._settings = flat, losses, settings

    def take(self, w: Tensor, x: Tensor, y: Tensor) -> None:
        """Go on to the next batch, of the clients that these rows are of."""
        self._w, self._x, self._y, self._asked = w, x, y, False

    def __call__(self, at: Tensor | None = None) -> Tensor:
        point = self._w if at is None else at.expand(self._w.shape)
        with precision(self._settings, point.device):
            loss, g = _differentiate(self._flat, self._losses, point, self._x, self._y)
        if not self._asked:
            self.loss, self._asked = loss, True
        return g

    def last(self, at: Tensor | None = None) -> Tensor:
        return self(at)

    def of(self, loss: Callable[[Forward], Tensor]) -> Tensor:
        raise NotImplementedError("a step that asks for another loss does not fuse")


def _differentiate(
    flat: FlatModel, losses: Sequence[Loss], w: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of every row on its own batch, and the gradients, a row each."""
    w = w.detach().requires_grad_()
    forward = ForwardRows(flat, w, x, y)
    total = losses[0].of_rows(forward)
    for loss in losses[1:]:
        total = total + loss.of_rows(forward)
    (g,) = torch.autograd.grad(total.sum(), w)
    return total.detach(), g


@dataclass(frozen=True)
class _Step:
    """One step of the clients that still take one, with the batches of all of them filled up to one length."""

    sizes: Tensor
    """Examples of each client's batch that count."""
    x: Tensor
    y: Tensor


def _steps(
    flat: FlatModel,
    clients: Sequence[Examples],
    pipeline: Pipeline,
    batch: int,
    counts: Sequence[int],
    seeds: Sequence[Callable[[str], int]],
) -> Iterator[_Step]:
    """The group's steps, with each client's batches as local.py would have them."""
    lengths = [len(examples) for examples in clients]
    shuffle = torch.Generator()  # one for all: a client's orders are drawn before the next client's
    order = torch.cat(
        [
            part
            for length, count, seed in zip(lengths, counts, seeds, strict=True)
            for part in orders(length, batch, count, shuffle.manual_seed(seed("shuffle")))
        ]
    )
    augments = (
        [] if _augments_nothing(pipeline) else [torch.Generator().manual_seed(seed("augment")) for seed in seeds]
    )
    n, k = torch.tensor([lengths, counts]).unsqueeze(2)
    epoch = -(-n // batch)  # in steps
    seen = k // epoch * n + (k % epoch * batch).clamp(max=n)
    offsets = seen.cumsum(dim=0) - seen
    stretch = max(1, _FETCH // batch)
    for first in range(0, counts[0], stretch):
        steps = torch.arange(first, min(first + stretch, counts[0]))
        active = int((k > first).sum())
        epochs, earlier = steps // epoch[:active], steps % epoch[:active] * batch
        sizes = (n[:active] - earlier).clamp(max=batch).where(steps < k[:active], 0)
        begins = offsets[:active] + epochs * n[:active] + earlier
        batches = begins.unsqueeze(2) + torch.arange(int(sizes.max()))
        count = batches < (begins + sizes).unsqueeze(2)
        x, y = fetch_together(clients[:active], order[batches[count]], sizes.sum(dim=1))
        assert isinstance(x, Tensor)  # see `obstacle`
        x, y = x.to(flat.w.device), y.to(flat.w.device)
        x = flat.prepare(pipeline(x) if _augments_nothing(pipeline) else _augment(pipeline, x, sizes, augments))
        # Short batches are filled up with an example to be ignored, which is put behind all others.
        places = torch.full_like(batches, len(y))
        places[count] = torch.arange(len(y))
        x = torch.cat([x, x[:1]])
        y = torch.cat([y, torch.full_like(y[:1], IGNORED)])
        for number, working in enumerate((sizes > 0).sum(dim=0).tolist()):
            here = places[:working, number]
            yield _Step(sizes[:working, number], _take(x, here), _take(y, here))


def _augments_nothing(pipeline: Pipeline) -> bool:
    """Whether a pipeline is known to draw nothing, so that it can take the batches of all clients at once."""
    plain = isinstance(pipeline, ImagePipeline) and pipeline.augment is None
    return plain or isinstance(pipeline, PlainPipeline)


def _augment(pipeline: Pipeline, x: Tensor, sizes: Tensor, augments: Sequence[torch.Generator]) -> Tensor:
    """The clients' batches through the pipeline, each with the client's own stream, as local.py has them."""
    streams = [augments[client] for client, row in enumerate(sizes) for _ in row]
    batches = torch.split(x, sizes.flatten().tolist())
    return torch.cat([pipeline(part, mine) for part, mine in zip(batches, streams, strict=True) if len(part)])


def _take(rows: Tensor, places: Tensor) -> Tensor:
    """The rows at these places, in the shape of the places; several times as fast as `rows[places]`."""
    return rows.index_select(0, places.flatten().to(rows.device)).view(*places.shape, *rows.shape[1:])


def group_size(parameters: int) -> int:
    """How many clients with a model of this size are trained at once, at most."""
    return max(2, min(_GROUP, _ENTRIES // parameters))


def worthwhile(parameters: int, cohort: int) -> bool:
    """Whether fusing pays, as benchmarks/fusing.py measured it: a small model and a cohort to share the overhead.

    The rounding follows from the answer, so it must not depend on the machine or on the number of workers.
    """
    return parameters <= 50_000 and cohort >= 16


def obstacle(
    module: nn.Module, channels_last: bool, data: FederatedData, method: Method, batch: int
) -> str | None:
    """Why the clients of a run cannot be trained at once: the part that stands in the way; None if they can."""
    for part in method.parts:
        if not part.fuses:
            return f"method: its part {type(part).__name__} serves one client at a time"
    if not data.classes:
        return "data: the labels are floating point, and a batch that is filled up needs a label to ignore"
    if not isinstance(data.clients[0].fetch(torch.zeros(1, dtype=torch.int64))[0], Tensor):
        return "data: the inputs are several tensors, and many clients at once take one"
    buffer = next((name for name, _ in module.named_buffers()), None)
    if buffer is not None:
        return f"model: has a buffer, {buffer}, which may change with every client"
    if channels_last:
        return "model: its layout is channels-last, in which many clients at once cannot be computed"
    return _try(module, data, batch)


def _try(module: nn.Module, data: FederatedData, batch: int) -> str | None:
    """Take the gradients of two batches at once, a short one among them, and compare with those of each alone."""
    client = max(range(min(len(data.clients), _GROUP)), key=data.clients.size)
    longest = min(batch, data.clients.size(client))
    x, y = data.clients[client].fetch(torch.arange(longest))
    assert isinstance(x, Tensor)
    filled = y.clone()
    filled[max(1, longest // 2) :] = IGNORED
    flat, plain = FlatModel(clone(module)), Empirical()
    flat.module.train()
    x = flat.prepare(data.pipeline(x))
    w, xs, ys = flat.w.expand(2, -1).contiguous(), x.expand(2, *x.shape), torch.stack([y, filled])
    try:
        with warnings.catch_warnings(action="error"):  # torch warns where it would go through the rows one by one
            _, g = _differentiate(flat, [plain], w, xs, ys)
    except Exception as error:  # a network may raise anything
        reason = str(error).partition("\n")[0].rstrip(".")
        return f"model: {type(module).__name__} cannot be computed for many clients at once: {reason}"
    for row, count in zip(g, (longest, max(1, longest // 2)), strict=True):
        flat.g.zero_()
        torch.autograd.backward(plain(Forward(flat.module, x[:count], y[:count])))
        if not torch.allclose(row, flat.g, rtol=1e-3, atol=1e-3 * float(flat.g.abs().max())):
            return f"model: {type(module).__name__} mixes the examples of a batch, so that none can be ignored"
    return None
