"""Draws pages for people. On a terminal, columns are as wide as it allows, and NO_COLOR is followed.

In a file or a pipe each row is one line with all of its text, so that grep, sort and awk read it.
"""

from __future__ import annotations

import asyncio
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import Signals
from typing import IO, Final, Self

from rich.cells import cell_len, set_cell_size
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
    shown = parts_with_text(page)
    drawn = _on_a_terminal(shown, out, columns) if columns else _in_lines(shown)
    out.write("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()))


_ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""Another screen, without a cursor; what was on the terminal is kept."""
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_REST: Final = "\x1b[J"


class LiveScreen:
    """`with LiveScreen(out) as screen:` shows one page after another in place, and gives the terminal back."""

    def __init__(self, out: IO[str], size: Callable[[], tuple[int, int]] = shutil.get_terminal_size) -> None:
        """`size` tells the columns and lines of the terminal, which may change."""
        self._out, self._size = out, size

    def __enter__(self) -> Self:
        self._out.write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._out.write(_LEAVE)
        self._out.flush()

    def show(self, page: Page) -> None:
        """Show this page instead of the last one, as much of it as there is room for."""
        columns, rows = self._size()
        drawn = io.StringIO()
        draw(page, drawn, columns=columns)
        lines = [cut(line, columns) for line in fitting(drawn.getvalue().splitlines(), rows)]
        self._out.write(_HOME + "\r\n".join(f"{line}{_CLEAR_LINE}" for line in lines) + _CLEAR_REST)
        self._out.flush()


@contextmanager
def ended_by(one: Signals) -> Iterator[None]:
    """Meanwhile this signal cancels the task, as Ctrl-C does, so that the terminal is given back."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("only a task can be ended by a signal")
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(one, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(one)


def fitting(lines: Sequence[str], rows: int) -> list[str]:
    """So many of the lines; the last one tells of those that are left out."""
    if len(lines) <= rows:
        return list(lines)
    kept = max(0, rows - 1)
    return [*lines[:kept], f"{len(lines) - kept} more lines: see --once"]


def cut(line: str, columns: int) -> str:
    """The line, or as much of it as so many columns show."""
    return line if cell_len(line) <= columns else set_cell_size(line, columns)


def parts_with_text(page: Page) -> list[Table | Facts | str]:
    """The parts that are drawn: tables without rows are not."""
    return [part for part in page if not isinstance(part, Table) or part.rows]


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
            draw_part(part, console)
        drawn.append(captured.get())
    return "\n".join(drawn)


def _least(table: Table) -> int:
    """How wide a terminal has to be for the names in a table. A narrower one continues its lines below."""
    columns = list(zip(*_used(table), strict=True))
    return sum(NARROWEST if head in TEXTS else max(map(cell_len, (head, *cells))) for head, *cells in columns) + (
        GAP * len(columns)
    )


def draw_part(part: Table | Facts | str, console: Console) -> None:
    """Draw one part of a page on a terminal that is wide enough for it."""
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
