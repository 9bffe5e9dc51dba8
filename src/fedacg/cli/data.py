"""`fedacg data`: list, fetch, check, split, show and clean up data sets.

fedacg.data reads and splits them, fedacg.report makes figures and pictures; this module has only arguments and
terminal output.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedacg.cli import completion, interruptible
from fedacg.config.catalogue import SPLITS
from fedacg.errors import InputError, printable, unknown

if TYPE_CHECKING:
    from fedacg.config.sections import DataSettings
    from fedacg.data.catalogue import Survey
    from fedacg.report.labels import Figures

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List, fetch, check, split, show and clean up data sets.",
)

ROWS = 20
"""How many clients `show` prints."""

Name = Annotated[
    str,
    typer.Argument(
        help="A name that `fedacg data list` shows.", show_default=False, autocompletion=completion.data_sets
    ),
]
Whichever = Annotated[
    str,
    typer.Argument(
        help="A name that `fedacg data list` shows, or module:function for one of your own.", show_default=False
    ),
]
Place = Annotated[str, typer.Option("--path", help="The path of the data set `folder`.", show_default=False)]
Partial = Annotated[bool, typer.Option("--partial", help="Use a copy that is not the complete published one.")]
Alpha = Annotated[float, typer.Option(help="Concentration of the Dirichlet splits and of quantity.")]
Shards = Annotated[int, typer.Option(help="Most classes per client, with shards.")]
Seed = Annotated[int, typer.Option(help="Use the split that a run with this seed draws.")]


@app.command("list")
def list_() -> None:
    """List the data sets, their sizes and locations."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedacg.data import catalogue
    from fedacg.data.files import data_root

    console = Console()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "train", "test", "classes"):
        table.add_column(column, no_wrap=True, justify="left" if column == "name" else "right")
    for column in ("shape", "clients"):
        table.add_column(column, no_wrap=True)
    table.add_column("where", overflow="fold")
    problems: list[str] = []
    for name in catalogue.NAMES:
        found = catalogue.survey(name)
        problems += [found.problem] if found.problem else []
        train, test = (found.origin.train, found.origin.test) if found.origin else ("–", "–")
        where = Text(printable(_where(found)))
        table.add_row(name, str(train), str(test), *_known(name), _clients(name, found), where)
    console.print(table)
    console.print(
        "\ntrain, test: examples counted in the files; – if missing or not read yet."
        "\nclients: the number that comes with the data (split natural), or whether any do."
        f"\nData folder: {printable(data_root())} (FEDACG_DATA)."
        "\nTo download a missing data set: fedacg data get NAME",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    for problem in problems:
        typer.echo(f"note: {printable(problem)}", err=True)


@app.command()
def check(
    name: Name,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a copy that is not the complete published one.")
    ] = False,
) -> None:
    """Read a whole data set and compare it with the published one."""
    from fedacg.data import catalogue, origins

    if name not in catalogue.FACTS:
        raise unknown("published data set", name, catalogue.FACTS)
    found = catalogue.check(name)
    rows = [
        ("copy", found.copy),
        ("train", f"{found.train} examples"),
        ("test", f"{found.test} examples"),
        *([("clients", str(found.clients))] if found.clients is not None else []),
        ("classes", f"{catalogue.FACTS[name].classes}"),
        *(("differs", difference) for difference in found.differences),
    ]
    for label, value in rows:
        typer.echo(f"{label:10}{printable(value)}")
    if not found.differences:
        typer.echo("complete: all published counts and checksums match")
    elif not partial:
        raise InputError(
            f"data set {name!r}: {found.copy} is not the complete published copy; runs take it only with "
            f"--set data.partial=true. Replace it{origins.or_get(name)}"
        )


@app.command()
def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it, only list them.")] = False,
) -> None:
    """List prepared data that are no longer needed, or remove them."""
    from fedacg.data import catalogue, prepared
    from fedacg.runs.history import human_bytes

    sources = [facts.source for facts in catalogue.FACTS.values() if facts.source and facts.source.version]
    found = prepared.outdated(sources)
    if not found:
        typer.echo("no prepared data are outdated")
        return
    for each in found:
        typer.echo(f"{human_bytes(each.size):>10}  {printable(each.path)}\n{'':12}{printable(each.why)}")
    total = human_bytes(sum(each.size for each in found))
    if yes:
        prepared.remove_outdated(found)
        typer.echo(f"removed {total}")
    else:
        typer.echo(f"{total} can be removed: fedacg data clean --yes")


@app.command()
def get(name: Name) -> None:
    """Download a data set from its authors' site and check it, unless it is there already."""
    from rich.console import Console

    from fedacg.data import catalogue, origins
    from fedacg.data.files import data_root

    console = Console()
    with interruptible():
        found = catalogue.there(name)
        if found and not found.differences:
            typer.echo(f"{printable(found.copy)}: there already, complete; nothing to download")
            return
        if found:
            differences = "; ".join(map(printable, found.differences))
            typer.echo(f"{printable(found.copy)}: there already, but not complete: {differences}")
        files = origins.download(name, data_root(), console)
    if not files:
        console.print(f"{name} is built in: there is nothing to download.")
    for path in files:
        console.print(f"{path}: complete, checksum matches", soft_wrap=True, highlight=False)


