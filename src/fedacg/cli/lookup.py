"""`fedacg methods`, `fedacg privacy` and `fedacg recipes`: questions that no run is needed for, and no torch."""

import inspect
import shutil
from enum import StrEnum
from textwrap import fill, indent
from typing import Annotated

import typer

from fedacg.cli import completion
from fedacg.config.methods import BASELINES, GROUPS, MODIFIERS, Entry, Modifier, parse
from fedacg.config.recipe import find, recipe_names
from fedacg.core.accounting import Banded, Gaussian, Mechanism, least_noise, most_releases, square_root
from fedacg.errors import InputError

# Methods


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show this one in full: a method, +part, or method+part.", autocompletion=completion.method
        ),
    ] = None,
    equations: Annotated[
        bool, typer.Option("--equations", "-e", help="A line for each, with its equations in short.")
    ] = False,
) -> None:
    """List the methods and the parts that can be added to them, or show one in full."""
    width = shutil.get_terminal_size((80, 24)).columns
    typer.echo(_whole(name) if name is not None else _equations(width) if equations else _names(width))


def _groups() -> dict[str, dict[str, str]]:
    """Names and equations, grouped by what they change."""
    found = {group: {entry.name: entry.equation for entry in entries} for group, entries in GROUPS.items()}
    found |= {_PARTS: {f"+{part.name}": part.equation for part in MODIFIERS.values()}}
    return found | {_BASELINES: {each.name: each.equation for each in BASELINES.values()}}


_PARTS = "Parts to add, as in fedprox+acg"
_BASELINES = "Baselines to compare with"


def _names(width: int) -> str:
    """All methods and parts on one screen."""
    lines = []
    for group, members in _groups().items():
        lines += [group, fill(" ".join(members), width, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join([*lines, "", "With equations: fedacg methods --equations. One in full: fedacg methods NAME"])


def _equations(width: int) -> str:
    """A line for each."""
    wide = max(len(name) for members in _groups().values() for name in members)
    lines = []
    for group, members in _groups().items():
        lines += [group, ""]
        lines += [f"{name:{wide}}  {_short(equation, width - wide - 2)}" for name, equation in members.items()]
        lines += [""]
    return "\n".join([*lines, "One in full: fedacg methods NAME"])


def _short(equation: str, width: int) -> str:
    """An equation cut to the width."""
    return equation if len(equation) <= width else equation[: width - 2].rstrip(" ;") + " …"


def _whole(name: str) -> str:
    """Everything about a method or part; a rehearsal finds what it sends and keeps."""
    if name.startswith("+"):
        return "\n".join(_owner(part) for part in parse(f"fedavg{name}").modifiers)
    composition = parse(name)
    from fedacg.methods import build
    from fedacg.methods.method import NEEDS
    from fedacg.runs.build import traffic_of

    method, traffic = build(name), traffic_of(name)
    lines = [f"{_owner(owner)}\n" for owner in composition.owners]
    sent = f"{traffic.down:.3g} model-sized vectors down and {traffic.up:.3g} up, per client and round"
    lines += [
        f"made of   {method.summary}",
        f"sent      {'nothing' if method.rule.silent else sent}",
        f"kept      {traffic.kept:.3g} model-sized vectors by every client between its visits",
    ]
    lines += [f"needs     {NEEDS[need]}" for need in sorted(method.needs)]
    if method.rule.first_exchange:
        lines.append("needs     two exchanges per round: clients first send the full gradient of their loss")
    lines += ["", f"fedacg run quickstart --method {name}"]
    lines += [
        f"fedacg run quickstart --method {name}:{option}={spec.default:g}"
        for option, spec in list(composition.options().items())[:1]
    ]
    return "\n".join(lines)


def _owner(owner: Entry | Modifier) -> str:
    """A method or part by itself: title, equations, options and reference."""
    from fedacg.methods.catalogue import function_of

    function = function_of(owner.build if isinstance(owner, Entry) else owner.apply)
    title = f"{owner.title} ({owner.group.lower()})" if isinstance(owner, Entry) and owner.group else owner.title
    equations = inspect.getdoc(inspect.getmodule(function)) or owner.equation
    lines = [f"{'' if isinstance(owner, Entry) else '+'}{owner.name}: {title}", "", indent(equations, "    "), ""]
    for option, spec in owner.options.items():
        tried = f", tuned over {', '.join(f'{value:g}' for value in spec.search)}" if spec.search else ""
        lines.append(f"option    {option} = {spec.default:g}, in {spec}{tried}")
    if owner.reference:
        lines.append(f"from      {owner.reference}{', ' + owner.link if owner.link else ''}")
    return "\n".join(lines)


# Privacy


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


def recipes() -> None:
    """List the experiments that come with the package."""
    for name in recipe_names():
        tree = find(name)
        typer.echo(f"{name:36}{tree.get('rounds')} rounds of {tree['model']['name']} on {tree['data']['name']}")
