"""The picture shows every member and every step in sight, and needs nothing but itself."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring

from e2e.demo.picture import drawn, rows
from e2e.harness.drain import Drained
from e2e.harness.evidence import gaps
from tests.unit.e2e.harness.builders import handed_over
from tests.unit.e2e.harness.watched import ended, leaving, pod, ranked

SVG = "{http://www.w3.org/2000/svg}"
TRAINING = handed_over()
HISTORY = [
    pod(999, "a", assignment=ranked(1, 0)),
    pod(999, "b<&>", assignment=ranked(1, 1)),
    pod(1001, "c"),
    pod(1002, "b<&>", assignment=leaving(2)),
    pod(1003, "a", assignment=ranked(2, 0)),
    pod(1003, "c", assignment=ranked(2, 1)),
    pod(1004, "b<&>", outcome=ended(1, "handed-over")),
    pod(1004, "bystander"),
]
DRAIN = Drained("n1", 0, 1001.0, 1004.5, "")


def picture() -> Element:
    (gap,) = gaps(TRAINING.trace)
    return fromstring(drawn(HISTORY, TRAINING.trace, gap, DRAIN))  # noqa: S314


def test_every_member_has_a_row_with_the_steps_of_its_ranks() -> None:
    found = {
        row.name: [(step.run, step.rank, step.step) for step in row.steps] for row in rows(HISTORY, TRAINING.trace)
    }
    assert found == {
        "a": [(1, 0, 1), (1, 0, 2), (1, 0, 3), (2, 0, 4)],
        "b<&>": [(1, 1, 1), (1, 1, 2), (1, 1, 3)],
        "c": [(2, 1, 4)],
    }


def test_a_tick_stands_for_each_step() -> None:
    assert len(picture().findall(f"{SVG}path")) == len(TRAINING.trace)


def test_a_name_is_text_whatever_it_holds() -> None:
    texts = [text.text for text in picture().findall(f"{SVG}text")]
    assert "b<&>" in texts
    assert "bystander" not in texts


def test_it_refers_to_nothing_outside_itself() -> None:
    (gap,) = gaps(TRAINING.trace)
    text = drawn(HISTORY, TRAINING.trace, gap, DRAIN)
    assert not re.search(r"href|url\(|@import|src=|<script", text)
    assert set(re.findall(r"[a-z]+://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_pause_lies_where_the_steps_leave_a_gap() -> None:
    (pause,) = [rect for rect in picture().findall(f"{SVG}rect") if rect.get("class") == "pause"]
    left, width = float(pause.get("x", "")), float(pause.get("width", ""))
    ticks = sorted(float(re.findall(r"M([0-9.]+) ", path.get("d", ""))[0]) for path in picture().findall(f"{SVG}path"))
    inside = [x for x in ticks if left + 0.01 < x < left + width - 0.01]
    assert width > 0
    assert inside == []
