"""A device that is pretended: its tensors lie in the CPU's memory, but may not meet those of the CPU.

PyTorch lets a program add a device of its own. This one computes with the CPU's kernels, so a run on it must give
the CPU's bits, and raises an error where an operation is given tensors of both, as a real accelerator would. It
stays for the rest of the process, so it is for a process of its own:

    python tests/pretended_device.py

plays small runs on the CPU and on the pretended device, and prints the digests, a line of JSON a run.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from fedacg import methods, models
from fedacg.config.experiment import Experiment
from fedacg.data.examples import FederatedData, SplitClients, TensorExamples
from fedacg.data.pipelines import Augment, ImagePipeline, PlainPipeline
from fedacg.runs.build import Ingredients
from fedacg.runs.runner import play

NAME = "pretend"


class _Module(_DummyBackendModule):  # type: ignore[misc]
    seeds: ClassVar[list[int]] = []

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def manual_seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def get_rng_state(self, device: object = None) -> Tensor:
        """Layers draw from the CPU's generator all the same; where this one stands is its last seed."""
        return torch.tensor(self.seeds[-1:])

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        assert state.tolist() == self.seeds[-1:], "set back to another visit's state"


class Away(Tensor):
    """A tensor on the pretended device, around the one that holds its numbers."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "Away":
        away: Away = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        away.held = held
        return away

    @property
    def data(self) -> Tensor:
        return torch._C.TensorBase.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: "Away") -> None:
        torch._C.TensorBase.data.__set__(self, value)  # type: ignore[attr-defined]
        self.held = value.held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _perform(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """While it is on, `.to("pretend")` and the like give tensors of the pretended device."""

    operations = 0
    """How many were performed with tensors of the device."""
    waits: ClassVar[list[str]] = []
    """Those for which the CPU would have waited for the device: it asked for numbers, or how many there are."""
    moved: ClassVar[Counter[str]] = Counter()
    """Bytes that were copied from the CPU to the device, by their type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _perform(func, args, kwargs or {})


_BOTH = {"aten::copy_", "aten::_to_copy", "aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_"}
"""What real accelerators do with tensors of both places: copy, and look up by positions from the CPU."""


def _perform(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = [leaf for leaf in leaves if isinstance(leaf, Away)]
    # Single numbers may come from the CPU, as for real accelerators.
    here = [leaf for leaf in leaves if not isinstance(leaf, Away) and leaf.dim() > 0]
    if away and here and func.name() not in _BOTH and name not in _BOTH:
        raise RuntimeError(f"{name} was given tensors on two devices")
    result_away = bool(away)
    if kwargs.get("device") is not None:
        result_away = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif name in _BOTH or func.name() in _BOTH:
        result_away = isinstance(args[0], Away)
    if result_away and kwargs.get("generator") is not None:
        raise RuntimeError(f"{name} was given a generator of the CPU")
    Pretending.operations += bool(away)
    if away and (name in _WAITING or not result_away or _by_mask(name, args)):
        Pretending.waits.append(name)
    if result_away and here and name in _COPIES:
        Pretending.moved[str(here[0].dtype)] += here[0].nbytes
    held_args, held_kwargs = tree_map(lambda leaf: leaf.held if isinstance(leaf, Away) else leaf, (args, kwargs))
    result = func(*held_args, **held_kwargs)
    same = {id(leaf.held): leaf for leaf in away}

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not result_away:
            return value
        return same[id(value)] if id(value) in same else Away(value)

    return tree_map(wrap, result)


_COPIES = {"aten::copy_", "aten::_to_copy"}
_WAITING = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal", "aten::masked_select"}


def _by_mask(name: str, args: Any) -> bool:
    """Whether entries are looked up by a mask on the device, whose number the CPU must know."""
    if name not in ("aten::index", "aten::index_put_"):
        return False
    return any(isinstance(index, Away) and index.dtype == torch.bool for index in args[1])


def pictures() -> FederatedData:
    source = torch.Generator().manual_seed(0)
    x = torch.randint(256, (48, 3, 8, 8), generator=source, dtype=torch.uint8)
    y = torch.randint(4, (48,), generator=source)
    clients = SplitClients(TensorExamples(x, y), torch.randperm(48, generator=source), torch.arange(0, 49, 12))
    pipeline = ImagePipeline((0.5,) * 3, (0.25,) * 3, augment=Augment(padding=1))
    return FederatedData("pictures", clients, TensorExamples(x[:20], y[:20]), pipeline, 4, (3, 8, 8))


def points() -> FederatedData:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=source), torch.randint(3, (60,), generator=source)
    clients = SplitClients(TensorExamples(x, y), torch.arange(60), torch.tensor([0, 7, 30, 44, 60]))
    return FederatedData("points", clients, TensorExamples(x[:20], y[:20]), PlainPipeline(), 3, (5,))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 4)
    )


