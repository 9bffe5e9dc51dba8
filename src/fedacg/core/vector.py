"""A module as one vector: its parameters are views into `w`, their gradients views into `g`; and vectors on disk.

The server's quantities (θ, φ, m, Δ …) are vectors of the same length and order, so a method is vector
algebra and a local step a handful of in-place operations. Nothing here knows of methods or clients.
"""

import copy
import hashlib
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedacg.core.tensors import wide
from fedacg.errors import InputError


class Layout:
    """The order of the entries in the vectors of a run, and the way to the canonical order and back.

    The canonical order is that of `torch.nn.utils.parameters_to_vector`. What is kept on disk is in that order, so
    that it does not matter in which layout it was computed, or will be used.
    """

    def __init__(self, shapes: Sequence[torch.Size] = (), channels_last: bool = False) -> None:
        self.channels_last = channels_last
        self.size = sum(shape.numel() for shape in shapes)
        self._parts: list[tuple[slice, torch.Size]] = []
        first = 0
        for shape in shapes:
            # Where there is one channel or one point, both orders are the same.
            if len(shape) == 4 and shape[1] > 1 and shape[2] * shape[3] > 1:
                self._parts.append((slice(first, first + shape.numel()), shape))
            first += shape.numel()

    @classmethod
    def of(cls, module: nn.Module, channels_last: bool) -> "Layout":
        """The layout of a `FlatModel`'s vectors."""
        return cls([p.shape for p in trainable(module)], channels_last)

    @property
    def name(self) -> str:
        """From an experiment's `model.layout`."""
        return "channels-last" if self.channels_last else "default"

    @property
    def matters(self) -> bool:
        """Whether the two layouts of this model differ."""
        return bool(self._parts)

    def to_canonical(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Named vectors in the canonical order; those that are not a model's, such as buffers, are left alone."""
        return {name: self._turn(name, vector, back=False) for name, vector in vectors.items()}

    def from_canonical(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Vectors in the canonical order, converted to this layout."""
        return {name: self._turn(name, vector, back=True) for name, vector in vectors.items()}

    def _turn(self, name: str, vector: Tensor, back: bool) -> Tensor:
        if (
            not self.channels_last
            or not self._parts
            or name.rpartition("/")[2] == "buffers"
            or vector.shape != (self.size,)
        ):
            return vector
        turned = vector.clone()
        for span, shape in self._parts:
            if back:
                _view(turned[span], shape, channels_last=True).copy_(vector[span].view(shape))
            else:
                turned[span].view(shape).copy_(_view(vector[span], shape, channels_last=True))
        return turned


CANONICAL = Layout()
"""The canonical order itself."""


_ALIGNED = 64
"""Bytes to which PyTorch aligns what it allocates."""


class FlatModel:
    """A module laid out in flat memory. The module is taken over: its parameters move into `w`.

    `channels_last` stores convolution weights channels-last inside the vector. It changes the order of the
    entries and the speed, not the network. Parameters that do not require a gradient stay where they are. A
    `frozen` model takes no gradients and lets them pass.
    """

    def __init__(self, module: nn.Module, *, channels_last: bool = False, frozen: bool = False) -> None:
        parameters = trainable(module)
        size = sum(p.numel() for p in parameters)
        self.module = module
        self.channels_last = channels_last
        self.w = torch.empty(size, dtype=parameters[0].dtype, device=parameters[0].device)
        self.g = self.w.new_zeros(0 if frozen else size)
        self._parameters = parameters
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        self._own = list(self.unfold(self.w).values())
        self._other, self._others = self.w, self._own
        """The vector that `at` was last asked for, and its views: steps ask for the same again and again."""
        for p, view in zip(parameters, self._own, strict=True):
            view.copy_(p.data)
            p.data = view
            p.requires_grad_(not frozen)
        self._homes = [] if frozen else [(self.g, list(self.unfold(self.g).values()))]
        """Where gradients may go, with the views for each: `g`, and a second place once a step needs one."""
        for _, views in self._homes:
            self._take(views)
        self._buffers = list(_persistent_buffers(module))
        for buffer in self._buffers:
            buffer.data = buffer.data.clone()

    @contextmanager
    def at(self, vector: Tensor) -> Iterator[None]:
        """The module at another vector like `w`, which keeps its values; gradients go to `g` as always.

        The vector is copied only if its alignment differs from that of `w`, as that of a message or a file may:
        the rounding of kernels depends on it.
        """
        views = next((views for home, views in self._homes if home is vector), None)
        if views is None:
            if (vector.data_ptr() - self.w.data_ptr()) % _ALIGNED:
                vector = vector.clone()
            if not vector.is_set_to(self._other):
                self._other, self._others = vector, list(self.unfold(vector).values())
            views = self._others
        self._point_to(views)
        try:
            yield
        finally:
            self._point_to(self._own)

    def _point_to(self, views: Sequence[Tensor]) -> None:
        for p, view in zip(self._parameters, views, strict=True):
            p.data = view

    def place_g(self, at: Tensor | None = None) -> Tensor:
        """Have gradients go to their usual memory, or to a second one if the point that they are of lies there."""
        aside = at is self._homes[0][0]
        if aside and len(self._homes) == 1:
            second = torch.empty_like(self.g)
            self._homes.append((second, list(self.unfold(second).values())))
        self.g, views = self._homes[aside]
        if self._parameters[0].grad is not views[0]:
            self._take(views)
        return self.g

    def _take(self, gradients: Sequence[Tensor]) -> None:
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient

    def load(self, vector: Tensor, buffers: Tensor) -> None:
        """Overwrite parameters and buffers."""
        self.w.copy_(vector)
        self.write_buffers(buffers)

    def read_buffers(self) -> Tensor:
        """The module's buffers (running means and the like) as one vector of the model's type."""
        if not self._buffers:
            return self.w.new_empty(0)
        return torch.cat([b.reshape(-1).to(self.w.dtype) for b in self._buffers])

    def write_buffers(self, vector: Tensor) -> None:
        """Set the module's buffers; those that count in whole numbers are rounded."""
        offset = 0
        for buffer in self._buffers:
            part = vector[offset : offset + buffer.numel()].view(buffer.shape)
            buffer.copy_(part if buffer.is_floating_point() else part.round())
            offset += buffer.numel()

    def buffer_rows(self, vectors: Tensor) -> dict[int, Tensor]:
        """Copies of the buffers that the rows of a matrix hold, by the id of the module's own."""
        parts = torch.split(vectors, [buffer.numel() for buffer in self._buffers], dim=1)
        return {
            id(buffer): (part if buffer.is_floating_point() else part.round())
            .to(buffer.dtype, copy=True)
            .view(-1, *buffer.shape)
            for buffer, part in zip(self._buffers, parts, strict=True)
        }

    def write_buffer_rows(self, vectors: Tensor, found: Mapping[int, Tensor]) -> None:
        """Put such buffers back into the rows of a matrix."""
        if self._buffers:
            torch.cat(
                [found[id(b)].view(len(vectors), -1).to(vectors.dtype) for b in self._buffers], 1, out=vectors
            )

    def canonical(self) -> Tensor:
        """A copy of `w` in the order of `parameters_to_vector`, whatever the layout."""
        return torch.cat([p.detach().reshape(-1) for p in self._parameters])

    def release(self) -> nn.Module:
        """Give the module back with parameters in ordinary memory of their own, and without gradients."""
        for p in self._parameters:
            p.data = p.data.clone(memory_format=torch.contiguous_format)
            p.grad = None
        return self.module

    def unfold(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters that any vector like `w` holds, by name, as views that autograd follows."""
        parts = torch.split(vector, [p.numel() for p in self._parameters])
        return {
            name: _view(part, p.shape, self.channels_last)
            for name, p, part in zip(self._names, self._parameters, parts, strict=True)
        }

    def unfold_rows(self, vectors: Tensor) -> dict[int, Tensor]:
        """The parameters that the rows of a matrix hold, as views, by the id of the module's own; plain layout."""
        parts = torch.split(vectors, [p.numel() for p in self._parameters], dim=1)
        return {id(p): part.view(-1, *p.shape) for p, part in zip(self._parameters, parts, strict=True)}

    def prepare(self, x: Tensor) -> Tensor:
        """An input in the model's own type and memory layout."""
        if x.is_floating_point() and x.dtype != self.w.dtype:
            x = x.to(self.w.dtype)
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that make up the vector; a module that has none, or mixed ones, is refused."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("model: has no trainable parameters")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in parameters):
        raise InputError("model: has lazy layers without a size; pass one batch through it first")
    if parameters[0].dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"model: its parameters are {parameters[0].dtype}; must be torch.float32 or torch.float64. "
            "To compute in bfloat16, set local.precision = 'mixed'"
        )
    kinds = {(p.dtype, p.device) for p in parameters}
    if len(kinds) > 1:
        raise InputError(f"model: its parameters differ in type or device: {sorted(map(str, kinds))}")
    return parameters


def clone(module: nn.Module) -> nn.Module:
    """An independent copy of a user's module, made once per run so that theirs is not changed."""
    return copy.deepcopy(module)


def as_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor as a matrix with this many rows, one per client."""
    return tensor.reshape(rows, tensor.numel() // rows)


def rows_of(tensor: Tensor, w: Tensor) -> Tensor:
    """What belongs to the rows of w, the first of a group: a row for each, or one vector for all."""
    return tensor if tensor.dim() < w.dim() else tensor[: len(w)]


def add_scaled(a: Tensor, b: Tensor, factor: float | Tensor) -> Tensor:
    """a + factor·b, where the factor is one number or a column with one for each row."""
    return torch.addcmul(a, b, factor) if isinstance(factor, Tensor) else torch.add(a, b, alpha=factor)


def clip(g: Tensor, largest: float) -> None:
    """g ← g·min(1, c/(‖g‖ + 10⁻⁶)), as `torch.nn.utils.clip_grad_norm_` does; each row by its own norm."""
    scale = largest / (torch.linalg.vector_norm(g, dim=-1, keepdim=True).to(wide(g)) + 1e-6)
    # An accelerator's queue must not be waited for, so it multiplies by 1 where the CPU can look and leave it out.
    if g.device.type != "cpu" or bool((scale < 1).any()):
        g.mul_(scale.clamp_(max=1).to(g.dtype))


def sha256(vector: Tensor) -> str:
    """Fingerprint of a vector's bytes."""
    return hashlib.sha256(vector.contiguous().numpy().tobytes()).hexdigest()


def _view(flat: Tensor, shape: torch.Size, channels_last: bool) -> Tensor:
    if channels_last and len(shape) == 4:
        out, channels, height, width = shape
        return flat.view(out, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(shape)


def _persistent_buffers(module: nn.Module) -> Iterator[Tensor]:
    saved = module.state_dict(keep_vars=True)
    parameters = {id(p) for p in module.parameters()}
    return (value for value in saved.values() if id(value) not in parameters)


# Vectors on disk: safetensors with a checksum of names, types, shapes, entries and facts in its metadata


_FACTS = "fedacg"
"""The single entry of the metadata: safetensors would write several in arbitrary order."""


def pack_vectors(vectors: Mapping[str, Tensor], facts: Mapping[str, str]) -> bytes:
    """The bytes of a file that holds these vectors, and facts about them."""
    whole = {name: vector.contiguous() for name, vector in vectors.items()}
    packed: bytes = save(whole, {_FACTS: json.dumps({**facts, "check": _digest(whole, facts)})})
    return packed


def load_vectors(path: Path, *, sealed: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The vectors of a file and the facts about them; raises InputError if it is damaged or something else.

    Without `sealed`, a file written before there were checksums is accepted as well.
    """
    try:
        # A pipe in place of the file would block for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: not a regular file")
        with safe_open(path, framework="pt") as file:
            facts = _facts(file.metadata() or {})
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None
    check = facts.pop("check", None)
    if check is None and sealed:
        raise InputError(f"{path}: damaged: has no checksum")
    if check is not None and check != _digest(vectors, facts):
        raise InputError(f"{path}: damaged: its checksum does not match")
    return vectors, facts


def _facts(metadata: Mapping[str, str]) -> dict[str, str]:
    """The facts in a file's metadata; before there were checksums, each fact was a separate entry."""
    if _FACTS not in metadata:
        return dict(metadata)
    facts = json.loads(metadata[_FACTS])
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise ValueError("not the facts of a vector")
    return facts


def _digest(vectors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    # SHA-256 has instructions of its own in today's processors, and was the fastest of the standard library.
    found = hashlib.sha256(repr(sorted(facts.items())).encode())
    for name, vector in sorted(vectors.items()):
        found.update(repr((name, str(vector.dtype), tuple(vector.shape))).encode())
        found.update(vector.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]


def _reason(error: Exception) -> str:
    """A system error without the file name, which the message has already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
