"""Where a worker computes: the CPU, or an accelerator that several workers may share.

The server's vectors, messages and all random draws stay on the CPU, so that a device changes the rounding and
nothing else. What is moved there, and when, is the worker's matter.
"""

from typing import Literal

import torch
from torch import Tensor

Device = Literal["cpu", "cuda", "mps"]


def count(name: Device) -> int:
    """How many devices of a kind this machine has."""
    if name == "cuda":
        return torch.cuda.device_count()
    return int(name == "cpu" or torch.backends.mps.is_available())


def place(name: Device, number: int) -> torch.device:
    """The device of the worker with this number: workers use the devices of a kind in turn."""
    return torch.device(name, number % count(name)) if name == "cuda" else torch.device(name)


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
