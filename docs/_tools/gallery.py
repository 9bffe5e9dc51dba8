"""The pages of the methods gallery: one for each method, part and baseline, made from the catalogue.

Equations, options, traffic and needs are those that `fedacg methods NAME` shows. The pictures are drawn from the
curves that are committed in docs/results, with FedAvg and FedACG beside the method.
"""

import csv
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fedacg.config.methods import BASELINES, GROUPS, METHODS, MODIFIERS, Entry, Modifier
from fedacg.methods import build
from fedacg.methods.catalogue import function_of
from fedacg.methods.method import NEEDS
from fedacg.report.style import PALETTE, of_method
from fedacg.runs.build import traffic_of

RESULTS = Path(__file__).parents[1] / "results"
OVERVIEW = "methods.md"
NOISY = ("dp", "dpftrl", "local-dp")
"""Parts whose effect depends on the cohort more than on anything else."""


@dataclass(frozen=True)
class Setting:
    """Runs that several methods were compared in."""

    folder: str
    title: str
    words: str
    beside: tuple[str, ...] = ("fedavg", "fedacg")


SETTINGS = (
    Setting(
        "all-methods-digits",
        "Digits",
        "5 of 50 clients per round, default options, mean of three seeds",
    ),
    Setting(
        "all-parts-digits",
        "Digits",
        "the part added to FedAvg; 5 of 50 clients per round, default options, mean of three seeds",
    ),
    Setting(
        "full-participation-digits",
        "Digits, everybody in every round",
        "ten clients, default options, mean of three seeds",
        ("fedavg", "feddyn"),
    ),
    Setting(
        "all-methods-cifar10",
        "CIFAR-10",
        "5 of 100 clients per round, default options, one seed: a first look, not a ranking",
    ),
)


@dataclass(frozen=True)
class Line:
    """The moving average of the test accuracy over rounds, in percent."""

    rounds: tuple[int, ...]
    average: tuple[float, ...]


def nav() -> list[object]:
    """The gallery's part of the navigation."""
    groups: list[object] = [{"Overview": OVERVIEW}]
    for group, entries in GROUPS.items():
        groups.append({group: [{entry.title: _uri(entry)} for entry in entries]})
    groups.append({"Parts": [{f"+{part.name}": _uri(part)} for part in MODIFIERS.values()]})
    groups.append({"Baselines": [{entry.title: _uri(entry)} for entry in BASELINES.values()]})
    return groups


def pages() -> dict[str, str]:
    """The Markdown of every page of the gallery, by its address."""
    found = {setting.folder: _read(RESULTS / setting.folder / "curves.csv") for setting in SETTINGS}
    owners = [*METHODS.values(), *BASELINES.values(), *MODIFIERS.values()]
    return {_uri(owner): "\n".join(_page(owner, found)) for owner in owners}


def linked(overview: str) -> str:
    """The overview, with every method and part of its tables leading to its page."""
    for owner in [*METHODS.values(), *BASELINES.values(), *MODIFIERS.values()]:
        name = f"`{'' if isinstance(owner, Entry) else '+'}{owner.name}`"
        overview = overview.replace(f"\n| {name} |", f"\n| [{name}]({_uri(owner)}) |")
    return overview


def _uri(owner: Entry | Modifier) -> str:
    return f"methods/{owner.name}.md" if isinstance(owner, Entry) else f"methods/parts/{owner.name}.md"


