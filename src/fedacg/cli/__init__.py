"""The command line: what surrounds every command. The commands are put together in program.py.

Bad input ends with one message and exit code 2, a run that cannot continue with 1; a bug shows its traceback.
Nothing slow is imported here: signals and output are handled before the rest is loaded.
"""

import sys
from typing import NoReturn

from fedacg.cli.stopping import handle_signals
from fedacg.core.output import enduring_output, printable
from fedacg.errors import InputError, RunError


def main() -> None:
    """The program `fedacg`."""
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
