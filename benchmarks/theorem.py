"""Theorem 1 in numbers: how fast the gradient at the lookahead point falls, beside the bound's leading term.

    python benchmarks/theorem.py [--rounds 3000] [--seeds 3] [--out docs/results/theorem-1.csv]

F_i(w) = ½‖w − c_i‖² in ten dimensions has L = 1 and B² = 1. Twenty clients, five of them per round, K = 4 steps
at the theorem's largest step size η = (1−λ)²/(64KL(B²+1)). Written is min_{t≤T} of the mean over the seeds of
‖∇F(θ_t + λm_t)‖², relative to its first value, at some two hundred T; `make figures` draws it
beside the slope 1/√T that the bound promises.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import rows
from fedacg import methods
from fedacg.config.experiment import Experiment
from fedacg.data.own_data import from_pairs
from fedacg.engines import one_thread
from fedacg.engines.serial import SerialEngine
from fedacg.runs.build import Ingredients, plan
from fedacg.runs.client_states import ClientStates

CLIENTS, COHORT, DIMENSIONS, STEPS = 20, 5, 10, 4
START = 20.0


class Point(nn.Module):
    """A model that is nothing but its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((DIMENSIONS,), START, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


def half_square(outputs: Tensor, _: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(dim=1).mean()


def gradients(lam: float, rounds: int, seed: int) -> Tensor:
    """‖∇F(θ_t + λm_t)‖² after every round."""
    centres = torch.randn(CLIENTS, DIMENSIONS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    clients = [(centre.unsqueeze(0), torch.zeros(1, dtype=torch.float64)) for centre in centres]
    experiment = Experiment.parse(
        {
            "seed": seed,
            "rounds": rounds,
            "cohort": {"size": COHORT},
            "local": {"steps": STEPS, "lr": (1 - lam) ** 2 / (64 * STEPS * 2)},
            "evaluate": {"every": rounds},
        }
    )
    method = methods.build("fedacg", {"lam": lam}).with_loss(half_square)
    ingredients = Ingredients(Point(), False, from_pairs(clients, clients[0]), method)
    found = torch.empty(rounds, dtype=torch.float64)
    with TemporaryDirectory() as folder:
        memory = ClientStates(Path(folder))
        federation = plan(experiment, ingredients).federation(SerialEngine(), memory, [])
        for metrics in federation.run():
            state = federation.server.vectors
            phi = state["theta"] + lam * state["m"]
            found[metrics.round - 1] = (phi - centres.mean(dim=0)).square().sum()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/results/theorem-1.csv"))
    arguments = parser.parse_args()
    shown = sorted({round(arguments.rounds ** (step / 200)) for step in range(201)})
    table: dict[int, rows.Row] = {number: {"round": str(number)} for number in shown}
    print(f"{'λ':>5}{'from T':>8}{'to T':>8}{'exponent of T':>15}")
    for lam in (0.0, 0.5, 0.85):
        with one_thread():
            mean = torch.stack([gradients(lam, arguments.rounds, s) for s in range(arguments.seeds)]).mean(dim=0)
        least = mean.cummin(dim=0).values / mean[0]
        for number, row in table.items():
            row[f"{lam:g}"] = f"{least[number - 1]:.6g}"
        early = 200
        exponent = float(torch.log2(least[2 * early - 1] / least[early - 1]))
        print(f"{lam:>5g}{early:>8}{2 * early:>8}{exponent:>15.2f}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows.save(arguments.out, list(table[1]), table.values())
    print(arguments.out)


if __name__ == "__main__":
    main()
