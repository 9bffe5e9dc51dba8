"""Which methods find the common optimum of clients that disagree, and which stall, on quadratics.

    python benchmarks/optimum.py [--rounds 300] [--out docs/results/optimum.csv] [METHOD …]

Client i's loss is ½ Σ_k a_ik (w_k − c_ik)², with curvatures a_ik from 0.25 to 2 and centres c_ik of its own, in
five dimensions; the optimum of the mean loss is θ*_k = Σ_i a_ik c_ik/Σ_i a_ik. Eight clients take K = 10 exact
gradient steps of η = 0.1, all of them per round or three. Shown is ‖θ − θ*‖ after the last round, the mean of the
last ten, relative to its value at the start. K steps take client i from θ to c_i + (1 − ηa_i)^K (θ − c_i), so that
averaging with everybody ends where Σ_i (1 − (1 − ηa_ik)^K)(c_ik − θ_k) = 0, beside the optimum.

With --out every row is written as soon as it is known; the same command continues after the last one. `make
figures` draws them: the dotted line is where averaging ends.

Methods that use features or class probabilities do not apply here and are skipped.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import rows as table
from fedacg import methods
from fedacg.config.experiment import Experiment
from fedacg.data.examples import FederatedData
from fedacg.data.own_data import from_pairs
from fedacg.engines import one_thread
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError
from fedacg.methods.rules import released
from fedacg.runs.build import Ingredients, plan
from fedacg.runs.client_states import ClientStates

CLIENTS, COHORT, DIMENSIONS, STEPS, RATE = 8, 3, 5, 10, 0.1
OF_CLASSES = {"fedsol", "fedgmt"}
"""Methods that take a model's outputs for logits."""
OPTIONS = {
    "feddyn": {"alpha": 1.0},
    "fedpd": {"mu": 1.0},
    "fedsmoo": {"alpha": 1.0},
    "feddc": {"alpha": 0.1},
    "fedpa": {"warmup": 0.0},
}
"""Options of the order of the curvature, for methods whose defaults are meant for networks."""
COLUMNS = ("method", "everybody", f"{COHORT} of {CLIENTS}")
REFUSED = "refused"
LEAST = 1e-8
"""Distances below it are drawn there."""


class Bowl(nn.Module):
    """A model that is nothing but its parameters; an example is (c, √a)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(DIMENSIONS, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, DIMENSIONS:] * (self.w - x[:, :DIMENSIONS])


def half_square(outputs: Tensor, _: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(dim=1).mean()


def problem() -> tuple[FederatedData, Tensor]:
    """The clients and the optimum of their mean loss."""
    source = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(CLIENTS, DIMENSIONS, generator=source, dtype=torch.float64) + 3
    curvatures = 0.25 + 1.75 * torch.rand(CLIENTS, DIMENSIONS, generator=source, dtype=torch.float64)
    x = torch.cat([centres, curvatures.sqrt()], dim=1)
    nothing = torch.zeros(1, dtype=torch.float64)
    pairs = [(row.unsqueeze(0), nothing) for row in x]
    return from_pairs(pairs, pairs[0]), (curvatures * centres).sum(dim=0) / curvatures.sum(dim=0)


def where_averaging_ends() -> float:
    """The distance of FedAvg's limit with everybody from the optimum, of that at the start."""
    data, optimum = problem()
    x = torch.cat([data.clients[client].fetch(torch.arange(1))[0] for client in range(CLIENTS)])
    centres, curvatures = x[:, :DIMENSIONS], x[:, DIMENSIONS:] ** 2
    reach = 1 - (1 - RATE * curvatures) ** STEPS
    limit = (reach * centres).sum(dim=0) / reach.sum(dim=0)
    return float((limit - optimum).norm() / optimum.norm())


def candidates() -> list[str]:
    """The methods of the catalogue that make sense here."""
    names = []
    for name in (*methods.METHODS, "fedavg+acg"):
        try:
            method = methods.build(name, OPTIONS.get(name)).with_loss(half_square)
        except InputError:
            continue  # it has its own loss on classes
        if "stages" not in method.needs and name not in OF_CLASSES:
            names.append(name)
    return names


def distances(name: str, cohort: int, rounds: int) -> Iterator[float]:
    """‖θ − θ*‖/‖θ_0 − θ*‖ after every round."""
    data, optimum = problem()
    method = methods.build(name, OPTIONS.get(name)).with_loss(half_square)
    experiment = Experiment.parse(
        {
            "name": "optimum",
            "rounds": rounds,
            "data": {"name": "python", "clients": CLIENTS, "split": "natural"},
            "model": {"name": "python:Bowl"},
            "method": {"name": name, **OPTIONS.get(name, {})},
            "cohort": {"size": cohort, "weights": "uniform"},
            "local": {"steps": STEPS, "lr": RATE, "lr_decay": 1.0, "batch": 10},
            "evaluate": {"every": rounds},
            "engine": {"name": "serial"},
        }
    )
    with TemporaryDirectory() as folder:
        federation = plan(experiment, Ingredients(Bowl(), False, data, method)).federation(
            SerialEngine(), ClientStates(Path(folder)), []
        )
        for _ in federation.run():
            yield float((released(federation.server.vectors) - optimum).norm() / optimum.norm())


def end(name: str, cohort: int, rounds: int) -> float | None:
    """The mean of the last ten; None where the method is refused at this participation."""
    try:
        last = list(distances(name, cohort, rounds))[-10:]
    except InputError:
        return None
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    rows = table.read(arguments.out)
    with one_thread():
        for name in arguments.methods or candidates():
            if name not in rows:
                ends = (written(end(name, cohort, arguments.rounds)) for cohort in (CLIENTS, COHORT))
                rows[name] = dict(zip(COLUMNS, (name, *ends), strict=True))
                table.save(arguments.out, COLUMNS, in_order(rows))
            method, full, part = rows[name].values()
            print(f"{method:<12}{full:>12}{part:>12}", flush=True)


def in_order(rows: dict[str, table.Row]) -> list[table.Row]:
    """Sorted by the distance with full participation."""
    return sorted(rows.values(), key=lambda row: (float(row[COLUMNS[1]]), row[COLUMNS[0]]))


def written(value: float | None) -> str:
    return REFUSED if value is None else f"{value:.1e}"


if __name__ == "__main__":
    main()
