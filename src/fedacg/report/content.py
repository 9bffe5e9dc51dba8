"""What a report is made of: runs, grouped, measured and put in words. `write` and a live page start from this."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedacg.config.experiment import show
from fedacg.errors import InputError
from fedacg.report.cells import Column, columns_of
from fedacg.report.runs import Group, Run, cautions, targets_of
from fedacg.report.series import Curve, curves_of
from fedacg.report.table import Row, rows_of


@dataclass(frozen=True)
class Material:
    """Groups of runs with all that is said about them."""

    groups: tuple[Group, ...]
    targets: tuple[float, ...]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    curves: tuple[Curve, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]


def checked(targets: Sequence[float]) -> list[float]:
    """Targets in their order, each once; refused unless they are fractions."""
    for target in targets:
        if not 0 < target <= 1:
            raise InputError(f"target {target:g}: a target is a fraction above 0 and up to 1, such as 0.9")
    return sorted(set(targets))


def gather(groups: Sequence[Group], targets: Sequence[float] | None) -> Material:
    """Measure the groups; without targets, by those that the experiments name."""
    runs = [run for group in groups for run in group.runs]
    goals = checked(targets_of(runs) if targets is None else targets)
    rows = rows_of(groups, goals)
    several_data_sets = len({show(run.settings.get("data.name")) for run in runs}) > 1
    return Material(
        groups=tuple(groups),
        targets=tuple(goals),
        notes=(*cautions(groups), *(note for run in runs for note in run.notes)),
        rows=tuple(rows),
        columns=tuple(columns_of(rows, goals, ranked=not several_data_sets)),
        curves=tuple(curves_of(groups)),
    )