@app.command()
def split(
    name: Whichever,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as split.npz.")],
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 100,
    split: Annotated[
        str, typer.Option(help=f"How to split the examples: {', '.join(SPLITS[:-1])}.")
    ] = "dirichlet",
    alpha: Alpha = 0.3,
    shards: Shards = 2,
    seed: Seed = 0,
    path: Place = "",
    partial: Partial = False,
) -> None:
    """Save a split, for use with --set data.split_file=FILE."""
    settings = _settings(
        seed, name=name, clients=clients, split=split, alpha=alpha, shards=shards, path=path, partial=partial
    )
    from fedacg.data import catalogue

    dealt = catalogue.deal(catalogue.load(name, path=settings.path, partial=partial), settings, seed)
    dealt.save(out)
    typer.echo(f"{out}: {len(dealt.order)} examples of {name} for {clients} clients")


@app.command()
def show(
    name: Whichever,
    split: Annotated[
        str | None,
        typer.Option(
            help=f"How to split the examples: {', '.join(SPLITS)}.",
            show_default="natural for data listed with clients, else dirichlet",
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients.", show_default="100; with natural, all")
    ] = None,
    alpha: Alpha = 0.3,
    shards: Shards = 2,
    seed: Seed = 0,
    path: Place = "",
    partial: Partial = False,
    split_file: Annotated[
        str, typer.Option(help="A saved split to show instead of drawing one.", show_default=False)
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The picture to write.", show_default="NAME-SPLIT.png")
    ] = None,
) -> None:
    """Show how labels are distributed over clients: a table here, a picture as PNG.

    Entropy is that of a client's labels, in bits. Distance from i.i.d. is the
    total variation distance between a client's label distribution and that of
    all clients together: 0 if they are equal, near 1 if the client has a few
    of many classes. By chance: the same for clients of these sizes filled at
    random. All figures are means over clients.
    """
    from rich.console import Console
    from rich.text import Text

    from fedacg.data import catalogue
    from fedacg.report import labels, pictures
    from fedacg.report.labels import look

    chosen = split or (catalogue.NATURAL if _natural(name) else "dirichlet")
    if clients is None:
        every = chosen == catalogue.NATURAL and name != catalogue.SYNTHETIC and not split_file
        clients = 0 if every else 100
    settings = _settings(
        seed,
        name=name,
        split=chosen,
        clients=clients,
        alpha=alpha,
        shards=shards,
        path=path,
        partial=partial,
        split_file=split_file,
    )
    out = out or Path(f"{name.replace(':', '-')}-{Path(split_file).stem or chosen}.png")
    if out.suffix.lower() != ".png":
        raise InputError(f"--out {out}: must end in .png")
    dealt = look(settings, seed)
    held, read = dealt.held, len(dealt.held.clients)
    _write(out, pictures.render(pictures.draw_labels(held, dealt.figures, dealt.title), "png"))

    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(dealt.title), end="\n\n")
    for words, bar in labels.rows(held, ROWS, 80):
        console.print(Text.assemble(words, (bar, "cyan")))
    if read > ROWS:
        console.print(f"… and {read - ROWS} more")
    console.print(labels.LEGEND, style="dim", end="\n\n")
    if read < held.population:
        console.print(f"These figures are for {read} clients chosen at random.", end="\n\n")
    console.print(_figures(dealt.figures))
    console.print(Text(f"picture                {out}"))


def _figures(figures: "Figures") -> str:
    sizes = (figures.smallest, figures.median, figures.mean, figures.largest)
    least, median, mean, most = (f"{size:.1f}".removesuffix(".0") for size in sizes)
    return (
        f"examples per client    min {least}, median {median}, mean {mean}, max {most}\n"
        f"entropy of labels      {figures.entropy:.2f} bits; all together {figures.entropy_of_all:.2f} bits\n"
        f"distance from i.i.d.   {figures.distance:.2f}; by chance {figures.distance_by_chance:.2f}"
    )


def _settings(seed: int, **data: Any) -> "DataSettings":
    """The [data] table with these keys; invalid ones are refused as in an experiment."""
    from fedacg.config.experiment import Experiment

    return Experiment.parse({"seed": seed, "data": data}).data


def _write(path: Path, picture: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    except OSError as error:
        raise InputError(f"{path}: the picture cannot be written: {error.strerror}") from None


def _natural(name: str) -> bool:
    """Whether a data set is known to come with clients; for user code that is not known."""
    from fedacg.data import catalogue

    known = name in catalogue.FACTS and catalogue.FACTS[name].natural
    return known or name in (catalogue.SYNTHETIC, catalogue.FOLDER)


def _known(name: str) -> tuple[str, str]:
    """The number of classes and the shape of an input."""
    from fedacg.data import catalogue
    from fedacg.data.sources import built_in

    if name == catalogue.SYNTHETIC:
        return str(built_in.SYNTHETIC_CLASSES), str(built_in.SYNTHETIC_FEATURES)
    if name not in catalogue.FACTS:
        return "–", "–"
    facts = catalogue.FACTS[name]
    return str(facts.classes), "×".join(map(str, facts.shape))


def _clients(name: str, found: "Survey") -> str:
    if found.origin and found.origin.clients is not None:
        return str(found.origin.clients)
    return "yes" if _natural(name) else "no"


def _where(found: "Survey") -> str:
    from fedacg.data.files import data_root

    place = found.place
    if found.problem:
        return "damaged"
    if place is None:
        return "missing"
    if not isinstance(place, Path):
        return place
    short = place.relative_to(data_root()) if place.is_relative_to(data_root()) else place
    if found.origin is None:
        return f"{short} (not read yet)"
    return f"{short} (incomplete)" if found.origin.differences else str(short)
