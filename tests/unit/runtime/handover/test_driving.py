"""What a process does of its own accord for what its machine decides."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.channel import HandoverEnded, Report, write_offer
from perdure.checkpoint.log import Log
from perdure.checkpoint.writer import Writer
from perdure.contract import Handover, HandoverWord, Train
from perdure.group.peers import Solo
from perdure.handover import events as ev
from perdure.handover.parties import Attempt
from perdure.handover.timing import Timetable
from perdure.session import driving
from perdure.session.driving import Driver
from perdure.session.effects import Effects
from perdure.session.handing import Handing
from perdure.session.run import Run
from perdure.settings import Settings
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import MANIFEST, UID, position


def ended_log() -> Log:
    """Of run 1, which has saved and ended."""
    log = Log(MemoryStore())
    writer = Writer(log, uid=UID, run=1)
    writer.try_open(1, wait_over=True)
    writer.commit(position(7), MANIFEST, final=True, reason="asked to leave")
    return log


def test_a_newcomer_that_finds_no_decider_begins_in_place_once_the_older_run_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driving, "STORE_SECONDS", 0.01)
    attempt, block = Attempt(1, 2, 1, joins=(0,), leavers=(0,)), Handover(1, 1, (0,), (0,), "127.0.0.1:1", 60, "token")
    told = SimpleNamespace(
        settings=Settings("file:///nowhere", uid=UID, run=2, handover=block), store=ended_log().store, tell=print
    )
    effects = Effects(cast("Run", told), attempt, attempt.of_new(0), block, "127.0.0.1:2")
    driver = Driver(effects, Timetable(time.monotonic() + 60, time.monotonic() + 90), ask_exit=lambda: None)
    driver.begin("warm")
    assert driver.next_act() == ev.JoinInPlace()
    driver.finish()


def test_the_last_entry_of_a_run_that_ends_after_an_abort_says_that_the_attempts_run_never_opens() -> None:
    log = Log(MemoryStore())
    writer = Writer(log, uid=UID, run=1)
    writer.try_open(1, wait_over=True)
    attempt = Attempt(1, 2, 1, joins=(0,), leavers=(0,))
    told = SimpleNamespace(
        settings=Settings("file:///nowhere", uid=UID, run=1),
        peers=Solo(),
        opened_checkpointer=SimpleNamespace(writer=writer),
        tell=lambda _: None,
    )
    block = Handover(1, 1, (0,), (0,), "127.0.0.1:1", 30, "token")
    effects = Effects(cast("Run", told), attempt, attempt.of_old(0), block, "127.0.0.1:2")
    driver = Driver(effects, Timetable(time.monotonic() + 30, time.monotonic() + 60), ask_exit=lambda: None)
    happened: list[Any] = [ev.Stopped(), ev.Sigterm(), ev.Unable("it is broken")]
    for event in happened:
        driver.feed(event)
    acts = [driver.next_act(), driver.next_act()]
    assert acts == [ev.Move(), ev.SaveAndExit(2)]
    driver.finish()
    writer.commit(position(7), MANIFEST, final=True, reason="asked to leave")
    head = log.head()
    assert head
    assert head.entry
    assert head.entry.refused == 2


def test_an_offer_that_builds_on_an_undecided_attempt_is_looked_at_again_once_that_has_come_to_go(
    tmp_path: Path,
) -> None:
    reports, offer = list[Report](), tmp_path / "offer"
    settings = Settings("file:///nowhere", uid=UID, run=1, rank=1, world=2, offer_file=offer)
    run = SimpleNamespace(
        settings=settings,
        rank=1,
        requests=SimpleNamespace(on_request=lambda _: None),
        registry=SimpleNamespace(kind=lambda: "warm"),
        timings=SimpleNamespace(seconds={}),
        opened_checkpointer=None,
        replicas=(),
        tell=reports.append,
    )
    handing = Handing(cast("Run", run))
    write_offer(offer, Train(2, 1, 2, "127.0.0.1:2", handover=Handover(1, 2, (), (), "127.0.0.1:1", 1, "token")))
    assert handing.look() == 0
    contradictory = Handover(2, 2, (5,), (), "127.0.0.1:1", 1, "token")
    write_offer(offer, Train(3, 1, 2, "127.0.0.1:2", handover=contradictory))
    handing.look()
    assert reports == []
    run.settings = replace(settings, run=2)
    handing.look()
    assert [(report.run, report.word) for report in reports if isinstance(report, HandoverEnded)] == [
        (3, HandoverWord.ABORT)
    ]
