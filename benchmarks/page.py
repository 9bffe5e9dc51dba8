"""The size of the report's page and the time it takes to open, for 20 made-up runs of 1000 rounds.

Opens it in headless Chromium if that and its driver are installed, each time in a new browser.
"""

import argparse
import math
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from fedacg.report import write
from fedacg.simulation.metrics import RoundMetrics

CLIENTS, COHORT = 500, 10
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
DRAWN = """
const done = arguments[0];
const painted = () => done([performance.now(), document.querySelectorAll(".plot .line").length]);
requestAnimationFrame(() => requestAnimationFrame(painted));
"""


def make_run(folder: Path, method: str, seed: int, rounds: int) -> None:
    """A run folder with a learning curve of its own; every seed has other cohorts."""
    rng = np.random.default_rng([seed, *method.encode()])
    cohorts = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(
        f'name = "made-up"\nseed = {seed}\nrounds = {rounds}\n[data]\nname = "digits"\nclients = {CLIENTS}\n'
        f'[method]\nname = "{method}"\n[evaluate]\ntargets = [0.7]\n'
    )
    lines = []
    for round in range(1, rounds + 1):
        accuracy = float(np.clip(0.85 * (1 - math.exp(-round / 200)) + 0.02 * rng.standard_normal(), 0, 1))
        cohort = tuple(sorted(cohorts.choice(CLIENTS, COHORT, replace=False).tolist()))
        loss = 2.3 * (1 - accuracy)
        measured = (1000, loss, 10**6, 10**6, 0.5, 0.01, 0.1, accuracy, loss)
        lines.append(RoundMetrics(round, 0.1, cohort, *measured).to_json() + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "summary.json").write_text("{}")


def opened(page: Path, profile: Path) -> tuple[float, int]:
    """Seconds from the start of loading until the curves are painted, and how many there are."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(page.as_uri())
        milliseconds, curves = driver.execute_async_script(DRAWN)
        return milliseconds / 1000, curves
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--methods", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for method in range(arguments.methods):
            for seed in range(arguments.seeds):
                make_run(scratch / "runs" / f"{method:03d}-s{seed}", f"method-{method}", seed, arguments.rounds)
        started = time.perf_counter()
        write([scratch / "runs"], scratch / "out")
        written = time.perf_counter() - started
        page = scratch / "out" / "index.html"
        print(f"{arguments.methods * arguments.seeds} runs of {arguments.rounds} rounds")
        print(f"report written in {written:.1f} s, page {page.stat().st_size / 1e6:.2f} MB")
        times = []
        for turn in range(arguments.turns):
            seconds, curves = opened(page, scratch / f"profile-{turn}")
            times.append(seconds)
        print(
            f"{curves} curves painted after {statistics.median(times):.2f} s, the slowest time {max(times):.2f} s"
        )


if __name__ == "__main__":
    main()
