"""The local steps of many clients at once: a client is a row of w, a matrix of flat vectors, and a row of g.

When a model is small, training one client at a time is all overhead. Here every step is taken by a whole group in
one batched computation, with the same operations in the same order as in local.py and the same examples in every
batch, so that a row ends where the client alone would, up to rounding. Which groups there are, and where their
results go, is the engines' matter; whether it pays and whether it is possible at all is decided here.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedacg.config.sections import LocalSettings
from fedacg.core.tensors import IGNORED
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import Examples, FederatedData, Pipeline, fetch, joined
from fedacg.data.pipelines import ImagePipeline, PlainPipeline
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Forward, ForwardRows, Loss, Start
from fedacg.models.row_gradients import LayerChain, cross_entropy
from fedacg.models.rows import RowLayers, keeps_rows
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
    buffers: Tensor | None = None,
) -> list[float]:
    """Take the steps of each client on its row of w, one for each of its rates, in place; return the mean losses.

    Its row of the buffers, if the network has any, moves with them.
    Clients come by falling K: those that still have a step to take are always the first rows.
    """
    streams = [torch.Generator().manual_seed(s("layers")) for s in seeds] if _drops(flat.module) else []
    layers = RowLayers(streams, {} if buffers is None else flat.buffer_rows(buffers))
    gradient = _Gradient(flat, method.losses, settings, w, layers)
    optimiser = make_optimiser(settings, w)
    columns = _columns(rates, w)
    found: list[tuple[Tensor, NDArray[np.int64]]] = []
    for number, step in enumerate(_steps(flat, clients, pipeline, settings.batch, list(map(len, rates)), seeds)):
        rows = w[: len(step.y)]
        gradient.take(rows, step)
        g = method.step.direction(gradient, rows)
        correct(g, rows, method.corrections, settings)
        rows.addcmul_(optimiser.direction(g, rows), columns[number][: len(rows)], value=-1)
        found.append((gradient.loss, step.sizes))
    # Read only now, and at once: an accelerator need not wait for the host after every step.
    losses = torch.cat([loss for loss, _ in found]).cpu().double().numpy()
    total, seen, first = np.zeros(len(w)), np.zeros(len(w)), 0
    for _, sizes in found:
        total[: len(sizes)] += losses[first : first + len(sizes)] * sizes
        seen[: len(sizes)] += sizes
        first += len(sizes)
    if buffers is not None:
        flat.write_buffer_rows(buffers, layers.buffers)
    means: list[float] = (total / seen).tolist()
    return means


def _columns(rates: Sequence[Sequence[float]], w: Tensor) -> Tensor:
    """For every step a column of the clients' rates, zero where a client has no such step."""
    most = len(rates[0])
    rows = [[*mine, *[0.0] * (most - len(mine))] for mine in rates]
    return torch.tensor(rows, dtype=w.dtype).T.unsqueeze(2).to(w.device)


class _Gradient:
    """g of every client's losses on its own batch, a row each, as a `methods.parts.Gradient`."""

    def __init__(
        self,
        flat: FlatModel,
        losses: Sequence[Loss],
        settings: LocalSettings,
        like: Tensor,
        layers: RowLayers,
    ) -> None:
        self._flat, self._losses, self._settings, self._layers = flat, losses, settings, layers
        self._plain = [type(loss) for loss in losses] == [Empirical] and settings.precision == "full"
        self._chain: LayerChain | None = None
        self._g = torch.empty_like(like)
        self._aside: Tensor | None = None
        """Where g goes if the point that it is taken at was written over the last one."""

    def take(self, w: Tensor, step: "_Step") -> None:
        """Go on to the next batch, of the clients that these rows are of."""
        self._w, self._x, self._y, self._asked = w, step.x, step.y, False
        self._layers.take(step.sizes.tolist())
        if self._plain and self._chain is None:
            self._chain = LayerChain.of(self._flat, step.x)
            self._plain = self._chain is not None

    def __call__(self, at: Tensor | None = None) -> Tensor:
        loss, g = self._at(self._w if at is None else at.expand(self._w.shape))
        if not self._asked:
            self.loss, self._asked = loss, True
        return g

    def onto(self, start: Start, at: Tensor | None = None, *, times: float = 1.0) -> Tensor:
        # First: `start` may be the last gradient, which the next one replaces.
        kept = torch.empty_like(self._w)
        if isinstance(start, Tensor):
            kept.copy_(start)
        else:
            start(kept)
        return kept.add_(self(at), alpha=times)

    def _at(self, w: Tensor) -> tuple[Tensor, Tensor]:
        if self._chain is not None:
            g = self._g
            if w.data_ptr() == g.data_ptr():
                if self._aside is None:
                    self._aside = torch.empty_like(g)
                g = self._aside
            loss, slope = cross_entropy(self._chain.forward(w, self._x), self._y)
            return loss, self._chain.backward(slope, g[: len(w)])
        with precision(self._settings, w.device):
            return _differentiate(self._flat, self._losses, w, self._x, self._y, self._layers)

    def last(self, at: Tensor | None = None) -> Tensor:
        return self(at)

    def of(self, loss: Callable[[Forward], Tensor]) -> Tensor:
        raise NotImplementedError("a step that asks for another loss does not fuse")


def _drops(module: nn.Module) -> bool:
    return any(isinstance(layer, nn.Dropout) for layer in module.modules())


