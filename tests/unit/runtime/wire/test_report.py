"""Reports, answers and channels: what one side writes the other reads, within limits, whatever a container sends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.wire import LARGEST, ContractError, UnsupportedVersion
from perdure.wire.account import RunAccount
from perdure.wire.report import (
    CHANNEL_BYTES,
    REASON_CHARACTERS,
    REPORT_BYTES,
    VALUE_NAME,
    VALUES_KEPT,
    Channel,
    DeathCost,
    HandoverAct,
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
from perdure.wire.scaling import LARGEST_COUNT, ScalingHints, write_scaling
from tests.support.hints import HINTS

START = "0123456789abcdef" * 2
naturals = st.none() | st.integers(0, LARGEST)
amounts = st.none() | st.integers(0, LARGEST * 100).map(lambda hundredths: hundredths / 100)
reports = st.builds(
    Report, start=st.text("0123456789abcdef", min_size=8, max_size=64), sequence=st.integers(1, LARGEST),
    phase=st.none() | st.sampled_from(TrainerPhase), run=naturals, rank=naturals, step=naturals, epoch=naturals,
    samples_per_second=amounts, step_seconds=amounts, commit_step=naturals, commit_at=amounts,
    save_stall_seconds=amounts, store_failing_since=amounts, store_why=st.text(max_size=400),
    required_grace_seconds=amounts,
    live=st.none() | st.booleans(), live_why=st.text(max_size=400), remaining_seconds=amounts,
    progress=st.none() | st.sampled_from([0.0, 0.125, 1.0]), death_cost=st.none() | st.sampled_from(DeathCost),
    death_steps=naturals, hangs_since=amounts, hangs_in=st.none() | st.sampled_from(Standing),
    hang_may_be_work=st.none() | st.booleans(), watched=st.none() | st.booleans(),
    own_share=st.none() | st.sampled_from([0.0, 0.125, 1.0]),
    data_share=st.none() | st.sampled_from([0.0, 0.125, 1.0]), handover_act=st.none() | st.sampled_from(HandoverAct),
    values=st.dictionaries(st.from_regex(VALUE_NAME, fullmatch=True), st.integers(-999, 999).map(lambda n: n / 8)),
    batch=naturals, scaling=st.none() | st.just(HINTS),
    accounts=st.just(()) | st.just((RunAccount(6, 0, 8, productive=1.5), RunAccount(7, 8, 9, live=True, data=0.25))),
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=6,
)
MOST = LARGEST - 0.25
FULL_ACCOUNT = RunAccount(
    *(LARGEST, LARGEST, LARGEST, True, MOST, MOST, MOST, MOST, MOST, MOST, MOST, MOST, MOST, MOST),
    unsaved_steps=LARGEST,
    joined=True,
)
FULL_HINTS = ScalingHints(
    *(LARGEST_COUNT, LARGEST_COUNT, LARGEST_COUNT, LARGEST_COUNT, False),
    *(1.23456e-300, 1.23456e-300, 1.23456e-300, 1.23456e-300, 1.23456e-300, 1.23456e-300, 1.23456e-300),
    LARGEST_COUNT,
)
FULLEST = Report(
    "f" * 64, LARGEST, TrainerPhase.HANDING_OVER, run=LARGEST, rank=LARGEST, step=LARGEST, epoch=LARGEST,
    samples_per_second=MOST, step_seconds=MOST, commit_step=LARGEST, commit_at=MOST, save_stall_seconds=MOST,
    store_failing_since=MOST, store_why="\U0001f525" * 400, required_grace_seconds=MOST,
    live=False, live_why="\U0001f525" * 400, progress=0.123, remaining_seconds=MOST,
    death_cost=DeathCost.UNTIL_MIRRORED, death_steps=LARGEST, hangs_since=MOST, hangs_in=Standing.WAITS_FOR_RANKS,
    hang_may_be_work=False, watched=False, own_share=0.123,
    data_share=0.123, handover_act=HandoverAct.CONNECTING,
    values={f"{'x' * 31}{number}": -1.23456e-300 for number in range(9)},
    accounts=(FULL_ACCOUNT, FULL_ACCOUNT),
    batch=LARGEST, scaling=FULL_HINTS,
)  # fmt: skip
"""The longest that can be written."""


@given(reports)
@example(FULLEST)
def test_a_written_report_is_read_and_no_longer_than_allowed(report: Report) -> None:
    text = write_report(report)
    found = read_report(text)
    assert len(text) <= REPORT_BYTES
    assert write_report(found) == text
    cut: dict[str, Any] = {"store_why": "", "live_why": "", "values": {}, "accounts": ()}
    assert replace(found, **cut) == replace(report, **cut)
    assert found.accounts == report.accounts[len(report.accounts) - len(found.accounts) :]
    assert list(found.values.items()) == list(report.values.items())[: len(found.values)]
    assert len(found.values) == min(VALUES_KEPT, len(report.values)) or len(text) > REPORT_BYTES - 52


@given(
    st.dictionaries(st.sampled_from(["step", "epoch", "commit_step"]), st.integers()),
    st.dictionaries(st.sampled_from(["samples_per_second", "remaining_seconds", "progress"]), st.floats()),
)
@example({"step": LARGEST + 1}, {"remaining_seconds": 3e19})
@example({}, {"samples_per_second": float("nan")})
def test_numbers_that_no_reader_takes_are_left_out(counts: dict[str, Any], figures: dict[str, Any]) -> None:
    found = read_report(write_report(Report(START, 1, TrainerPhase.TRAINING, **counts, **figures)))
    assert found.phase is TrainerPhase.TRAINING
    assert all(getattr(found, name) == (value if 0 <= value <= LARGEST else None) for name, value in counts.items())


def test_where_there_is_no_room_for_all_the_older_account_gives_way_first() -> None:
    long: dict[str, Any] = {"store_why": "x" * REASON_CHARACTERS, "live_why": "\u00fc" * REASON_CHARACTERS}
    values = {f"{'x' * 31}{number}": -1.23456e-300 for number in range(VALUES_KEPT)}
    report = Report(
        START, 1, scaling=HINTS, values=values, accounts=(replace(FULL_ACCOUNT, run=7), FULL_ACCOUNT), **long
    )
    found = read_report(write_report(report))
    assert (found.scaling, found.values, found.accounts) == (HINTS, values, (FULL_ACCOUNT,))


def test_hints_that_no_reader_takes_are_not_written() -> None:
    unknown = Report(START, 1, scaling=replace(HINTS, alpha=float("nan")))
    assert "scaling" not in json.loads(write_report(unknown))


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": float("nan")}, {"beta": float("inf")}, {"c_out": -0.1}, {"noise": None}, {"profiled": 0},
        {"most_batch": 2**31 + 1}, {"initial_batch": 8192}, {"accumulates": 1}, {"alpha": 0, "beta": 0},
    ],
    ids=str,
)  # fmt: skip
def test_hints_with_one_number_out_of_its_range_are_no_hints_and_the_report_counts(wrong: dict[str, Any]) -> None:
    body = {"v": 1, "start": START, "sequence": 7, "step": 5, "scaling": {**(write_scaling(HINTS) or {}), **wrong}}
    assert read_report(json.dumps(body)) == Report(START, 7, None, step=5)


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
        {"store_why": 5},
        {"live": "no"},
        {"values": [1]},
    ],
    ids=str,
)
def test_a_value_that_no_agent_writes_makes_a_report_unreadable(body: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match=f"field {next(iter(body))} of Report"):
        read_report(json.dumps({"v": 1, "start": START, "sequence": 1, **body}))


def test_a_phase_and_a_field_of_a_newer_agent_leave_the_rest_readable() -> None:
    words = {"phase": "dreaming", "dreams": 3, "death_cost": "a dream", "handover_act": "dreaming"}
    text = json.dumps({"v": 1, "start": START, "sequence": 7, "step": 5, **words})
    assert read_report(text) == Report(START, 7, None, step=5)


@pytest.mark.parametrize("writes", ["an agent", "a container"])
def test_of_a_scripts_values_only_finite_numbers_with_short_plain_names_are_reported(writes: str) -> None:
    values = {
        "loss": 0.123456789, "eval/f1.macro-x": -3, "huge": 1e300, "": 1, "learning rate": 1, "loss\n": 1, "l\u00f6": 1,
        "x" * 33: 1, "[red]": 1, "text": "0.5", "good": True, "none": None, "nan": float("nan"), "inf": float("inf"),
        "beyond": 10**400,
    }  # fmt: skip
    text = json.dumps({"v": 1, "start": START, "sequence": 1, "values": values})
    if writes == "an agent":
        text = write_report(Report(START, 1, TrainerPhase.TRAINING, values=values))  # type: ignore[arg-type]
    assert read_report(text).values == {"loss": 0.123457, "eval/f1.macro-x": -3, "huge": 1e300}


@pytest.mark.parametrize("writes", ["an agent", "a container"])
def test_of_many_values_the_first_are_reported(writes: str) -> None:
    values = {f"of_class_{number}": number / 2 for number in range(100)}
    text = json.dumps({"v": 1, "start": START, "sequence": 1, "values": values})
    if writes == "an agent":
        text = write_report(Report(START, 1, TrainerPhase.TRAINING, values=values))
    assert list(read_report(text).values) == list(values)[:VALUES_KEPT]


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
