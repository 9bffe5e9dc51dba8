"""The complete works of Shakespeare, Project Gutenberg's text 100 of 1994, taken apart into speaking roles.

A role is a speaker of one play. Whose a line is follows LEAF, so that the same roles come out, with its habits:
a stage direction that is indented like speech, or further, counts as the last speaker's. How the words of a role
become examples lives in shakespeare.py.
"""

import re

_AUTHOR = "by William Shakespeare"
"""The line below the title of each work."""
_POEMS = ("THE SONNETS", "A LOVER'S COMPLAINT")
_INDENT = 2
"""Of a speaker's name; speech that goes on below it has twice as much."""
_UNINDENTED = "THE COMEDY OF ERRORS"
"""The one play whose lines lost their indents; all of them count as speech."""
_SPEAKER = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")
_FEWEST_LINES = 3


def roles(text: str) -> dict[str, str]:
    """What each role says, by LEAF's name for it (PLAY_ROLE in capitals), in the order of first words.

    Lines are joined by spaces, and spaces in a row become one. Roles of one or two lines are left out.
    """
    lines: dict[str, list[str]] = {}
    title = above = ""
    speech: list[str] | None = None
    for line in text.splitlines():
        if line.strip() == _AUTHOR:
            title, speech = above, None
        elif title and title not in _POEMS:
            speech = _listen(line, title, lines, speech)
        above = line.strip() or above
    return {name: _together(said) for name, said in lines.items() if len(said) >= _FEWEST_LINES}


def _listen(line: str, title: str, lines: dict[str, list[str]], speech: list[str] | None) -> list[str] | None:
    """Add a line to whom it belongs: a new speaker, or the one of `speech`. The speech that goes on after it."""
    indent = 0 if title == _UNINDENTED else _INDENT
    named = _SPEAKER.match(line, indent) if line.startswith(" " * indent) else None
    if title == _UNINDENTED and line.startswith(("ACT ", "<")):  # a heading, and a notice of the publisher
        return None
    if named:
        name = re.sub(r"\W+", "_", f"{title} {named[1].upper()}")
        speech = lines.setdefault(name, [])
        speech.append(named[2])
    elif speech is not None and line.startswith(" " * 2 * indent):
        speech.append(line[2 * indent :])
    return speech


def _together(said: list[str]) -> str:
    # A space after the last line too, as after every other: LEAF's windows end with it.
    return re.sub("  +", " ", " ".join([*said, ""]))
