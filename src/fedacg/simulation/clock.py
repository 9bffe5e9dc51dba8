"""Seconds of a real federation: every client has a device and a link, and a round lasts as long as its answers.

    time of a visit = latency + bytes down / downlink + operations / speed + bytes up / uplink

Bytes and operations are seen in a rehearsal, not declared, so what a method adds to a client's work counts.
Devices are drawn once for each client, from a profile or from the lines of a trace, so times follow from (seed,
client) and are known before anybody trains: who is late need not be computed, and a finished run gives its seconds
under any profile.
"""

import csv
import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedacg.config.catalogue import PROFILES
from fedacg.config.participation import ClockSettings, split_trace
from fedacg.core.files import MOST_TEXT, read_whole
from fedacg.core.randomness import numpy_generator
from fedacg.errors import InputError, unknown
from fedacg.simulation.engine import Job
from fedacg.simulation.rehearsal import FEW, rehearse

CLOCK = "clock/seconds"
"""The figure with the seconds of a real federation that have passed by the end of a round."""


@dataclass(frozen=True)
class Device:
    """What a client trains on and how it is connected."""

    flops: float
    """Floating-point operations it does in a second of training."""
    down: float
    """Bytes per second to it."""
    up: float
    """Bytes per second from it."""
    latency: float
    """Seconds that every visit takes beside work and transfer."""


@dataclass(frozen=True)
class Profile:
    """Devices by chance: medians, and how far logarithms spread around them."""

    median: Device
    speed: float
    link: float

    def draw(self, seed: int, client: int) -> Device:
        """The device of a client."""
        speed, down, up = numpy_generator(seed, "device", client).standard_normal(3)
        return Device(
            self.median.flops * math.exp(self.speed * speed),
            self.median.down * math.exp(self.link * down),
            self.median.up * math.exp(self.link * up),
            self.median.latency,
        )


_MEGABIT = 1e6 / 8
_PROFILES: Mapping[str, Profile] = dict(
    zip(
        PROFILES,
        (
            Profile(Device(1e10, 20 * _MEGABIT, 5 * _MEGABIT, 0.1), speed=0.8, link=0.8),
            Profile(Device(5e12, 100 * _MEGABIT, 100 * _MEGABIT, 0.03), speed=0.4, link=0.3),
            Profile(Device(5e13, 1e4 * _MEGABIT, 1e4 * _MEGABIT, 0.001), speed=0.05, link=0.05),
        ),
        strict=True,
    )
)
"""Round figures to compare by, not measurements; who has measured gives a trace."""


class Trace:
    """Devices from the lines of a CSV file; a client has the line that names it, or else draws one."""

    def __init__(self, path: str, digest: str) -> None:
        self._drawn: list[Device] = []
        self._named: dict[int, Device] = {}
        try:
            content = read_whole(Path(path), MOST_TEXT)
            lines = list(csv.DictReader(content.decode().splitlines()))
        except (OSError, ValueError) as error:
            raise InputError(f"clock.profile = {path!r}: cannot be read: {error}") from None
        if digest not in ("", found := hashlib.sha256(content).hexdigest()):
            why = f"the trace was another when this experiment was described (sha256 {digest}, now {found})"
            raise InputError(f"clock.profile = {path!r}: {why}; give the path alone for a new experiment")
        for number, line in enumerate(lines, start=2):
            device = Device(*(_number(path, number, line, name) for name in ("flops", "down", "up", "latency")))
            if line.get("client"):
                self._named[int(_number(path, number, line, "client"))] = device
            else:
                self._drawn.append(device)
        if not lines:
            raise InputError(f"clock.profile = {path!r}: has no devices; its first line names the columns")
        self._path = path

    def draw(self, seed: int, client: int) -> Device:
        """The device of a client."""
        if client in self._named:
            return self._named[client]
        if not self._drawn:
            raise InputError(f"clock.profile = {self._path!r}: has no device for client {client}")
        return self._drawn[int(numpy_generator(seed, "device", client).integers(len(self._drawn)))]


def _number(path: str, line: int, values: Mapping[str, str | None], name: str) -> float:
    text = values.get(name)
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    least = name in ("latency", "client")
    if math.isnan(number) or number < 0 or (number == 0 and not least) or (least and math.isinf(number)):
        wanted = "a number of at least 0" if least else "a number above 0, or inf"
        raise InputError(f"clock.profile = {path!r}: line {line}: {name} is {text!r}, must be {wanted}")
    return number


def devices(profile: str) -> Profile | Trace:
    """The devices of a profile by its name, or of a trace by its path."""
    if trace := split_trace(profile):
        return Trace(*trace)
    if profile not in _PROFILES:
        raise unknown("clock profile", profile, (*PROFILES, "a file.csv"))
    return _PROFILES[profile]


class Clock:
    """The times of a job's clients under a profile; without one, everything happens at once."""

    def __init__(self, settings: ClockSettings, job: Job, seed: int) -> None:
        self.settings, self._job, self._seed = settings, job, seed
        self._devices = devices(settings.profile) if settings.profile else None

    def planned(self, client: int) -> int:
        """K, the local steps of a client that does not straggle."""
        return self._job.local.steps_for(self._job.data.clients.size(client))

    def seconds(self, client: int, steps: int) -> float:
        """The duration of a client's visit with this many local steps."""
        if self._devices is None:
            return 0.0
        job, device = self._job, self._devices.draw(self._seed, client)
        size, batch = job.data.clients.size(client), job.local.batch
        epochs, rest = divmod(steps, -(-size // batch))
        seen = epochs * size + min(rest * batch, size)
        return (
            device.latency
            + job.traffic.bytes_down / device.down
            + self.operations * seen / device.flops
            + job.traffic.bytes_up / device.up
        )

    @cached_property
    def operations(self) -> float:
        """Floating-point operations of one example in one local step, seen in a rehearsal."""
        with warnings.catch_warnings(), FlopCounterMode(display=False) as counter:
            warnings.simplefilter("ignore", UserWarning)
            with torch.backends.mkldnn.flags(enabled=False):  # whose recurrent layers would not be counted
                rehearse(self._job)
        return float(counter.get_total_flops()) / FEW

    def close(self, times: Mapping[int, float], asked: int, wanted: int) -> tuple[Sequence[int], float]:
        """Whose answers are taken, in ascending order, and how long the round lasts.

        `times` are those of the clients that will answer, of `asked` in all; the first `wanted` are taken. A
        server with a deadline waits until then for what does not come.
        """
        deadline = self.settings.deadline or math.inf
        order = sorted((seconds, client) for client, seconds in times.items() if seconds <= deadline)[:wanted]
        if len(order) < min(wanted, asked) and self.settings.deadline:
            return sorted(client for _, client in order), deadline
        return sorted(client for _, client in order), order[-1][0] if order else 0.0
