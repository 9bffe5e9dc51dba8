"""Errors that the user can fix, and their wording.

Everything raised from here ends a command with its message and exit code 2, without a traceback.
Any other exception is a bug and shows its traceback.
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches

_MOST_NAMES = 20
"""Longest list of names that an error shows in full; of a longer one it shows the nearest."""


class InputError(ValueError):
    """Invalid input: the message names it, its value and what is allowed."""


class SettingError(InputError):
    """An invalid setting: `key` is its dotted name in an experiment file."""

    def __init__(self, key: str, value: str, reason: str) -> None:
        super().__init__(key, value, reason)  # what a copy in another process is made from
        self.key, self.value, self.reason = key, value, reason

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.reason}"

    def under(self, name: str) -> "SettingError":
        """The same error for a caller who knows the setting by another name."""
        return SettingError(name, self.value, self.reason)


class DataMissing(InputError):
    """A data set is missing: the message says which places were searched and how to get the files."""


class DataDamaged(InputError):
    """A copy of a data set is not what was published: the message says which file, and how it differs."""


class RunError(RuntimeError):
    """A run could not continue: it diverged, or its workers kept dying."""


def printable(text: object) -> str:
    """Printable text: bytes of a path that are not text become `\\x…`."""
    return os.fsencode(str(text)).decode("utf-8", "backslashreplace")


_LONGEST = 60
"""Number of characters of a value that an error shows."""


def shown(value: object) -> str:
    """A value as errors show it: a long one is cut short, and numbers have few digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a catalogue, with the nearest right one."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if len(names) > _MOST_NAMES:
        names = [*sorted(get_close_matches(name, names, n=_MOST_NAMES, cutoff=0)), "…"]
    return InputError(f"unknown {kind} {name!r}: {hint}choose from {', '.join(names)}")
