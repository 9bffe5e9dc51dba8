"""`fedacg privacy`: from two of ε, noise and rounds, compute the third. Needs no torch."""

from enum import StrEnum
from typing import Annotated

import typer

from fedacg.core.accounting import Banded, Gaussian, Mechanism, least_noise, most_releases, square_root
from fedacg.errors import InputError


class Kind(StrEnum):
    """The parts of a method that add noise."""

    dp = "dp"
    dpftrl = "dpftrl"
    local = "local-dp"


def privacy(
    epsilon: Annotated[float | None, typer.Option("--epsilon", "-e", help="ε, the privacy spent.")] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", "-z", help="z, the noise in multiples of the clip.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", "-r", help="Rounds; with local-dp, visits of one client.")
    ] = None,
    clients: Annotated[int | None, typer.Option("--clients", "-n", help="N, the number of clients.")] = None,
    cohort: Annotated[
        int | None, typer.Option("--cohort", "-m", help="M, the mean number of clients per round, drawn by coins.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", "-d", help="δ; well below one in N.")] = 1e-5,
    kind: Annotated[
        Kind, typer.Option("--kind", "-k", help="The part of the method that adds the noise.")
    ] = Kind.dp,
    bands: Annotated[
        int, typer.Option("--bands", "-b", help="With dpftrl, rounds between two visits of a client.")
    ] = 8,
) -> None:
    """Compute the third of ε, noise and rounds; without a cohort, no amplification by sampling is counted."""
    rate = _rate(kind, clients, cohort)
    _check(epsilon, noise, rounds, delta, bands)
    tight = "PLD" if rate < 1 else "the Gaussian's own curve"

    def make(z: float) -> Mechanism:
        if kind is Kind.dpftrl:
            return Banded(z, square_root(bands))
        return Gaussian(z / 2) if kind is Kind.local else Gaussian(z, rate)

    if noise is None:
        assert epsilon is not None
        assert rounds is not None
        noise = least_noise(make, rounds, epsilon, delta)
    elif rounds is None:
        assert epsilon is not None
        rounds = most_releases(make(noise), epsilon, delta)
    mechanism = make(noise)
    typer.echo(f"noise     z = {noise:g} times the clip")
    typer.echo(f"rounds    {rounds}")
    if rounds:
        typer.echo(f"epsilon   {mechanism.epsilon(rounds, delta):.4f} by {tight}, at δ = {delta:g}")
        if isinstance(mechanism, Gaussian):
            typer.echo(f"          {mechanism.epsilon_rdp(rounds, delta):.4f} by RDP")
    else:
        typer.echo(f"epsilon   the first round alone costs {mechanism.epsilon(1, delta):.4f}, at δ = {delta:g}")
    typer.echo(f"cohorts   {_said(kind, rate, bands)}")
    if clients and delta >= 1 / clients:
        typer.echo(f"warning   δ = {delta:g} is at least 1/{clients}: it allows exposing one client entirely")


def _said(kind: Kind, rate: float, bands: int) -> str:
    if kind is Kind.dpftrl:
        return f"a client is asked at most once in {bands} rounds (cohort.draw = 'spaced', cohort.gap = {bands})"
    if kind is Kind.local:
        return "no amplification: every visit of a client counts"
    if rate < 1:
        return f"by coins of probability {rate:g} (cohort.draw = 'coin')"
    return "no amplification is claimed"


def _rate(kind: Kind, clients: int | None, cohort: int | None) -> float:
    if cohort is None:
        return 1.0
    if kind is not Kind.dp:
        raise InputError(f"--cohort {cohort}: sampling does not amplify privacy with {kind.value}; leave it out")
    if clients is None:
        raise InputError(f"--cohort {cohort}: needs --clients as well")
    if not 1 <= cohort <= clients:
        raise InputError(f"--cohort {cohort}: must be from 1 to the {clients} clients")
    return cohort / clients


def _check(epsilon: float | None, noise: float | None, rounds: int | None, delta: float, bands: int) -> None:
    if sum(value is not None for value in (epsilon, noise, rounds)) != 2:
        raise InputError("--epsilon, --noise, --rounds: give exactly two; the third is computed")
    for name, value in (("epsilon", epsilon), ("noise", noise)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"--{name} {value:g}: must be above 0")
    for name, count in (("rounds", rounds), ("bands", bands)):
        if count is not None and count < 1:
            raise InputError(f"--{name} {count}: must be at least 1")
    if not 0 < delta < 1:
        raise InputError(f"--delta {delta:g}: must be between 0 and 1")
