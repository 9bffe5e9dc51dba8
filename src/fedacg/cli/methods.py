"""`fedacg methods`: list the methods and parts, or show one in full."""

import inspect
import shutil
from textwrap import fill, indent
from typing import Annotated

import typer

from fedacg.cli import completion
from fedacg.config.methods import BASELINES, GROUPS, MODIFIERS, Entry, Modifier, parse


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
