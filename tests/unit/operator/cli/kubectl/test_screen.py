"""A page fits a terminal, has whole lines in a pipe, and reads no markup in anybody's text."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest

from perdure_operator.cli.kubectl.page import Facts, Page, Table
from perdure_operator.cli.kubectl.screen import LiveScreen, cut, draw, fitting

NARROW = 100


def drawn(page: Page, columns: int | None = NARROW) -> str:
    out = io.StringIO()
    draw(page, out, columns=columns)
    return out.getvalue()


@pytest.mark.parametrize("columns", [NARROW, None])
def test_markup_links_and_controls_are_shown_as_they_are_or_not_at_all(columns: int | None) -> None:
    hostile = "[red]x[/red] [link=http://x]y[/link] :smile: \x1b]0;title\x07"
    text = drawn((Table(("A",), ((hostile,),)), Facts((("B", hostile),)), hostile), columns)
    assert text.count("[red]x[/red] [link=http://x]y[/link] :smile: ]0;title") == 3
    assert "\x1b" not in text


def test_long_texts_are_wrapped_on_a_terminal_and_nothing_is_cut() -> None:
    words = " ".join(f"w{number:02}" for number in range(60))
    text = drawn((Table(("NAME", "MESSAGE"), (("digits", words),)), Facts((("Label", words),))))
    assert max(map(len, text.splitlines())) <= NARROW
    assert sum(text.split().count(f"w{number:02}") for number in range(60)) == 120


def test_names_stay_whole_on_a_terminal_and_a_list_of_jobs_has_a_line_for_each() -> None:
    names = ("team-of-the-large-language-models", "llama-70b-pretrain-on-everything")
    rows = tuple((*names, f"ip-10-0-{number}-7.eu-central-1.compute.internal is cordoned") for number in range(3))
    lines = drawn((Table(("NAMESPACE", "NAME", "DISRUPTED BY"), rows, cut=True),)).splitlines()
    assert len(lines) == 1 + len(rows)
    assert all(line.split()[:2] == list(names) and line.endswith("…") for line in lines[1:])
    assert max(map(len, lines)) <= NARROW


def test_names_stay_whole_where_a_terminal_is_too_narrow_for_them() -> None:
    names = ("team-of-the-large-language-models", "llama-70b-pretrain-on-everything")
    text = drawn((Table(("NAMESPACE", "NAME", "WAITS FOR"), ((*names, "a long text " * 9),), cut=True), "x " * 30), 50)
    assert text.splitlines()[1].split()[:2] == list(names)
    assert max(map(len, text.splitlines()[2:])) <= 50


def test_a_pipe_gets_each_row_in_one_line_with_all_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = "word " * 60 + "end"
    text = drawn(
        (Table(("NAME", "MESSAGE"), (("a", words), ("木", words)), cut=True), Facts((("Label", words),))), None
    )
    assert text.splitlines() == ["NAME  MESSAGE", f"a     {words}", f"木    {words}", "", f"Label  {words}"]


def test_columns_without_any_text_and_tables_without_rows_are_left_out() -> None:
    page = (Table(("A", "B"), (("1", ""), ("2", ""))), Table(("C",), (), title="none"), "end")
    assert drawn(page) == drawn(page, None) == "A\n1\n2\n\nend\n"


def test_a_live_screen_shows_each_page_in_place_and_gives_the_terminal_back() -> None:
    out, sizes = io.StringIO(), [(40, 10), (3, 2)]
    with LiveScreen(out, lambda: sizes.pop(0)) as screen:
        screen.show(("first",))
        first = out.getvalue()
        screen.show((Table(("A",), (("longer",), ("b",), ("c",))),))
    assert first == "\x1b[?1049h\x1b[?25l\x1b[Hfirst\x1b[K\x1b[J"
    assert out.getvalue() == f"{first}\x1b[HA\x1b[K\r\n3 m\x1b[K\x1b[J\x1b[?25h\x1b[?1049l"


def test_a_terminal_is_given_back_after_an_error() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="x"), LiveScreen(out):
        raise ValueError("x")
    assert out.getvalue().endswith("\x1b[?25h\x1b[?1049l")


def test_a_terminal_is_given_back_to_who_ends_it_by_a_signal() -> None:
    code = """if True:
        import asyncio, os, signal, sys
        from perdure_operator.cli.kubectl.screen import LiveScreen, ended_by
        async def shown():
            with LiveScreen(sys.stdout), ended_by(signal.SIGTERM):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.Event().wait()
        try:
            asyncio.run(shown())
        except asyncio.CancelledError:
            os.kill(os.getpid(), signal.SIGTERM)
    """
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert done.stdout.endswith("\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(
    ("rows", "shown"),
    [(3, ["a", "b", "c"]), (2, ["a", "2 more lines: see --once"]), (1, ["3 more lines: see --once"])],
)
def test_what_does_not_fit_is_counted(rows: int, shown: list[str]) -> None:
    assert fitting(["a", "b", "c"], rows) == shown


@pytest.mark.parametrize(("line", "shown"), [("abc", "abc"), ("abcd", "abc"), ("漢字", "漢 ")])
def test_a_line_is_cut_by_what_its_characters_take(line: str, shown: str) -> None:
    assert cut(line, 3) == shown
