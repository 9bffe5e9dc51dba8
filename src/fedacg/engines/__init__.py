"""Engines: where the local work is done, with the same result to the bit."""

import os

from fedacg.engines.base import Answer, Engine, EngineSettings, Evaluation, Job, Task, one_thread
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine

__all__ = ["Answer", "Engine", "EngineSettings", "Evaluation", "Job", "Task", "one_thread", "start"]


def start(settings: EngineSettings) -> Engine:
    """The engine that was asked for, its workers under way."""
    if settings.name == "serial":
        return SerialEngine()
    return ProcessEngine(settings.workers or _cores())


def _cores() -> int:
    """The cores this process may use; not every system can tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