def _differentiate(
    flat: FlatModel, losses: Sequence[Loss], w: Tensor, x: Tensor, y: Tensor, layers: RowLayers
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of every row on its own batch, and the gradients, a row each."""
    w = w.detach().requires_grad_()
    forward = ForwardRows(flat, w, x, y, layers)
    total = losses[0].of_rows(forward)
    for loss in losses[1:]:
        total = total + loss.of_rows(forward)
    (g,) = torch.autograd.grad(total.sum(), w)
    return total.detach(), g


@dataclass(frozen=True)
class _Step:
    """One step of the clients that still take one, with the batches of all of them filled up to one length."""

    sizes: NDArray[np.int64]
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
    ).numpy()
    augments = [] if _augments_nothing(pipeline) else [torch.Generator().manual_seed(s("augment")) for s in seeds]
    n, k = np.array([lengths, counts])[:, :, None]
    epoch = -(-n // batch)  # in steps
    seen = k // epoch * n + np.minimum(k % epoch * batch, n)
    firsts = seen.cumsum(axis=0) - seen  # of each client, in the order
    everything = joined(clients)
    order += np.repeat(n.cumsum() - n[:, 0], seen[:, 0])
    stretch = max(1, _FETCH // batch)
    for first in range(0, counts[0], stretch):
        steps = np.arange(first, min(first + stretch, counts[0]))[:, None, None]
        active = slice(int((k > first).sum()))
        epochs, place = np.divmod(steps, epoch[active])
        sizes = np.where(steps < k[active], np.minimum(n[active] - place * batch, batch), 0)
        begins = firsts[active] + epochs * n[active] + place * batch
        counted = (within := np.arange(sizes.max())) < sizes
        # Short batches are filled up with an example of the same client, to be ignored.
        index = order[np.where(counted, begins + within, firsts[active])]
        x, y = fetch(everything, torch.from_numpy(index.reshape(-1)), flat.w.device)
        assert isinstance(x, Tensor)  # see `obstacle`
        x = flat.prepare(_augment(pipeline, x, sizes, augments) if augments else pipeline(x))
        x, y = x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:])
        y[torch.from_numpy(~counted).to(y.device)] = IGNORED
        for number, working in enumerate((sizes > 0).sum(axis=(1, 2)).tolist()):
            yield _Step(sizes[number, :working, 0], x[number, :working], y[number, :working])


def _augments_nothing(pipeline: Pipeline) -> bool:
    """Whether a pipeline is known to draw nothing, so that it can take the batches of all clients at once."""
    plain = isinstance(pipeline, ImagePipeline) and pipeline.augment is None
    return plain or isinstance(pipeline, PlainPipeline)


def _augment(
    pipeline: Pipeline, x: Tensor, sizes: NDArray[np.int64], augments: Sequence[torch.Generator]
) -> Tensor:
    """The clients' batches through the pipeline, each with the client's own stream, as local.py has them."""
    places = torch.split(x, int(sizes.max()))  # of one client's step each
    batches = {
        number: pipeline(places[number][:size], augments[client])
        for number, ((_, client, _), size) in enumerate(np.ndenumerate(sizes))
        if size
    }
    like = next(iter(batches.values()))
    filled = like.new_zeros(len(places), len(places[0]), *like.shape[1:])
    for number, part in batches.items():
        filled[number, : len(part)] = part
    return filled.flatten(0, 1)


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
    for name, layer in module.named_modules():
        for buffer in () if keeps_rows(layer) else layer._buffers:
            return f"model: has a buffer, {f'{name}.{buffer}'.lstrip('.')}, which may change with every client"
    if channels_last:
        return "model: its layout is channels-last, in which many clients at once cannot be computed"
    return _try(module, data, batch)


def _try(module: nn.Module, data: FederatedData, batch: int) -> str | None:
    """Take the gradients of two batches at once, a short one among them, and compare with those of each alone."""
    client = max(range(min(len(data.clients), _GROUP)), key=data.clients.size)
    longest = min(batch, data.clients.size(client))
    x, y = data.clients[client].fetch(torch.arange(longest))
    assert isinstance(x, Tensor)
    counts = (longest, max(min(2, longest), longest // 2))
    filled = y.clone()
    filled[counts[1] :] = IGNORED
    flat, plain = FlatModel(clone(module)), Empirical()
    flat.module.train()
    x = flat.prepare(data.pipeline(x))
    w, xs, ys = flat.w.expand(2, -1).contiguous(), x.expand(2, *x.shape), torch.stack([y, filled])
    buffers = flat.read_buffers()
    both = buffers.expand(2, -1).clone()
    layers = RowLayers([torch.Generator().manual_seed(0) for _ in range(2)], flat.buffer_rows(both))
    layers.take(counts)
    try:
        with warnings.catch_warnings(action="error"):  # torch warns where it would go through the rows one by one
            _, g = _differentiate(flat, [plain], w, xs, ys, layers)
    except Exception as error:  # a network may raise anything
        reason = str(error).partition("\n")[0].rstrip(".")
        return f"model: {type(module).__name__} cannot be computed for many clients at once: {reason}"
    flat.write_buffer_rows(both, layers.buffers)
    for row, moved, count in zip(g, both, counts, strict=True):
        flat.g.zero_()
        flat.write_buffers(buffers)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            torch.autograd.backward(plain(Forward(flat.module, x[:count], y[:count])))
        same = torch.allclose(moved, flat.read_buffers(), rtol=1e-3, atol=1e-6)
        if not same or not torch.allclose(row, flat.g, rtol=1e-3, atol=1e-3 * float(flat.g.abs().max())):
            return f"model: {type(module).__name__} mixes the examples of a batch, so that none can be ignored"
    return None
