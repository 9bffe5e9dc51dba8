"""`fedacg run` and `fedacg compare`: run one experiment, or one with several methods and seeds."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedacg.cli import STOPPED, completion, interruptible
from fedacg.config.recipe import Tree, find, override, with_method
from fedacg.core.files import parse_folder, safe_name
from fedacg.errors import InputError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from fedacg.runs.callbacks import Callback
    from fedacg.runs.runner import Result

Recipe = Annotated[
    str,
    typer.Argument(help="A recipe's name or a TOML file.", show_default=False, autocompletion=completion.recipes),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        help="Replaces the recipe's; fedacg:lam=0.9 sets options.",
        autocompletion=completion.method,
    ),
]
Seeds = Annotated[str | None, typer.Option("--seeds", help="Comma-separated numbers; the recipe's by default.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="A setting, such as local.lr=0.05; may be repeated.",
        autocompletion=completion.keys,
    ),
]


def parse_out(text: str) -> Path:
    """A folder to write to, as typed."""
    try:
        return parse_folder(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def out_option(help: str) -> Any:
    """`--out`, of every command that writes to a folder."""
    return typer.Option("--out", "-o", help=help, parser=parse_out, metavar="PATH")


Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in the folder.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs and their cost.")]
ResumeMany = Annotated[
    bool, typer.Option("--resume", help="Resume runs that were stopped; finished ones are kept anyway.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is in the folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only what was written.")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Log to a tool as well, such as tensorboard; may be repeated."),
]


def run(
    recipe: Recipe,
    method: Method = None,
    settings: Set = None,
    out: Annotated[Path | None, out_option("The run folder; runs/NAME-METHOD-sSEED by default.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Run one experiment."""
    tree = find(recipe)
    if method:
        tree = with_method(tree, method)
    tree = override(tree, settings or [])
    from fedacg.bench.grid import folder_name
    from fedacg.config.experiment import Experiment

    experiment = Experiment.parse(tree)
    name = safe_name(f"{experiment.name}-{folder_name(experiment)}")
    from fedacg.bench.grid import place_run

    folder = out or place_run(Path("runs"), name, experiment, reuse=resume or overwrite)
    # Imported only now, as in every command: an error in a setting need not wait for torch.
    from rich.console import Console

    from fedacg.runs.build import prepare
    from fedacg.runs.contents import is_played
    from fedacg.runs.loggers import make_loggers
    from fedacg.runs.progress import describe, make_progress
    from fedacg.runs.runner import play

    console = Console()
    name, finished = describe(experiment), resume and is_played(folder, experiment)
    if finished and not quiet:
        words = f"{folder}: this run is finished, so there is nothing to resume; "
        longer = f"--set rounds={2 * experiment.rounds} would continue it"
        console.print(words + longer, highlight=False, markup=False, soft_wrap=True)
    progress = make_progress(console, quiet or finished, {name: experiment.rounds})
    callbacks = [progress, *make_loggers([] if finished else log or [], folder)]
    try:
        with interruptible(), progress:
            progress.turn(name)
            result = play(
                experiment,
                prepare(experiment),
                folder=folder,
                resume=resume,
                overwrite=overwrite,
                callbacks=callbacks,
            )
    except KeyboardInterrupt:
        again = f"fedacg run {folder / 'experiment.toml'} --out {folder} --resume"
        raise stopped(console, again, [folder]) from None
    if quiet:
        typer.echo(folder)
    else:
        _print_result(console, result)


