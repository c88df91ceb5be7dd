"""Reports, answers and channels: what one side writes the other reads, within limits, whatever a container sends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.wire import LARGEST, ContractError, UnsupportedVersion
from perdure.wire.report import (
    AWAITED_KEPT,
    CHANNEL_BYTES,
    REASON_CHARACTERS,
    REPORT_BYTES,
    Channel,
    DeathCost,
    Report,
    ReportAnswer,
    Standing,
    TrainerPhase,
    read_answer,
    read_channel,
    read_report,
    write_answer,
    write_channel,
    write_report,
)

START = "0123456789abcdef" * 2
naturals = st.none() | st.integers(0, LARGEST)
amounts = st.none() | st.integers(0, LARGEST * 100).map(lambda hundredths: hundredths / 100)
reports = st.builds(
    Report, start=st.text("0123456789abcdef", min_size=8, max_size=64), sequence=st.integers(1, LARGEST),
    phase=st.none() | st.sampled_from(TrainerPhase), run=naturals, rank=naturals, step=naturals, epoch=naturals,
    samples_per_second=amounts, step_seconds=amounts, commit_step=naturals, commit_at=amounts,
    save_stall_seconds=amounts, store_failing_since=amounts, store_why=st.text(max_size=400),
    awaited=st.lists(st.integers(0, LARGEST), max_size=20).map(tuple), required_grace_seconds=amounts,
    live=st.none() | st.booleans(), live_why=st.text(max_size=400), remaining_seconds=amounts,
    progress=st.none() | st.sampled_from([0.0, 0.125, 1.0]), death_cost=st.none() | st.sampled_from(DeathCost),
    death_steps=naturals, hangs_since=amounts, hangs_in=st.none() | st.sampled_from(Standing),
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=6,
)
MOST = LARGEST - 0.25
FULLEST = Report(
    "f" * 64, LARGEST, TrainerPhase.HANDING_OVER, run=LARGEST, rank=LARGEST, step=LARGEST, epoch=LARGEST,
    samples_per_second=MOST, step_seconds=MOST, commit_step=LARGEST, commit_at=MOST, save_stall_seconds=MOST,
    store_failing_since=MOST, store_why="\U0001f525" * 400, awaited=(LARGEST,) * 20, required_grace_seconds=MOST,
    live=False, live_why="\U0001f525" * 400, progress=0.123, remaining_seconds=MOST,
    death_cost=DeathCost.UNTIL_MIRRORED, death_steps=LARGEST, hangs_since=MOST, hangs_in=Standing.WAITS_FOR_RANKS,
)  # fmt: skip
"""The longest that can be written."""


@given(reports)
@example(FULLEST)
def test_a_written_report_is_read_and_no_longer_than_allowed(report: Report) -> None:
    text = write_report(report)
    found = read_report(text)
    assert len(text) <= REPORT_BYTES
    assert write_report(found) == text
    assert replace(found, store_why="", live_why="", awaited=()) == replace(
        report, store_why="", live_why="", awaited=()
    )
    assert found.awaited == report.awaited[:AWAITED_KEPT]


@given(
    st.dictionaries(st.sampled_from(["step", "epoch", "commit_step"]), st.integers()),
    st.dictionaries(st.sampled_from(["samples_per_second", "remaining_seconds", "progress"]), st.floats()),
    st.lists(st.integers(), max_size=3).map(tuple),
)
@example({"step": LARGEST + 1}, {"remaining_seconds": 3e19}, ())
@example({}, {"samples_per_second": float("nan")}, (-1, 5))
def test_numbers_that_no_reader_takes_are_left_out(
    counts: dict[str, Any], figures: dict[str, Any], awaited: tuple[int, ...]
) -> None:
    found = read_report(write_report(Report(START, 1, TrainerPhase.TRAINING, awaited=awaited, **counts, **figures)))
    assert found.phase is TrainerPhase.TRAINING
    assert all(getattr(found, name) == (value if 0 <= value <= LARGEST else None) for name, value in counts.items())
    assert found.awaited == tuple(rank for rank in awaited if 0 <= rank <= LARGEST)


@given(st.dictionaries(st.sampled_from(list(json.loads(write_report(FULLEST)))), anything))
def test_whatever_a_container_sends_is_a_report_that_can_be_written_again_or_an_error(body: dict[str, Any]) -> None:
    try:
        found = read_report(json.dumps({"v": 1, "start": START, "sequence": 1, **body}))
    except ContractError:
        return
    assert len(write_report(found)) <= REPORT_BYTES
    assert all(character.isprintable() for character in found.store_why + found.live_why if character.isascii())
    assert len(found.store_why) <= REASON_CHARACTERS


@pytest.mark.parametrize(
    "body",
    [
        {"start": "a host's name"},
        {"start": "ab"},
        {"sequence": 0},
        {"sequence": 1.0},
        {"step": -1},
        {"step": True},
        {"step_seconds": float("nan")},
        {"step_seconds": float("inf")},
        {"step_seconds": -0.1},
        {"step_seconds": "1"},
        {"awaited": "0-3"},
        {"awaited": [-1]},
        {"store_why": 5},
        {"live": "no"},
    ],
    ids=str,
)
def test_a_value_that_no_agent_writes_makes_a_report_unreadable(body: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match=f"field {next(iter(body))} of Report"):
        read_report(json.dumps({"v": 1, "start": START, "sequence": 1, **body}))


def test_a_phase_and_a_field_of_a_newer_agent_leave_the_rest_readable() -> None:
    words = {"phase": "dreaming", "dreams": 3, "death_cost": "a dream"}
    text = json.dumps({"v": 1, "start": START, "sequence": 7, "step": 5, **words})
    assert read_report(text) == Report(START, 7, None, step=5)


@pytest.mark.parametrize("writes", ["an agent", "a container"])
def test_a_reason_is_one_line_without_control_characters(writes: str) -> None:
    why = "\x1b[31mS3 says\r\nno\u202e" + "x" * 300 + "\nthe end"
    text = json.dumps({"v": 1, "start": START, "sequence": 1, "store_why": why})
    if writes == "an agent":
        text = write_report(Report(START, 1, TrainerPhase.TRAINING, store_why=why))
    found = read_report(text).store_why
    assert found.startswith(" [31mS3 says no ")
    assert found.endswith("x the end")
    assert " [...] " in found
    assert len(found) <= REASON_CHARACTERS


@pytest.mark.parametrize("read", [read_report, read_answer, read_channel])
@pytest.mark.parametrize("text", ["", "null", "[1]", "[" * 3000, '{"v": "1"}', '{"v": 1}', "5", '{"v":1'])
def test_what_is_none_of_the_three_is_an_error(read: Any, text: str) -> None:
    with pytest.raises(ContractError):
        read(text)


@pytest.mark.parametrize("read", [read_report, read_answer, read_channel])
def test_another_major_version_is_told_apart(read: Any) -> None:
    with pytest.raises(UnsupportedVersion):
        read('{"v": 2}')


@pytest.mark.parametrize(("said", "kept"), [(5, 5.0), (0, 1.0), (0.2, 1.0), (1e9, 300.0), (12.5, 12.5)])
def test_the_time_to_the_next_report_is_kept_within_its_bounds(said: float, kept: float) -> None:
    assert read_answer(write_answer(ReportAnswer(said))) == ReportAnswer(kept)


@pytest.mark.parametrize(
    "url", ["https://perdure-reports.perdure.svc:8443", "https://[fd00::1]:9", "https://10.0.0.1:1"]
)
def test_a_written_channel_is_read(url: str) -> None:
    channel = Channel(url, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" * 3)
    assert read_channel(write_channel(channel)) == channel


@pytest.mark.parametrize(
    "url", ["http://a:1", "https://a", "https://a:b", "https://user@a:1", "https://a:1/path", "https://a:1\r\nx: y", ""]
)
def test_a_channel_to_anything_but_a_host_and_its_port_by_tls_is_refused(url: str) -> None:
    with pytest.raises(ContractError, match="is not https://host:port"):
        write_channel(Channel(url, "pem"))


def test_a_channel_longer_than_an_annotation_should_be_is_refused() -> None:
    with pytest.raises(ContractError, match="longer than"):
        write_channel(Channel("https://a:1", "x" * CHANNEL_BYTES))
