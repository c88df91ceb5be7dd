"""The picture of a timeline has a place for each moment, says all it draws in words, and needs nothing but itself."""

from __future__ import annotations

import asyncio
import itertools
import re
from datetime import timedelta
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure_operator.api.status import Takeover
from perdure_operator.cli.kubectl.timeline import EntryKind, RunSpan, Timeline, TimelineEntry, Totals, timeline
from perdure_operator.cli.kubectl.timeline_picture import DARK, LIGHT, picture
from perdure_operator.cluster.protocol import EVENTS
from tests.support.raw import NOW
from tests.support.stage import Stage
from tests.unit.operator.cli.kubectl.seen import eventful, seen

SVG = "{http://www.w3.org/2000/svg}"


def story_of(stage: Stage) -> Timeline:
    return timeline(seen(stage), asyncio.run(stage.cluster.list(EVENTS, "ns")))


def drawn(found: Timeline) -> Element:
    return fromstring(picture(found, NOW + timedelta(hours=2)))  # noqa: S314


def bars(root: Element) -> list[Element]:
    return [one for one in root.findall(f"{SVG}rect") if one.find(f"{SVG}title") is not None]


def titles(root: Element) -> list[str]:
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}title")]


def texts(root: Element) -> list[str]:
    return ["".join(one.itertext()) for one in root.findall(f"{SVG}text")]


def test_runs_moves_pauses_saves_and_losses_of_a_job_are_drawn_and_said() -> None:
    found = story_of(eventful())
    root = drawn(found)
    assert [one.get("class") for one in bars(root)] == ["start", "live", "live", "recreate"]
    edges = [(float(one.get("x", "")), float(one.get("width", ""))) for one in bars(root)]
    assert all(left + width <= following for (left, width), (following, _) in itertools.pairwise(edges))
    said = titles(root)
    for words in ("training stood still for 0.06s", "steps lost: 30", "saved by then: step 61200"):
        assert words in said
    assert {"node n2 is cordoned", "run 2, live", "0.09s", "30", "61200", "none known"} <= set(texts(root))
    description = "".join(root.find(f"{SVG}desc").itertext())  # type: ignore[union-attr]
    assert "Run 4 of 2 members, recreate; 30 steps lost; it is on." in description
    assert len(re.findall(r"Run \d", description)) == len(found.runs)


def test_a_run_of_which_nobody_knows_when_it_ended_is_drawn_so_and_one_that_never_trained_too() -> None:
    runs = [
        RunSpan(run=1, how=Takeover.START, size=2, began=NOW),
        RunSpan(run=2, how=Takeover.NEVER, size=2, began=NOW + timedelta(60), ended=NOW + timedelta(61)),
        RunSpan(run=3, how=Takeover.LIVE, size=2, began=NOW + timedelta(61), on=True),
    ]
    found = story_with([entry("x", at=0)]).model_copy(update={"runs": tuple(runs)})
    assert [one.get("class") for one in bars(drawn(found))] == ["start until-unknown", "never", "live"]


HOSTILE = "</svg><script>alert(1)</script> \x1b[31m\u202e \x00 & \"'"


def entry(what: str, *, at: float, kind: EntryKind = EntryKind.EVENT) -> TimelineEntry:
    return TimelineEntry(time=NOW + timedelta(seconds=at), kind=kind, what=what, details=what)


def story_with(entries: list[TimelineEntry]) -> Timeline:
    return Timeline(namespace="ns", name="digits", entries=tuple(entries), totals=Totals())


def test_markup_and_controls_in_any_text_are_words_or_nothing() -> None:
    run = RunSpan(run=1, how=Takeover.LIVE, size=2, began=NOW, cause=HOSTILE, on=True)
    story = story_with([entry(HOSTILE, at=0), entry(HOSTILE, at=900, kind=EntryKind.MEMBER)])
    found = story.model_copy(update={"namespace": HOSTILE, "name": HOSTILE, "runs": (run,)})
    root = drawn(found)
    assert "script" not in {one.tag.removeprefix(SVG) for one in root.iter()}
    assert any("</svg><script>alert(1)</script> [31m & \"'" in words for words in titles(root))
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", picture(found, NOW))


@given(st.text(), st.sampled_from(EntryKind))
def test_whatever_a_text_holds_the_picture_is_well_formed(text: str, kind: EntryKind) -> None:
    run = RunSpan(run=1, how=Takeover.LIVE, size=2, began=NOW, cause=text, on=True)
    drawn(story_with([entry(text, at=0, kind=kind)]).model_copy(update={"runs": (run,), "name": text}))


@given(st.lists(st.floats(0, 1e8), min_size=1, max_size=60))
def test_moments_keep_their_order_and_stay_apart_however_near_or_far(moments: list[float]) -> None:
    root = drawn(story_with([entry("x", at=at) for at in moments]))
    marks = [one for one in root.findall(f"{SVG}path") if one.get("class") == "mark"]
    places = sorted(float(re.findall(r"M([0-9.]+) ", one.get("d", ""))[0]) for one in marks)
    assert len(places) == len({(NOW + timedelta(seconds=at)).replace(microsecond=0) for at in moments})
    assert all(later - earlier >= 15.9 for earlier, later in itertools.pairwise(places))
    assert places[-1] < float(root.get("width", ""))


def test_it_refers_to_nothing_outside_itself() -> None:
    text = picture(story_of(eventful()), NOW)
    assert not re.search(r"href|url\(|@import|src=|<script", text)
    assert set(re.findall(r"[a-z]+://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}


def test_nothing_is_drawn_of_a_job_of_which_nothing_is_known() -> None:
    assert picture(story_with([]), NOW) == ""


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_can_be_read_on_its_ground(colors: dict[str, str]) -> None:
    assert LIGHT.keys() == DARK.keys()
    on_ground = {name: contrast(colors[name], colors["ground"]) for name in colors.keys() - {"ground", "line"}}
    assert min(on_ground.values()) >= 4.5, on_ground  # WCAG 2.2, AA; a bar's text has the ground's color


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colors."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