def _read(path: Path) -> dict[str, Line]:
    """The curves of a setting by method; nothing where none were kept."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        method: Line(
            tuple(int(row["round"]) for row in rows if row["method"] == method),
            tuple(float(row["average"]) for row in rows if row["method"] == method),
        )
        for method in dict.fromkeys(row["method"] for row in rows)
    }


def _page(owner: Entry | Modifier, found: Mapping[str, Mapping[str, Line]]) -> Iterator[str]:
    part = isinstance(owner, Modifier)
    name = f"fedavg+{owner.name}" if part else owner.name
    yield f"# {'+' + owner.name + ': ' + owner.title if part else owner.title}\n"
    link = f"[{owner.reference}]({owner.link})" if owner.link else owner.reference
    said = f"`{'+' if part else ''}{owner.name}`"
    group = "a part to add to a method" if part else owner.group.lower() if owner.group else ""
    yield " · ".join(each for each in (said, group, link) if each) + "\n"
    yield f"    {owner.equation}\n"
    yield from _pictures(name, owner, found)
    function = function_of(owner.apply if isinstance(owner, Modifier) else owner.build)
    equations = inspect.getdoc(inspect.getmodule(function)) or owner.equation
    yield "## Equations in full\n"
    yield f"{equations}\n"
    yield from _options(owner)
    yield from _costs(name)
    yield "## Run it\n"
    command = f"fedacg run quickstart --method {name}"
    options = [f"{option}={spec.default:g}" for option, spec in list(owner.options.items())[:1]]
    typed = [command, *(f"{command}:{option}" for option in options)]
    yield "```bash\n" + "\n".join(typed) + "\n```\n"
    beside = "" if owner.name in ("fedavg", "fedacg") and not part else f"fedavg,fedacg,{name}"
    if beside:
        yield f"Beside others: `fedacg compare quickstart --methods {beside}`.\n"
    yield f"The same as text: `fedacg methods {'+' if part else ''}{owner.name}`.\n"


def _options(owner: Entry | Modifier) -> Iterator[str]:
    if not owner.options:
        return
    yield "## Options\n"
    yield "| option | default | allowed | tuning tries |\n| --- | ---: | --- | --- |"
    for option, spec in owner.options.items():
        tried = ", ".join(f"{value:g}" for value in spec.search)
        yield f"| `{option}` | {spec.default:g} | {spec} | {tried} |"
    yield ""


def _costs(name: str) -> Iterator[str]:
    method, traffic = build(name), traffic_of(name)
    yield "## What it costs and needs\n"
    if method.rule.silent:
        yield "- Sends nothing."
    else:
        yield f"- Sends {traffic.down:.3g} model-sized vectors down and {traffic.up:.3g} up, per client and round."
    yield f"- Every client keeps {traffic.kept:.3g} model-sized vectors between its visits."
    yield from (f"- Needs {NEEDS[need]}." for need in sorted(method.needs))
    if method.rule.first_exchange:
        yield "- Needs two exchanges per round: clients first send the full gradient of their loss."
    yield f"- Made of {method.summary}.\n"


def _pictures(name: str, owner: Entry | Modifier, found: Mapping[str, Mapping[str, Line]]) -> Iterator[str]:
    """A picture for each setting in which the method was run; a finding first."""
    drawn = []
    for setting in SETTINGS:
        lines = (
            {**found[SETTINGS[0].folder], **found[setting.folder]}
            if "parts" in setting.folder
            else found[setting.folder]
        )
        if name in found[setting.folder] and set(setting.beside) <= set(lines):
            drawn.append(_picture(setting, name, {each: lines[each] for each in (*setting.beside, name)}))
    if drawn:
        yield "## Effect\n"
        yield '<div class="effects" markdown="0">\n' + "\n".join(drawn) + "\n</div>\n"
        up = "../" * (1 + isinstance(owner, Modifier))
        table = f"{up}results/README.md#all-methods-on-the-digits-and-on-cifar-10"
        yield (
            f"Defaults, not tuned for this problem; [Results]({table}) has the table, the commands, and why some "
            "methods are below FedAvg.\n"
        )
    if owner.name in NOISY:
        yield "The noise hides one client among thousands. Five clients per round are far too few for it.\n"


WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 460, 250, 34, 136, 14, 30
CALM = 2
"""The colour of methods whose own is the grey of those that are drawn beside them."""


def _picture(setting: Setting, name: str, lines: Mapping[str, Line]) -> str:
    """An inline SVG, which follows the palette of the page: the method in its colour, the others in grey."""
    lines = {**{each: line for each, line in lines.items() if each != name}, name: lines[name]}
    last = max(line.rounds[-1] for line in lines.values())
    low = min(min(line.average) for line in lines.values())
    high = max(max(line.average) for line in lines.values())
    low, high = max(0.0, low - 3), min(100.0, high + 3)

    def across(number: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * number / last

    def up(value: float) -> float:
        return HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * (value - low) / (high - low)

    step = next(each for each in (5, 10, 20, 25) if (high - low) / each <= 6)
    parts = []
    for tick in range(int(-(-low // step) * step), int(high) + 1, step):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        )
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for tick in (0, last // 2, last):
        parts.append(
            f'<text class="tick" x="{across(tick):.1f}" y="{HIGH - 12}" text-anchor="middle">{tick}</text>'
        )
    ends = sorted(((up(line.average[-1]), each) for each, line in lines.items()), key=lambda end: end[0])
    places, free = {}, 0.0
    for at, each in ends:
        places[each] = free = max(at, free + 14)
    for each, line in lines.items():
        mine = each == name
        colour = of_method(each).colour
        light, dark = PALETTE[CALM if colour == of_method("fedavg").colour else colour]
        look = f'style="--light:{light};--dark:{dark}"' if mine else ""
        kind = "line mine" if mine else f"line beside-{list(lines).index(each)}"
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(line.rounds, line.average, strict=True))
        parts.append(f'<polyline class="{kind}" {look} points="{points}"/>')
        word = f"{escape(_title(each))} {line.average[-1]:.1f}"
        kind = "name mine" if mine else "name"
        parts.append(
            f'<text class="{kind}" {look} x="{WIDE - RIGHT + 6}" y="{places[each] + 4:.1f}">{word}</text>'
        )
    finding = escape(f"{setting.title}: {_finding(name, lines)}")
    return (
        f'<figure><svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{finding}">'
        + "".join(parts)
        + f"</svg><figcaption><b>{finding}.</b> Moving average of the test accuracy, %, over rounds; "
        f"{escape(setting.words)}.</figcaption></figure>"
    )


def _title(name: str) -> str:
    return METHODS[name].title if name in METHODS else f"FedAvg+{name.partition('+')[2]}" if "+" in name else name


def _finding(name: str, lines: Mapping[str, Line]) -> str:
    """What the picture shows, in words."""
    end = lines[name].average[-1]
    said = []
    for each, line in lines.items():
        if each != name:
            gap = end - line.average[-1]
            way = "level with" if abs(gap) < 0.05 else f"{abs(gap):.1f} points {'above' if gap > 0 else 'below'}"
            said.append(f"{way} {_title(each)}")
    return f"{_title(name)} ends " + " and ".join(said) if said else f"{_title(name)} ends at {end:.1f} %"
