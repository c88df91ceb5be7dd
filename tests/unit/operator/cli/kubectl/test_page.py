"""Texts of users and nodes are shown in one line, and never obeyed; times are as kubectl writes them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure_operator.cli.kubectl.page import ago, clock, deadline, duration, first_part, printable, printable_line
from tests.support.raw import NOW


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with ü and 漢", "plain, with ü and 漢"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred\x1b[0m", "[31mred [0m"),
        ("\x9b2J and \x00", "2J and"),
        ("turned \u202earound", "turned around"),
        ("hidden\u200bspace", "hidden space"),
    ],
)
def test_a_text_has_nothing_that_a_terminal_obeys(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  File\t x ", "  File\t x "),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07y \x1b(B", "red y (B"),
        ("10%\r50%\r100%\r", "100%"),
        ("windows\r", "windows"),
        ("turned \u202earound \x9b2J\x00", "turned around 2J"),
    ],
)
def test_a_line_of_a_program_keeps_its_spaces_and_of_what_was_overwritten_the_last(line: str, shown: str) -> None:
    assert printable_line(line) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600 + 60, "3h1m"),
        (48 * 3600, "2d"),
    ],
)
def test_a_span_has_few_characters(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_time_has_a_date_on_another_day_alone() -> None:
    assert clock(NOW, NOW) == "03:04:05Z"
    assert clock(NOW + timedelta(days=1), NOW) == "2026-01-03 03:04:05Z"
    assert (clock(None, NOW), ago(None, NOW), ago(NOW, NOW + timedelta(seconds=5))) == ("", "", "5s")


def test_a_table_has_the_first_part_of_a_message() -> None:
    assert first_part("one; two; three") == "one"


def test_an_end_says_how_far_away_it_is_and_one_that_passed_asks_for_the_operator() -> None:
    seconds = {30: "03:04:35Z, in 30s", 0: "03:04:05Z, now", -59: "03:03:06Z, now"}
    assert {left: deadline(NOW + timedelta(seconds=left), NOW) for left in seconds} == seconds
    assert deadline(NOW - timedelta(hours=1), NOW) == "02:04:05Z, 60m ago"
    asking = deadline(NOW - timedelta(hours=1), NOW, whom="an operator")
    assert asking == "02:04:05Z, 60m ago: is an operator running?"
    assert deadline(None, NOW) == ""
