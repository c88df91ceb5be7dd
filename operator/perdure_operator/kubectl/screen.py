"""Draws pages for people: with columns on a terminal, and the same text in a file or a pipe. It follows NO_COLOR."""

from __future__ import annotations

from typing import IO, Final

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from perdure_operator.kubectl.page import Facts, Page, Table, printable

COLUMNS: Final = 100
"""How wide a page is where there is no terminal."""


def draw(page: Page, out: IO[str]) -> None:
    """Write the page; texts are never read as markup."""
    console = Console(file=out, width=None if out.isatty() else COLUMNS, highlight=False, markup=False, emoji=False)
    shown = [part for part in page if not isinstance(part, Table) or part.rows]
    with console.capture() as drawn:
        for number, part in enumerate(shown):
            if number:
                console.print()
            _draw(part, console)
    out.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


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
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    used = [place for place in range(len(table.heads)) if any(row[place] for row in table.rows)]
    for place in used:
        grid.add_column(Text(table.heads[place]), overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(printable(row[place])) for place in used))
    return grid


def _facts(part: Facts) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in part.facts:
        if text:
            grid.add_row(Text(label, style="bold"), Text(printable(text)))
    return grid
