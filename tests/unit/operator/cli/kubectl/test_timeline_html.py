"""The page of a timeline shows each entry in words, obeys nobody's text, and asks for nothing outside itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from perdure_operator.api.status import Takeover
from perdure_operator.cli.kubectl.timeline import EntryKind, RunSpan, Timeline
from perdure_operator.cli.kubectl.timeline_html import html_page
from tests.support.raw import NOW
from tests.unit.operator.cli.kubectl.seen import eventful
from tests.unit.operator.cli.kubectl.test_timeline_picture import HOSTILE, entry, story_of, story_with


class Parsed(HTMLParser):
    """The elements of a page, and the cells of its table."""

    VOID = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags = list[str]()
        self.attributes = list[tuple[str, str, str | None]]()
        self.texts = list[str]()
        self.rows = list[list[str]]()
        self.open = list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def values(self, tag: str, name: str) -> list[str | None]:
        return [value for of, attribute, value in self.attributes if (of, attribute) == (tag, name)]


def test_each_entry_is_a_row_with_its_time_and_its_words_and_a_quiet_time_is_said() -> None:
    stage = eventful()
    found = story_of(stage)
    parsed = Parsed(html_page(found, stage.now))
    head, *rows = parsed.rows
    assert head == ["Time", "What", "Details"]
    told = [row for row in rows if row[0]]
    assert [row[1] for row in told] == [one.what for one in found.entries]
    warned = {row[1] for row in told if row[2].startswith("Warning: ")}
    assert warned == {"run 4", "InfrastructureFailure"}
    assert [row[1] for row in rows if not row[0]] == ["10m later", "60m later"]
    assert any("training stood still for 0.06s" in row[2] and "because node n2 is cordoned" in row[2] for row in told)
    assert parsed.values("time", "datetime")[1:] == [one.time.isoformat() for one in found.entries]


def test_the_page_says_its_language_and_title_and_names_what_a_screen_reader_jumps_to() -> None:
    stage = eventful()
    parsed = Parsed(html_page(story_of(stage), stage.now))
    assert parsed.values("html", "lang") == ["en"]
    assert {"title", "main", "h1", "h2", "figure", "figcaption", "table"} <= set(parsed.tags)
    assert set(parsed.values("th", "scope")) == {"col", "row"}
    assert parsed.values("svg", "role") == ["img"]
    named, described = parsed.values("svg", "aria-labelledby"), parsed.values("svg", "aria-describedby")
    assert (named, described) == (["timeline-title"], ["timeline-words"])
    assert {value for _, name, value in parsed.attributes if name == "id"} == {*named, *described}
    assert parsed.values("figure", "tabindex") == ["0"]  # a wide picture is scrolled by keys, too


def test_it_asks_for_nothing_and_its_policy_forbids_a_browser_to() -> None:
    stage = eventful()
    page = html_page(story_of(stage), stage.now)
    parsed = Parsed(page)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(parsed.tags)
    assert not re.search(r"url\(|@import|javascript:", page)
    assert {name for _, name, _ in parsed.attributes} & {"href", "src", "srcset", "style", "action"} == set()
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'" in parsed.values(
        "meta", "content"
    )


def test_it_is_light_or_dark_as_the_reader_wants() -> None:
    page = html_page(story_of(eventful()), NOW)
    assert "color-scheme:light dark" in page
    assert page.count("prefers-color-scheme:dark") == 2


def hostile_story(text: str) -> Timeline:
    run = RunSpan(run=1, how=Takeover.LIVE, size=2, began=NOW, cause=text, on=True)
    entries = [entry(text, at=60.0 * number, kind=kind) for number, kind in enumerate(EntryKind)]
    return story_with(entries).model_copy(update={"namespace": text, "name": text, "runs": (run,)})


def test_markup_and_controls_in_any_text_are_words_or_nothing() -> None:
    page = html_page(hostile_story(HOSTILE), NOW + timedelta(hours=1))
    parsed, harmless = Parsed(page), Parsed(html_page(hostile_story("x"), NOW + timedelta(hours=1)))
    assert parsed.tags == harmless.tags
    assert names_of(parsed) == names_of(harmless)
    words = "</svg><script>alert(1)</script> [31m & \"'"
    assert [row[1:] for row in parsed.rows if row[0].endswith("Z")] == [[words, words]] * len(EntryKind)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", page)


def names_of(parsed: Parsed) -> Sequence[tuple[str, str]]:
    return [(tag, name) for tag, name, _ in parsed.attributes]


@given(st.text())
def test_whatever_a_text_holds_the_page_has_the_same_elements(text: str) -> None:
    assert set(Parsed(html_page(hostile_story(text), NOW)).tags) == set(Parsed(html_page(hostile_story("x"), NOW)).tags)


def test_a_job_of_which_nothing_is_known_has_a_page_that_says_so() -> None:
    parsed = Parsed(html_page(story_with([]), NOW))
    assert "Nothing has happened yet, as far as status and events tell." in parsed.texts
    assert "table" not in parsed.tags