def cases() -> Iterator[tuple[str, Ingredients, dict[str, Any]]]:
    for method in (*methods.METHODS, "fedprox+acg", "fedacg+paq"):
        module = models.build("cnn", classes=4, shape=(3, 8, 8))
        built = methods.build(method)
        size = 4 if "full participation" in built.needs else 2
        extra = {"local": {"clip": 0.5}, "cohort": {"size": size}}
        yield method, Ingredients(module, False, pictures(), built), extra
    module = models.build("cnn", classes=4, shape=(3, 8, 8))
    yield "channels last", Ingredients(module, True, pictures(), methods.build("fedacg")), {}
    yield "buffers and dropout", Ingredients(normalised(), False, pictures(), methods.build("fedacg")), {}
    for fuse in ("on", "off"):
        module = models.build("mlp", classes=3, shape=(5,), hidden=[4])
        local = {"clip": 0.5, "momentum": 0.5, "weight_decay": 0.01}
        ingredients = Ingredients(module, False, points(), methods.build("fedacg"))
        yield f"fuse {fuse}", ingredients, {"engine": {"fuse": fuse}, "local": local}


def digest(ingredients: Ingredients, extra: dict[str, Any], steps: int = 3) -> list[Any]:
    """What a run ends with: the vector, and its last test loss."""
    description = {
        "name": "python",
        "rounds": 2,
        "data": {"name": "python", "clients": 4, "split": "natural"},
        "model": {"name": "python:any"},
        "cohort": {"size": 2},
        **extra,
        "local": {"steps": steps, "batch": 5, **extra.get("local", {})},
        "engine": {"name": "serial", **extra.get("engine", {})},
    }
    result = play(Experiment.parse(description), ingredients)
    return [result.summary["vector_sha256"], result.history[-1].test_loss]


def draw() -> Tensor:
    return torch.rand(2, generator=torch.Generator(), device=NAME)


def refused(operation: Callable[[], Tensor]) -> str | None:
    """What the device says to an operation that real ones refuse."""
    try:
        operation()
    except RuntimeError as error:
        return str(error)
    return None


def main() -> None:
    torch.manual_seed(0)
    # Before the first gradient: autograd makes a thread for every device that it finds then, and no more later.
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    with Pretending():
        print(json.dumps({"refused": [refused(lambda: torch.ones(2).to(NAME) + torch.ones(2)), refused(draw)]}))
    for name, ingredients, extra in cases():
        here = digest(ingredients, extra)
        for room in (0, 2**30):
            Pretending.operations = 0
            _Module.seeds.clear()
            Pretending.waits.clear()
            Pretending.moved.clear()
            with (
                Pretending(),
                patch("fedacg.simulation.resident.device_of_worker", lambda name, number: torch.device(NAME, 0)),
                patch("fedacg.data.device_copy.spare", lambda device, room=room: room),
            ):
                there = digest(ingredients, extra)
                told: dict[str, Any] = {"operations": Pretending.operations, "seeds": len(set(_Module.seeds))}
                few, little = Counter(Pretending.waits), Counter(Pretending.moved)
                Pretending.waits.clear()
                Pretending.moved.clear()
                digest(ingredients, extra, steps=5)
            told["waits in steps"] = Counter(Pretending.waits) - few
            told["moved in steps"] = Counter(Pretending.moved) - little
            json.dump({"run": name, "resident": bool(room), "here": here, "there": there, **told}, sys.stdout)
            print()


if __name__ == "__main__":
    main()
