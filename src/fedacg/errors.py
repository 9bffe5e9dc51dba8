"""Errors that are the user's to mend, and their wording.

Everything raised from here ends a command with its message and exit code 2, without a traceback.
Any other exception is a bug and shows its traceback.
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches

_MOST_NAMES = 20
"""Of a longer list only the nearest are shown."""


class InputError(ValueError):
    """Something that was given does not fit: the message names it, its value and what is allowed."""


class SettingError(InputError):
    """A setting does not fit: `key` is what it is called in an experiment file, dotted."""

    def __init__(self, key: str, value: str, reason: str) -> None:
        super().__init__(key, value, reason)  # all that a copy in another process is made from
        self.key, self.value, self.reason = key, value, reason

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.reason}"

    def under(self, name: str) -> "SettingError":
        """The same, for someone who knows the setting by another name."""
        return SettingError(name, self.value, self.reason)


class DataMissing(InputError):
    """The files of a data set are not there: the message says where they were looked for and how to get them."""


class DataDamaged(InputError):
    """A copy of a data set is not what was published: the message says which file, and how it differs."""


class RunError(RuntimeError):
    """A run could not go on: it diverged, or its workers kept dying."""


def printable(text: object) -> str:
    """Words that can be printed: a path need not be text, and has `\\x…` in it where it is not."""
    return os.fsencode(str(text)).decode("utf-8", "backslashreplace")


_LONGEST = 60
"""Characters of a value that an error shows."""


def shown(value: object) -> str:
    """A value as an error names it: its beginning, if it is long, and no more digits than a reader takes in."""
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
