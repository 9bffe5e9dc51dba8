"""Tensors on their way through a model: inputs of one tensor or several, and the device that computes.

The server's vectors, messages and all random draws stay on the CPU, so that a device changes the rounding and
nothing else. What is moved there, and when, is the worker's matter.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

# Model inputs: one tensor, or several by position or by name, as `forward` takes them


Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A batch of inputs: a tensor, a tuple for `forward(a, b)`, or a dictionary for `forward(ids=…, mask=…)`."""


IGNORED = -100
"""The label of what does not count, such as padding; cross-entropy ignores it by default."""


def each(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The inputs with a function applied to every tensor of them."""
    if isinstance(x, dict):
        return {name: function(tensor) for name, tensor in x.items()}
    return tuple(map(function, x)) if isinstance(x, tuple) else function(x)


def tensors(x: Inputs) -> list[Tensor]:
    """Every tensor of the inputs."""
    if isinstance(x, dict):
        return list(x.values())
    return list(x) if isinstance(x, tuple) else [x]


def join(parts: list[Inputs], together: Callable[[list[Tensor]], Tensor]) -> Inputs:
    """Combine inputs of the same kind: `together` makes one tensor of those with the same position or name."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: together([part[name] for part in parts if isinstance(part, dict)]) for name in first}
    if isinstance(first, tuple):
        return tuple(together([part[place] for part in parts]) for place in range(len(first)))  # type: ignore[index]
    return together([part for part in parts if isinstance(part, Tensor)])


def call(module: nn.Module, x: Inputs) -> Any:
    """The model's outputs: a tuple is passed by position, a dictionary by name."""
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple) else module(x)


def described(x: Inputs) -> str:
    """Type and shape of a batch's inputs, without the dimension that counts examples."""
    if isinstance(x, dict):
        return "{" + ", ".join(f"{name}: {described(tensor)}" for name, tensor in x.items()) + "}"
    if isinstance(x, tuple):
        return "(" + ", ".join(map(described, x)) + ")"
    return f"{x.dtype} of shape {tuple(x.shape[1:])}"


# Where a worker computes: the CPU, or an accelerator that several workers may share


Device = Literal["cpu", "cuda", "mps"]


def count_devices(name: Device) -> int:
    """How many devices of a kind this machine has."""
    if name == "cuda":
        return torch.cuda.device_count()
    return int(name == "cpu" or torch.backends.mps.is_available())


def device_of_worker(name: Device, number: int) -> torch.device:
    """The device of the worker with this number: workers use the devices of a kind in turn."""
    return torch.device(name, number % count_devices(name)) if name == "cuda" else torch.device(name)


def seed_layers(device: torch.device, seed: int) -> None:
    """Seed the generators that layers draw from by themselves, as dropout does."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def draws_of_layers(device: torch.device) -> list[Tensor]:
    """The state of the generators that layers draw from by themselves."""
    states = [torch.default_generator.get_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state())
    return states


def set_draws_of_layers(device: torch.device, states: list[Tensor]) -> None:
    """Restore that state, so that layers draw the same again."""
    torch.default_generator.set_state(states[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[1])


def wide(vector: Tensor) -> torch.dtype:
    """The widest floating point type of a vector's device; MPS has no float64."""
    return torch.float32 if vector.device.type == "mps" else torch.float64


def spare(device: torch.device) -> int:
    """Bytes that one worker's data may take on a device: a quarter of the free memory, as others need some too."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 4
    if device.type == "mps":
        return (torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()) // 4
    return 0
