"""A terminal of 80 × 24: the program in a pseudo-terminal, and what can be seen of it."""

import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

COLUMNS, LINES = 80, 24
_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """As much of a terminal as the program makes use of; what scrolls off the top is kept in `past`."""

    def __init__(self) -> None:
        self.past: list[str] = []
        self._cells = [[" "] * COLUMNS for _ in range(LINES)]
        self._row = self._column = 0
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        """What is to be seen, without empty lines at the end."""
        rows = ["".join(row).rstrip() for row in self._cells]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def feed(self, text: str) -> None:
        text = self._rest + text
        place = 0
        while place < len(text):
            if text[place] == "\x1b":
                found = _CONTROL.match(text, place)
                if found is None:
                    break  # the rest of it has not come yet
                self._obey(found[1], found[2])
                place = found.end()
            else:
                self._write(text[place])
                place += 1
        self._rest = text[place:]

    def _obey(self, number: str, letter: str) -> None:
        count = int(number) if number.isdigit() else 1
        if letter == "A":
            self._row = max(0, self._row - count)
        elif letter == "K":
            assert number == "2", number
            self._cells[self._row] = [" "] * COLUMNS
        else:
            assert letter in "mhl", (number, letter)

    def _write(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._feed_line()
        elif character.isprintable():
            if self._column == COLUMNS:
                self._column = 0
                self._feed_line()
            self._cells[self._row][self._column] = character
            self._column += 1

    def _feed_line(self) -> None:
        self._row += 1
        if self._row == LINES:
            self.past.append("".join(self._cells.pop(0)).rstrip())
            self._cells.append([" "] * COLUMNS)
            self._row -= 1


class Terminal:
    """The program `fedacg` in a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.screen = Screen()
        self.text = ""
        self.seen: list[list[str]] = []
        """The screen after each piece of output."""
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "CI")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedacg", *arguments],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def press(self, key: bytes) -> None:
        """Type something; Ctrl-C is \\x03, and goes to all processes of the terminal."""
        os.write(self._ours, key)

    def wait_for(self, condition: Callable[[list[str]], bool], seconds: float = 60) -> list[str]:
        """Wait until the screen is as it should be."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if condition(lines := self.screen.lines):
                return lines
            assert self.process.poll() is None, self.text
            time.sleep(0.01)
        raise AssertionError(self.screen.lines)

    def end(self, seconds: float = 120) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # nobody has the other end open any more
                return
            if not piece:
                return
            text = piece.decode(errors="replace")
            self.text += text
            self.screen.feed(text)
            self.seen.append(self.screen.lines)


def _take_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ioctl(0, termios.TIOCSCTTY, 0)
