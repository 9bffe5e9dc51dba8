"""Engines: where the local work is done, with the same result to the bit."""

import os

from fedacg.config.sections import EngineSettings
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError
from fedacg.simulation.engine import Answer, Engine, Job, Task, check_device, one_thread
from fedacg.simulation.scoring import Evaluation

__all__ = ["Answer", "Engine", "Evaluation", "Job", "Task", "one_thread", "start"]


def start(settings: EngineSettings) -> Engine:
    """The requested engine, with its workers starting."""
    if settings.name == "ray":
        return _ray_engine(settings)
    check_device(settings.device)
    if settings.name == "serial":
        return SerialEngine()
    return ProcessEngine(settings.workers or _cores())


def _ray_engine(settings: EngineSettings) -> Engine:
    """The Ray engine. Ray is imported only here: it is an extra of the package, and large."""
    try:
        from fedacg.engines.ray.engine import RayEngine
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError("engine.name = 'ray': Ray is not installed; pip install 'fedacg[ray]'") from None
    return RayEngine(settings.workers, _cores(), settings.address, settings.device)


def _cores() -> int:
    """The number of cores this process may use; not every system reports it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
