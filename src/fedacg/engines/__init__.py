"""Engines: where the local work is done, with the same result to the bit."""

from fedacg.engines.base import Answer, Engine, EngineSettings, Evaluation, Job, Task, one_thread
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine

__all__ = ["Answer", "Engine", "EngineSettings", "Evaluation", "Job", "Task", "one_thread", "start"]


def start(settings: EngineSettings) -> Engine:
    """The engine that was asked for, its workers under way."""
    return SerialEngine() if settings.name == "serial" else ProcessEngine(settings.workers)
