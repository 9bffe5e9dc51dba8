"""Run folders that are made up, as `store` leaves them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedacg.simulation.metrics import RoundMetrics


def fake_run(
    folder: Path,
    accuracies: Sequence[float | None],
    method: str = "fedavg",
    seed: int = 0,
    options: dict[str, Any] | None = None,
    data: str = "digits",
    alpha: float = 0.3,
    sent: int = 1000,
    finished: bool = True,
    targets: str = "[0.9]",
    cohort: Sequence[int] = (1, 2),
) -> Path:
    """A run folder with one accuracy (or None) a round; the test loss is 1 − accuracy, the training loss 1."""
    folder.mkdir(parents=True)
    lines = [f'name = "demo"\nseed = {seed}\nrounds = {len(accuracies) if finished else 100}']
    lines += [f"[data]\nname = {json.dumps(data)}\nalpha = {alpha}"]
    lines += [f"[method]\nname = {json.dumps(method)}"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in (options or {}).items()]
    lines += [f"[evaluate]\nevery = 1\ntargets = {targets}"]
    (folder / "experiment.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "metrics.jsonl").touch()
    for number, accuracy in enumerate(accuracies, start=1):
        add_round(folder, number, accuracy, sent=sent, cohort=tuple(cohort))
    if finished:
        (folder / "summary.json").write_text(json.dumps({"vector_sha256": "0123456789abcdef" * 4}))
    return folder


def add_round(folder: Path, number: int, accuracy: float | None, sent: int = 1000, **others: Any) -> None:
    """A line more in a run's metrics, with what else it says of the round."""
    loss = None if accuracy is None else 1 - accuracy
    said = {"cohort": (1, 2), "train_loss": 1.0, "test_loss": loss} | others
    metrics = RoundMetrics(
        number,
        0.1,
        examples=20,
        bytes_down=sent,
        bytes_up=sent,
        seconds_train=0.5,
        seconds_aggregate=0.25,
        seconds_evaluate=0.25,
        test_accuracy=accuracy,
        **said,
    )
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{metrics.to_json()}\n")
