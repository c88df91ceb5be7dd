"""Long texts made short."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from perdure.wire.truncation import CUT, fitting, shortened

texts = st.text(max_size=300)
rooms = st.integers(0, 400)


def size(text: str) -> int:
    return len(json.dumps(text)) - 2


@given(texts, rooms)
def test_it_fits_once_escaped_and_is_whole_where_there_is_room(text: str, room: int) -> None:
    kept = fitting(text, room)
    assert size(kept) <= room
    assert kept == text or size(text) > room


@given(texts, st.integers(60, 400))
@example("head " + "x" * 500 + " end", 60)
@example("\x00" * 300, 60)
def test_no_more_is_left_out_than_needed_and_both_ends_are_kept(text: str, room: int) -> None:
    kept = fitting(text, room)
    if kept == text:
        return
    head, _, end = kept.partition(CUT)
    assert head
    assert end
    assert text.startswith(head)
    assert text.endswith(end)
    assert size(kept) > room - 2 * 12  # each end may lack one character, of twelve bytes at most


@given(texts, rooms)
def test_it_is_never_longer_than_asked(text: str, room: int) -> None:
    kept = shortened(text, room)
    assert len(kept) == min(len(text), room)
    assert kept == text or len(text) > room


def test_the_head_that_names_the_cause_and_the_end_that_names_the_place_are_kept() -> None:
    text = "cannot list log/ of s3://bucket: " + "x" * 5000 + "\nValueError: boom"
    for kept in (shortened(text, 200), fitting(text, 200)):
        assert kept.startswith("cannot list log/ of s3://bucket")
        assert kept.endswith("ValueError: boom")
