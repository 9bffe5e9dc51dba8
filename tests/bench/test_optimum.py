"""The figure of the quadratics: what it says of methods holds when they are run again, and follows from theory."""

import csv
import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def optimum(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("optimum")


def committed() -> dict[str, dict[str, str]]:
    with (ROOT / "docs" / "results" / "optimum.csv").open(encoding="utf-8", newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def test_averaging_ends_where_theory_says_and_not_at_the_optimum(optimum: ModuleType) -> None:
    """θ = Σ (1 − (1 − ηa)^K) c/Σ (1 − (1 − ηa)^K), to the last digits; the figure has the same number."""
    where = optimum.where_averaging_ends()
    assert where > 0.05
    assert optimum.end("fedavg", optimum.CLIENTS, 60) == pytest.approx(where, rel=1e-9)
    assert float(committed()["fedavg"]["everybody"]) == pytest.approx(where, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rounds", "reached"), [("scaffold", 100, 1e-6), ("feddyn", 60, 1e-6)])
def test_methods_with_variates_or_duals_reach_the_optimum_at_any_participation(
    optimum: ModuleType, method: str, rounds: int, reached: float
) -> None:
    everybody, some = (optimum.end(method, cohort, rounds) for cohort in (optimum.CLIENTS, optimum.COHORT))
    assert everybody < reached
    assert some < 1e-2
    row = committed()[method]
    assert max(float(row["everybody"]), float(row["3 of 8"])) < 1e-6


def test_what_needs_everybody_is_refused_with_three_of_eight(optimum: ModuleType) -> None:
    needs = [name for name, row in committed().items() if row["3 of 8"] == "refused"]
    assert sorted(needs) == ["fedcomgate", "fedgate", "fedpd"]
    for name in needs:
        assert optimum.end(name, optimum.COHORT, 1) is None


def test_the_figure_has_all_methods_that_make_sense_there(optimum: ModuleType) -> None:
    assert set(committed()) == set(optimum.candidates())
    assert (ROOT / "docs" / "results" / "optimum.png").stat().st_size > 10_000
