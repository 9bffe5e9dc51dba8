"""The command line: what surrounds every command, and what signals do to it. program.py has the commands.

Bad input ends with one message and exit code 2, a run that cannot continue with 1; a bug shows its traceback.
Nothing slow is imported here: signals and output are handled before the rest is loaded.

Ctrl-C, SIGTERM and SIGHUP end a command with the exit code 130. While torch is loaded there is nothing to save,
and they end the program at once. In an `interruptible` block the first one raises KeyboardInterrupt, so that a run
saves its last complete round. A second Ctrl-C then ends the program at once, which costs the rounds since the last
checkpoint. SIGTERM and SIGHUP are often sent twice: a second one of those changes nothing.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from fedacg.core.output import enduring_output, printable
from fedacg.errors import InputError, RunError

STOPPED = 130
"""The exit code of a command that was stopped."""

_interruptible = False
_stopping = False


def handle_signals() -> None:
    """Handle the signals that ask a program to end, except those it was started to ignore, as by nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have the first signal raise KeyboardInterrupt."""
    global _interruptible, _stopping
    _interruptible, _stopping = True, False
    try:
        yield
    finally:
        _interruptible = False


def _stop(number: int, frame: FrameType | None) -> None:
    global _stopping
    if not _interruptible or (_stopping and number == signal.SIGINT):
        _end_at_once()
    if not _stopping:
        _stopping = True
        raise KeyboardInterrupt


def _end_at_once() -> NoReturn:
    """End without further output of the interpreter; workers end with their parent."""
    with suppress(OSError):
        show_cursor = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides it
        os.write(2, show_cursor + b"\nStopped.\n")
    os._exit(STOPPED)


_GARBAGE = 10_000
"""New objects until Python looks for garbage among them; its own figure is 700."""


def start() -> None:
    """The program `fedacg` as a process of its own.

    Loading torch makes 170,000 objects that stay. To look through them for garbage while they are made, and
    once more at the end, takes a fifth of the processor time of a short command.
    """
    gc.set_threshold(_GARBAGE)
    try:
        main()
    finally:
        gc.freeze()


def main() -> None:
    """The program `fedacg` within any process."""
    handle_signals()
    with enduring_output():
        from fedacg.cli.program import app

        try:
            app()
        except InputError as error:
            _fail(error, 2)
        except RunError as error:
            _fail(error, 1)


def _fail(error: Exception, code: int) -> NoReturn:
    for text in (str(error), *getattr(error, "__notes__", [])):
        # A message may quote a file, and a terminal would obey its control characters.
        lines = "\n".join(map(printable, text.split("\n")))
        print(f"error: {lines}", file=sys.stderr)
    sys.exit(code)
