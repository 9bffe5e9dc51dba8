"""The report as one HTML file that needs nothing else: no network, no server.

Gathers what the templates in `web` show, and embeds style and script. The text about the runs comes from
`page_text`, the script's data from `payload`.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fedacg.report.cells import Cell, Column, to_latex
from fedacg.report.coming import Coming
from fedacg.report.labels import Split
from fedacg.report.page_text import Facts, SplitPicture, data_url
from fedacg.report.payload import attendances, to_json
from fedacg.report.series import Material, further_figures
from fedacg.report.style import PALETTE
from fedacg.report.table import to_csv
from fedacg.version import __version__

SCRIPTS = ("scale.js", "table.js", "chart.js", "download.js", "split.js", "attendance.js", "live.js", "main.js")
"""The page's script in the order in which its parts build on one another."""
CHOICES = (
    (
        "figure",
        "What is drawn",
        (
            ("average", "Moving average"),
            ("accuracy", "Accuracy"),
            ("loss", "Test loss"),
            ("training", "Training loss"),
        ),
    ),
    ("axis", "Along", (("rounds", "Rounds"), ("bytes", "Bytes"), ("seconds", "Time"))),
    ("scale", "Scale", (("linear", "Linear"), ("log", "Log"))),
)


@dataclass(frozen=True)
class Picture:
    """A picture from another module, with its title and caption."""

    name: str
    title: str
    caption: str
    alt: str
    """Alternative text for readers who cannot see it."""
    png: bytes

    @property
    def source(self) -> str:
        """The picture itself as an address, so that the page stays one file."""
        return data_url(self.png)


@dataclass(frozen=True)
class Chapter:
    """A chapter of the page from another module: text, a table and pictures."""

    title: str
    words: str
    columns: Sequence[Column]
    pictures: Sequence[Picture]

    @property
    def rows(self) -> list[tuple[None, tuple[Cell, ...]]]:
        return [(None, cells) for cells in zip(*(column.cells for column in self.columns), strict=True)]


@dataclass(frozen=True)
class Splits:
    """The splits that a page shows, and why others are missing."""

    found: Sequence[Split] = ()
    missing: Sequence[str] = ()


def render(
    material: Material,
    splits: Splits,
    *,
    chapters: Sequence[Chapter] = (),
    picture: bytes | None = None,
    version: str = "",
    coming: Sequence[Coming] = (),
) -> str:
    """The page as text; everything that comes from a run is escaped.

    `picture` shows the curves if scripts are disabled. A page with a `version` is a live one: its script polls for
    updates.
    """
    script = _script()
    return _template("page.html.jinja").render(
        facts=Facts(material, coming),
        downloads=_downloads(material),
        further=further_figures([run.history for run in material.runs]),
        live=version,
        version=__version__,
        palette=PALETTE,
        choices=_choices(material),
        chapters=chapters,
        picture=data_url(picture) if picture else "",
        pictures=[SplitPicture(split) for split in splits.found],
        missing=splits.missing,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=Markup(data(material, splits)),
    )


def _choices(material: Material) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The choices for the curves, with the name of the figure shown instead of an accuracy."""
    shown = material.curves[0].shown if material.curves else None
    other = {"accuracy": shown.title.capitalize()} if shown and shown.name != "test_accuracy" else {}
    return [
        (name, title, [(value, other.get(value, words)) for value, words in options])
        for name, title, options in CHOICES
    ]


def data(material: Material, splits: Splits) -> str:
    """What the page's script draws, as JSON."""
    return to_json(material.curves, material.targets, attendances(material.runs), splits.found)


def _downloads(material: Material) -> list[tuple[str, str, str]]:
    """Downloads of the table for programs and papers: file name, button label, and address."""
    files = {
        "table.csv": ("CSV", "text/csv", to_csv(material.rows, material.targets)),
        "table.tex": ("LaTeX", "application/x-tex", to_latex(material.columns)),
    }
    return [
        (name, words, f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}")
        for name, (words, kind, text) in files.items()
    ]


def parts(material: Material, splits: Splits, coming: Sequence[Coming] = ()) -> dict[str, str]:
    """The parts of a page that change while runs are in progress, by element name."""
    macros: Any = _template("parts.html.jinja").module
    facts = Facts(material, coming)
    named = ("summary", "progress", "settings", "reproduce")
    found = {name: getattr(macros, name)(facts) for name in named}
    found["results"] = macros.results(facts, _downloads(material))
    found["split"] = macros.splits([SplitPicture(split) for split in splits.found], splits.missing)
    return {f"{name}-part": str(html) for name, html in found.items()}


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedacg.report", "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template(name: str) -> Template:
    return _environment().get_template(name)


@cache
def _asset(name: str) -> str:
    return resources.files("fedacg.report").joinpath("web", name).read_text(encoding="utf-8")


def _script() -> str:
    """All scripts as one, in its own scope."""
    return "\n".join(["(() => {", '"use strict";', *map(_asset, SCRIPTS), "})();"])
