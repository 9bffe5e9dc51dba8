"""A table of a report for a paper: LaTeX with the rules of booktabs, best in bold, second best underlined."""

from collections.abc import Sequence

from fedacg.report.cells import Cell, Column

_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # After the end of a line a bracket would be an option of it.
        "[": "{[}",
        "]": "{]}",
        **{character: f"\\{character}" for character in "{}$&#_%"},
        "±": r"$\pm$",
        "–": "--",
        "…": r"\dots{}",
        "≥": r"$\ge$",
    }
)
_MARKS = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}


def to_latex(columns: Sequence[Column]) -> str:
    r"""The table as a `tabular`, to be put in a paper with \input."""
    rows = zip(*(column.cells for column in columns), strict=True)
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
        _line([escape(column.heading) for column in columns]),
        r"\midrule",
        *(_line([_cell(cell) for cell in row]) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """A text that LaTeX prints as it stands."""
    return text.translate(_ESCAPES)


def _line(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _cell(cell: Cell) -> str:
    return _MARKS[cell.mark].format(escape(cell.text))
