"""`fedacg watch`: the report of runs in progress, in a browser on this machine.

Only arguments and terminal output; the page and the server are in `fedacg.report`.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedacg.cli.report import Target
from fedacg.cli.stopping import STOPPED, interruptible
from fedacg.errors import InputError

_POLITE = 5
"""Niceness, so that runs come first when cores are scarce."""


def watch(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders that hold or will hold run folders.", show_default=False),
    ],
    port: Annotated[int, typer.Option("--port", "-p", help="The port to serve at; 0 takes a free one.")] = 0,
    target: Target = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the address.")] = False,
) -> None:
    """Watch runs in progress: the report's page, kept up to date, on this machine."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port}: must be a number from 0 to 65535")
    from fedacg.report.live import LiveReport, Server

    os.nice(_POLITE)
    with Server(LiveReport(folders, target or None), port) as server:
        typer.echo(server.address if quiet else f"live at {server.address}, until Ctrl-C")
        try:
            with interruptible():
                server.serve_forever()
        except KeyboardInterrupt:
            if not quiet:
                typer.echo("\nStopped watching; the runs continue.")
            raise typer.Exit(STOPPED) from None
