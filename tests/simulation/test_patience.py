"""A history that does not come to an end ends by itself, and says where it stood."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.simulation.history import History, Request
from tests.simulation.interface import MemberExit, MemberHost, RunMember


async def spins_within_one_callback(_: MemberHost) -> MemberExit:
    while True:
        pass


async def spins_in_steps_too_small(_: MemberHost) -> MemberExit:
    while True:  # noqa: ASYNC110 - nobody would set an event
        await asyncio.sleep(1e-7)


async def keeps_every_exception(_: MemberHost) -> MemberExit:
    swallowed = 0
    while True:
        try:
            while True:
                pass
        except BaseException:
            swallowed += 1
            if swallowed > 1:
                raise


@pytest.mark.parametrize("run", [spins_within_one_callback, spins_in_steps_too_small, keeps_every_exception])
def test_a_history_that_goes_round_is_ended_and_says_where_it_stands(run: RunMember) -> None:
    result = History(Request(3), run, work_seconds=0.4).play()
    assert result.violation is not None
    assert result.violation.check == "stuck"
    assert "s of work in" in result.violation.words
    if run is not spins_in_steps_too_small:
        assert f"stands in {run.__name__}" in result.violation.words


def test_a_history_that_ends_leaves_no_alarm_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    History(Request(3)).play()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
