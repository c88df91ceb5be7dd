"""Draws pages for people. On a terminal, columns are as wide as it allows, and NO_COLOR is followed.

In a file or a pipe each row is one line with all of its text, so that grep, sort and awk read it.
"""

from __future__ import annotations

from typing import IO, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from perdure_operator.cli.kubectl.page import TEXTS, Facts, Page, Table, printable

GAP: Final = 2
"""Spaces between columns."""
NARROWEST: Final = 12
"""What is left to a column of TEXTS where names take all of a terminal."""


def draw(page: Page, out: IO[str], *, columns: int | None = None) -> None:
    """Write the page for a terminal so wide, or with None in whole lines; texts are never read as markup."""
    shown = [part for part in page if not isinstance(part, Table) or part.rows]
    drawn = _on_a_terminal(shown, out, columns) if columns else _in_lines(shown)
    out.write("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()))


def _in_lines(page: list[Table | Facts | str]) -> str:
    return "\n\n".join("\n".join(_lines(part)) for part in page)


def _lines(part: Table | Facts | str) -> list[str]:
    match part:
        case Table():
            title = [printable(part.title)] if part.title else []
            return title + _aligned(_used(part))
        case Facts():
            return _aligned([(label, printable(text)) for label, text in part.facts if text])
        case str():
            return [printable(part)]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(cell_len, column)) + GAP for column in zip(*rows, strict=True)]
    padded = ([cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["".join(row) for row in padded]


def _used(table: Table) -> list[tuple[str, ...]]:
    """The heads and the rows, printable, without the columns that are empty."""
    rows = [tuple(printable(cell) for cell in row) for row in table.rows]
    used = [place for place in range(len(table.heads)) if any(row[place] for row in rows)]
    return [tuple(row[place] for place in used) for row in (table.heads, *rows)]


def _on_a_terminal(page: list[Table | Facts | str], out: IO[str], columns: int) -> str:
    drawn = list[str]()
    for part in page:
        width = max(columns, _least(part)) if isinstance(part, Table) else columns
        console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
        with console.capture() as captured:
            _draw(part, console)
        drawn.append(captured.get())
    return "\n".join(drawn)


def _least(table: Table) -> int:
    """How wide a terminal has to be for the names in a table. A narrower one continues its lines below."""
    columns = list(zip(*_used(table), strict=True))
    return sum(NARROWEST if head in TEXTS else max(map(cell_len, (head, *cells))) for head, *cells in columns) + (
        GAP * len(columns)
    )


def _draw(part: Table | Facts | str, console: Console) -> None:
    match part:
        case Table():
            if part.title:
                console.print(Text(printable(part.title), style="bold"))
            console.print(_grid(part))
        case Facts():
            console.print(_facts(part))
        case str():
            console.print(Text(printable(part)))


def _grid(table: Table) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    heads, *rows = _used(table)
    for head in heads:
        grid.add_column(Text(head), overflow="fold", no_wrap=head not in TEXTS)
    for row in rows:
        grid.add_row(*(_cell(cell, cut=table.cut and head in TEXTS) for head, cell in zip(heads, row, strict=True)))
    return grid


def _cell(text: str, *, cut: bool) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis") if cut else Text(text)


def _facts(part: Facts) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in part.facts:
        if text:
            grid.add_row(Text(label, style="bold"), Text(printable(text)))
    return grid
