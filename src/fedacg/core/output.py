"""Standard output and error that never end a run, even if full, closed or unable to encode a character.

Names from files are made safe here too, for terminals and for tables that a spreadsheet opens.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO


class EnduringStream(io.TextIOBase):
    """An output stream; after the first failure output is dropped, and the reason reported once."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if name == "standard error" else "replace")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        # What the stream still holds goes the same way, when it is flushed at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        # A reader that stopped, such as `head`, or a closed terminal needs no message.
        if error.errno not in (errno.EPIPE, errno.EIO):
            print(f"warning: {self._name} cannot be written: {error.strerror}", file=sys.stderr)


@contextmanager
def enduring_output() -> Iterator[None]:
    """Use enduring streams inside the block."""
    _open_descriptors()
    before = sys.stdout, sys.stderr
    sys.stdout = EnduringStream(before[0] or open(1, "w", closefd=False), "standard output")  # noqa: SIM115
    sys.stderr = EnduringStream(before[1] or open(2, "w", closefd=False), "standard error")  # noqa: SIM115
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _open_descriptors() -> None:
    """Open closed streams: otherwise a file of the run could get their descriptor, and output would go into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def printable(text: str) -> str:
    """Text with control and invisible characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_tree(value: Any) -> Any:
    """The same for all strings of nested tables and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_tree(key): printable_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_tree(item) for item in value]
    return value


def csv_text(text: str) -> str:
    """A text cell that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
