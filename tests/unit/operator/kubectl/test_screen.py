"""A page fits a hundred columns where there is no terminal, and reads no markup in anybody's text."""

from __future__ import annotations

import io

from perdure_operator.kubectl.page import Facts, Page, Table
from perdure_operator.kubectl.screen import COLUMNS, draw


def drawn(page: Page) -> str:
    out = io.StringIO()
    draw(page, out)
    return out.getvalue()


def test_markup_links_and_controls_are_shown_as_they_are_or_not_at_all() -> None:
    hostile = "[red]x[/red] [link=http://x]y[/link] :smile: \x1b]0;title\x07"
    text = drawn((Table(("A",), ((hostile,),)), Facts((("B", hostile),)), hostile))
    assert text.count("[red]x[/red] [link=http://x]y[/link] :smile: ]0;title") == 3
    assert "\x1b" not in text


def test_long_texts_are_wrapped_and_nothing_is_cut() -> None:
    words = " ".join(f"w{number:02}" for number in range(60))
    name = "n" * 150
    text = drawn((Table(("NAME", "TEXT"), ((name, words),)), Facts((("Label", words),))))
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert sum(text.split().count(f"w{number:02}") for number in range(60)) == 120
    assert text.count("n") == len(name)


def test_columns_without_any_text_and_tables_without_rows_are_left_out() -> None:
    assert drawn((Table(("A", "B"), (("1", ""), ("2", ""))), Table(("C",), (), title="none"), "end")) == (
        "A\n1\n2\n\nend\n"
    )