def compare(
    recipe: Recipe,
    methods: Annotated[
        str,
        typer.Option("--methods", "-m", help="Comma-separated names.", autocompletion=completion.methods),
    ] = "fedavg,fedacg",
    seeds: Seeds = None,
    vary: Annotated[
        str | None,
        typer.Option(
            "--vary",
            help="What seeds vary: any of split,weights,cohorts,batches; the rest keeps the recipe's seed.",
        ),
    ] = None,
    settings: Set = None,
    out: Annotated[Path | None, out_option("The folder for runs and report; runs/NAME by default.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Run one experiment with several methods: one table, one picture, one page."""
    refuse_options(settings or [])
    from fedacg.bench.grid import by_method

    tree = override(find(recipe), settings or [])
    tree = _varied(tree, vary) if vary else tree
    experiments = by_method(tree, parse_names(methods), parse_seeds(seeds) if seeds else [])
    from rich.console import Console

    from fedacg.bench.grid import place_several
    from fedacg.runs.build import check_methods
    from fedacg.runs.contents import is_finished
    from fedacg.runs.loggers import make_loggers
    from fedacg.runs.progress import make_progress
    from fedacg.runs.session import Session, announce_runs

    check_methods(experiments.values())
    console = Console()
    first = next(iter(experiments.values()))
    folder = out or place_several(
        Path("runs") / safe_name(first.name), experiments, ["method.name"], reuse=resume or overwrite
    )
    over = [name for name, each in experiments.items() if resume and is_finished(folder / name, each)]
    if over and not quiet:
        number = "all" if len(over) == len(experiments) else str(len(over))
        console.print(f"{number} of {len(experiments)} runs below {folder} were finished before", highlight=False)
    missing = {name: each for name, each in experiments.items() if name not in over}
    progress = make_progress(console, quiet, {name: each.rounds for name, each in missing.items()})

    def looking_on(name: str) -> "list[Callback]":
        progress.turn(name)
        return [progress, *make_loggers(log or [], folder / name)]

    with Session(first.engine, len(missing)) as session:
        try:
            rounds = {folder / name: each.rounds for name, each in missing.items()}
            with interruptible(), announce_runs(folder, rounds), progress:
                for _ in session.play_each(
                    missing, folder, resume=resume, overwrite=overwrite, callbacks=looking_on
                ):
                    pass
        except KeyboardInterrupt:
            raise stopped(console, AGAIN, [folder / name for name in experiments]) from None

    from fedacg.cli.report import report

    if not quiet:
        console.print()
    report([folder / name for name in experiments], out=folder, target=list(first.evaluate.targets), quiet=quiet)


def _varied(tree: Tree, vary: str) -> Tree:
    """The tree with the seeds of all other streams fixed to the recipe's."""
    from fedacg.config.fields import STREAMS

    for name in (names := parse_names(vary)):
        if name not in STREAMS:
            raise unknown("--vary", name, STREAMS)
    seed, own = tree.get("seed", 0), tree.get("seeds", {})
    return {**tree, "seeds": {name: seed for name in STREAMS if name not in names} | own}


def refuse_options(settings: list[str]) -> None:
    """Refuse `--set` of a method's option: with several methods it is ambiguous."""
    for setting in settings:
        if setting.partition("=")[0].strip().partition(".")[0] == "method":
            raise InputError(f"--set {setting!r}: give options with their method, as in --methods fedacg:lam=0.9")


def parse_names(text: str | None) -> list[str]:
    """Comma-separated names."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_seeds(text: str) -> list[int]:
    """Comma-separated whole numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text!r}: must be comma-separated whole numbers") from None


AGAIN = "the same command with --resume"


def stopped(console: "Console", again: str, folders: Iterable[Path]) -> typer.Exit:
    """Print how to resume, and return the exit code of an interrupted command."""
    if any((folder / "experiment.toml").exists() for folder in folders):
        console.print("\nStopped; the last complete round is saved. To resume:", highlight=False)
        console.print(f"  {again}", highlight=False, markup=False, soft_wrap=True)
    else:
        console.print("\nStopped before a run started; there is nothing to resume.", highlight=False)
    return typer.Exit(STOPPED)


def _headline(result: "Result") -> list[tuple[str, str]]:
    """The headline figure of a run without accuracy."""
    values = result.history.series(result.history.headline)
    if result.history.accuracy or not values:
        return []
    return [(result.history.headline, f"{next(reversed(values.values())):.4g}")]


def _goals(result: "Result") -> list[tuple[str, str]]:
    from fedacg.config.fields import Goal

    reached = result.summary["rounds_to"]
    goals = {key: Goal.parse(key) if "=" in key else Goal.accuracy(float(key)) for key in reached}
    return [(f"rounds to {goals[key].title}", rounds) for key, rounds in reached.items()]


def _print_result(console: "Console", result: "Result") -> None:
    from fedacg.runs.history import human_bytes

    summary = result.summary
    rows = [
        *_headline(result),
        *(
            (name.replace("_", " "), f"{100 * summary[name]:.2f} %")
            for name in ("accuracy", "moving_average")
            if summary[name] is not None
        ),
        *_goals(result),
        ("sent", human_bytes(summary["bytes_down"] + summary["bytes_up"])),
        ("seconds", f"{summary['seconds']['total']:.1f}"),
        ("vector sha256", summary["vector_sha256"][:16] + "…"),
        ("folder", str(result.folder)),
    ]
    for name, value in rows:
        console.print(f"{f'{name} ':16}{value}", highlight=False, markup=False, soft_wrap=True)
    if result.stopped_early:
        console.print(f"stopped early: {result.stopped_early}", highlight=False, markup=False, soft_wrap=True)
    for note in summary["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
