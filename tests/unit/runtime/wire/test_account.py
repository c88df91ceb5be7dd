"""Accounts of time: what one side writes the other reads, in little room, whatever a container sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.wire.account import ACCOUNTS_KEPT, RunAccount, merged, read_accounts, write_accounts

FIRST = RunAccount(1, 0, 140, productive=41.5, start=3.0, restore=0.25, data=2.0, save=1.5, unsaved=4.125)
SECOND = RunAccount(2, 140, 150, live=True, productive=9.0, handover=0.125, unfinished=0.5, unsaved_steps=7)
ROOM = 2048


def test_an_account_is_written_without_zeros_and_read_again() -> None:
    written = write_accounts([FIRST, SECOND], ROOM)
    assert read_accounts(json.loads(json.dumps(written))) == (FIRST, SECOND)
    assert written[1].keys() == {
        "run", "began", "step", "live", "productive", "handover", "unfinished", "unsaved_steps"
    }  # fmt: skip


@pytest.mark.parametrize("room", range(-10, 400, 7))
def test_the_newest_ones_are_written_as_far_as_there_is_room(room: int) -> None:
    written = write_accounts([FIRST, SECOND], room)
    assert not written or len(json.dumps(written, separators=(",", ":"))) <= room
    assert read_accounts(written) == (FIRST, SECOND)[2 - len(written) :]


@pytest.mark.parametrize(
    "body",
    [
        None,
        "text",
        {"run": 1},
        [None, "text", {}],
        [{"run": 0, "began": 0, "step": 0}],
        [{"run": 1, "began": 0, "step": 0, "productive": -1}],
        [{"run": 1, "began": 0, "step": 0, "productive": 1e300}],
        [{"run": 1, "began": 0, "step": 0, "data": True}],
        [{"run": 1, "began": 0, "step": 0, "live": 1}],
    ],
)
def test_what_is_no_account_is_left_out(body: Any) -> None:
    assert read_accounts(body) == ()
    if isinstance(body, list):
        assert read_accounts([*body, *write_accounts([FIRST], ROOM)]) == (FIRST,)


def test_no_number_that_a_clock_gives_makes_an_account_unreadable() -> None:
    odd = RunAccount(1, 0, 5, productive=float("nan"), data=float("inf"), save=-1.0, hang=2.0)
    assert read_accounts(write_accounts([odd], ROOM)) == (RunAccount(1, 0, 5, hang=2.0),)


def test_the_newest_account_of_each_of_the_newest_runs_is_kept() -> None:
    third = RunAccount(3, 150, 151)
    grown = RunAccount(2, 140, 160, live=True, productive=19.0)
    assert merged((FIRST, SECOND), (grown, third)) == (grown, third)
    assert len(merged((FIRST,), (SECOND, third))) == ACCOUNTS_KEPT
