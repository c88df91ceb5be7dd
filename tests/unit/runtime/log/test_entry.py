"""Entries: exact bytes, keys that list newest first, tolerant reading, the size limit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Corrupt, UserError
from perdure.log.entry import (
    ENTRY_BYTES,
    Closed,
    Committed,
    Completed,
    Entry,
    Event,
    ImageRef,
    ManifestRef,
    ObjectRef,
    Opened,
    Refused,
    checksum,
    key_of,
    read_entry,
    seq_of,
    write_entry,
)

MANIFEST = ManifestRef("data/3/180-ab/manifest.json", 512, "0123456789abcdef")
MEMBERS = ObjectRef("members/3-ab.json", 20_000, "fedcba9876543210")
EVENTS: list[Event] = [
    Opened(4, 7),
    Opened(1, None),
    Opened(2, 7, 2, 181),
    Opened(2, 7, image=ImageRef(2, 181)),
    Opened(512, 7, image=ImageRef(2, 181), members=MEMBERS),
    Opened(512, 7, 2, 181, members=MEMBERS),
    Refused(4),
    Committed(180, 2, {"train": {"kind": "global", "consumed": 64}}, True, "drain", MANIFEST),
    Closed("no-step"),
    Completed({"epochs": 30}, 720, 30),
]
ENTRY = Entry(8, "f" * 16, "uid", 3, "a" * 32, 7, 5, "2026-01-01T00:00:00.000+00:00", EVENTS[0])


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_kind_is_read_as_it_was_written(event: Event) -> None:
    entry = replace(ENTRY, event=event)
    assert read_entry(8, write_entry(entry)) == entry


def test_an_entry_has_the_fields_the_format_names() -> None:
    body = json.loads(write_entry(replace(ENTRY, event=EVENTS[7])))
    common = {"kind", "seq", "prev", "uid", "run", "writer", "lastCommit", "lastOpened", "version", "time", "crc"}
    assert set(body) == common | {"step", "epoch", "cursors", "final", "reason", "manifest"}
    assert body["manifest"] == {"key": MANIFEST.key, "size": 512, "crc": "0123456789abcdef"}


def test_what_a_hand_over_adds_is_in_the_entry_only_where_it_says_something() -> None:
    plain = json.loads(write_entry(ENTRY))
    assert not {"takesOver", "step", "aborted", "members"} & set(plain)
    taken = json.loads(write_entry(replace(ENTRY, event=Opened(2, 7, 2, 181))))
    assert (taken["takesOver"], taken["step"]) == (2, 181)
    assert json.loads(write_entry(replace(ENTRY, event=Closed("no-step"), aborted=4)))["aborted"] == 4


def test_an_image_is_in_the_entry_of_the_run_that_begins_from_it_alone() -> None:
    assert "image" not in json.loads(write_entry(ENTRY))
    begun = json.loads(write_entry(replace(ENTRY, event=Opened(2, 7, image=ImageRef(2, 181)))))
    assert (begun["resumes"], begun["image"]) == (7, {"run": 2, "step": 181})


@pytest.mark.parametrize(("event", "refused"), [(Refused(4), 4), (Closed("no-step"), 3)], ids=["refused", "aborted"])
def test_an_entry_tells_up_to_which_number_no_run_opens(event: Event, refused: int) -> None:
    entry = replace(ENTRY, event=event, aborted=3)
    assert read_entry(8, write_entry(entry)).refused == refused


def test_an_entry_of_before_hand_overs_refuses_nothing() -> None:
    assert read_entry(8, write_entry(ENTRY)).refused == 0


def test_the_first_number_has_the_last_key() -> None:
    assert key_of(1) == "log/9999999999999998.json"


@given(st.integers(1, 10**15), st.integers(1, 10**15))
@settings(max_examples=50)
def test_keys_sort_newest_first_and_tell_their_number(a: int, b: int) -> None:
    assert seq_of(key_of(a)) == a
    assert (key_of(a) < key_of(b)) == (a > b)


@pytest.mark.parametrize(
    "key", ["log/README", "log/1.json", "log/99999999999999999.json", "log/9999999999999998.json~"]
)
def test_a_foreign_key_has_no_number(key: str) -> None:
    assert seq_of(key) is None


def rewritten(change: dict[str, object]) -> bytes:
    """The entry with other fields, and the checksum that belongs to them."""
    body = json.loads(write_entry(ENTRY)) | change
    del body["crc"]
    text = json.dumps(body).encode()
    return text[:-1] + f',"crc":"{checksum(text)}"}}'.encode()


def test_unknown_fields_are_ignored() -> None:
    assert read_entry(8, rewritten({"colour": "blue"})) == ENTRY


def test_a_newer_version_is_the_users_to_solve() -> None:
    with pytest.raises(UserError, match=r"version 2.*use a newer Perdure"):
        read_entry(8, rewritten({"version": 2}))


@pytest.mark.parametrize(
    "change",
    [{"seq": 9}, {"kind": "Guessed"}, {"run": None}, {"lastCommit": 8}, {"lastOpened": 0}, {"world": "many"}],
    ids=str,
)
def test_a_damaged_field_is_corrupt(change: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match="log entry 8"):
        read_entry(8, rewritten(change))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_flipped_bit_in_any_byte_is_corrupt(event: Event) -> None:
    data = write_entry(replace(ENTRY, event=event))
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(Corrupt, match="log entry 8"):
                read_entry(8, bytes(flipped))


@given(st.binary(max_size=64))
@settings(max_examples=100)
def test_any_bytes_are_an_entry_or_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        read_entry(8, data)


@given(st.integers(0, 4000))
@settings(max_examples=50)
def test_a_torn_entry_is_corrupt(length: int) -> None:
    data = write_entry(ENTRY)
    with pytest.raises(Corrupt):
        read_entry(8, data[: length % len(data)])


def test_an_entry_of_more_than_4_kib_is_refused_with_the_remedy() -> None:
    event = Committed(1, 0, {"train": "x" * ENTRY_BYTES}, False, "", MANIFEST)
    with pytest.raises(UserError, match="at most 4096 are allowed: keep cursors small"):
        write_entry(replace(ENTRY, event=event))


def test_cursors_that_are_not_json_are_refused() -> None:
    with pytest.raises(UserError, match=r"not plain JSON.*check cursors"):
        write_entry(replace(ENTRY, event=Committed(1, 0, {"train": {1, 2}}, False, "", MANIFEST)))
