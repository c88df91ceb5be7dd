"""What a process does of its own accord for what its machine decides."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch._C._distributed_c10d import HashStore

from perdure import console
from perdure.errors import StorageError
from perdure.group.collectives import on_all
from perdure.group.peers import Peers, RanksApart, Solo
from perdure.live import driving, handover
from perdure.live.driving import Driver, agreed
from perdure.live.effects import Effects
from perdure.live.handover import LiveHandover
from perdure.live.keys import StoreKeys
from perdure.live.protocol import events as ev
from perdure.live.protocol import hearing, timing
from perdure.live.protocol.machine import PartyPhase
from perdure.live.protocol.parties import Attempt
from perdure.live.protocol.timing import Timetable
from perdure.live.word import Word
from perdure.log.entry import write_entry
from perdure.log.reader import Log
from perdure.log.takeover import TakeoverLog
from perdure.log.writer import Writer
from perdure.loop.run import Run
from perdure.loop.telemetry.timings import Timings
from perdure.wire import AttemptRecord, ExitKind, Handover, HandoverWord, Train
from perdure.wire.channel import HandoverEnded, TrainerReport, write_offer
from perdure.wire.settings import Settings
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import MANIFEST, UID, on_ranks, position

SECONDS = 20.0


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
    assert acts == [ev.MoveState(), ev.SaveAndExit(2)]
    driver.finish()
    writer.commit(position(7), MANIFEST, final=True, reason="asked to leave")
    head = log.head()
    assert head
    assert head.entry
    assert head.entry.refused == 2


def test_an_offer_that_builds_on_an_undecided_attempt_is_looked_at_again_once_that_has_come_to_go(
    tmp_path: Path,
) -> None:
    reports, offer = list[TrainerReport](), tmp_path / "offer"
    settings = Settings("file:///nowhere", uid=UID, run=1, rank=1, world=2, offer_file=offer)
    run = SimpleNamespace(
        settings=settings,
        rank=1,
        requests=SimpleNamespace(on_request=lambda _: None),
        registry=SimpleNamespace(kind=lambda: "warm", sharded=""),
        background=SimpleNamespace(may_hand_over=True),
        timings=Timings(),
        opened_checkpointer=None,
        replicas=(),
        tell=reports.append,
    )
    membership = LiveHandover(cast("Run", run))
    write_offer(offer, Train(2, 1, 2, "127.0.0.1:2", handover=Handover(1, 2, (), (), "127.0.0.1:1", 60, "token")))
    assert membership.look() == 0
    contradictory = Handover(2, 2, (5,), (), "127.0.0.1:1", 60, "token")
    write_offer(offer, Train(3, 1, 2, "127.0.0.1:2", handover=contradictory))
    membership.look()
    assert reports == []
    run.settings = replace(settings, run=2)
    membership.look()
    assert [(report.run, report.word) for report in reports if isinstance(report, HandoverEnded)] == [
        (3, HandoverWord.ABORT)
    ]
    assert membership._driver
    membership._driver.finish()


class Quiet:
    """A bridge without any words."""

    def hear(self, _: int) -> None:
        threading.Event().wait(SECONDS)


class Process(Effects):
    """One old rank's whose parties are all there at once: it votes, and its words reach no party."""

    def __init__(self, number: int, log: Log, *, choices: tuple[int, ...] = (), agent: bool = True) -> None:
        attempt, block = Attempt(1, 2, 2, (1,), (1,)), Handover(1, 2, (1,), (1,), "127.0.0.1:1", 60, "token")
        self.told: list[TrainerReport] = []
        self.said: list[HandoverWord] = []
        run = SimpleNamespace(
            settings=Settings("file:///nowhere", uid=UID, run=1, rank=number, world=2),
            store=log.store,
            peers=SimpleNamespace(gather=lambda _, own: [*choices, own]),
            opened_checkpointer=None,
            read_opened=0,
            registry=SimpleNamespace(things=[], sharded="", shards_obstacle=lambda _: ""),
            replicas=[],
            joining=False,
            framework=None,
            world=2,
            collectives_before=False,
            progress=SimpleNamespace(step=7),
            tell=self.told.append,
        )
        super().__init__(cast("Run", run), attempt, attempt.of_old(number), block, "127.0.0.1:2")
        self._agent = agent
        self.line: Any = SimpleNamespace(send_heartbeat=dict)

    def find_store(self, give_up: Callable[[], None]) -> None:
        pass

    def get_warm(self, warm: str) -> None:
        pass

    def connect(self) -> None:
        pass

    def connect_ranks(self) -> None:
        pass

    def publish_connected(self) -> None:
        pass

    def await_connected(self) -> None:
        pass

    @property
    def bridge(self) -> Any:
        return Quiet()

    @property
    def connected(self) -> bool:
        return True

    def vote(self) -> None:
        pass

    def acknowledged(self) -> bool:
        return self._agent

    def second_connection(self) -> Any:
        return self.line

    def say(self, word: Word) -> None:
        self.said.append(word.word)


def newcomer_with_an_obstacle() -> tuple[Driver[Process], StoreKeys]:
    """Its attempt, and what the old ranks write into the attempt's store."""
    process, store = Process(1, living_log()), HashStore()
    attempt, place = process.attempt, cast("Any", None)
    process.party = attempt.of_new(1)
    process._keys = StoreKeys(store, attempt, process.party, place)
    now = time.monotonic()
    driver = Driver(process, Timetable(now + 60, now + 90), ask_exit=lambda: None)
    return driver, StoreKeys(store, attempt, attempt.of_old(0), place)


def test_a_newcomer_with_an_obstacle_begins_in_place_where_the_old_ranks_have_one_too() -> None:
    driver, old = newcomer_with_an_obstacle()
    old.publish_placeholder(wanted=False)  # before a limit, or a SIGTERM, ended the run
    old.say(Word(HandoverWord.RESTART))
    driver.begin("warm", "a group of its own")
    assert driver.next_act() == ev.JoinInPlace()
    driver.finish()


def test_a_newcomer_that_alone_has_an_obstacle_ends_once_the_old_ranks_can_hand_over() -> None:
    driver, old = newcomer_with_an_obstacle()
    old.publish_placeholder(wanted=False)
    driver.begin("warm", "a group of its own")
    assert driver.next_act() == ev.ExitProcess(ExitKind.HANDOVER_FAILED, "a group of its own")
    driver.finish()


def test_an_old_rank_with_an_obstacle_hears_what_the_others_say_meanwhile() -> None:
    process, store = Process(1, living_log()), HashStore()
    attempt, asked, now = process.attempt, threading.Event(), time.monotonic()
    process._keys, decider = (StoreKeys(store, attempt, attempt.of_old(one), cast("Any", None)) for one in (1, 0))
    driver = Driver(process, Timetable(now + 60, now + 90), ask_exit=asked.set)
    driver.begin("warm", "a group of its own")
    assert asked.wait(SECONDS)
    decider.say(Word(HandoverWord.ABORT, "the newcomer is gone"))
    assert driver.next_act() == ev.TrainOn(2)
    driver.finish()


def begun(effects: Process) -> Driver[Process]:
    """Takes part, and is ready."""
    now, ready = time.monotonic(), threading.Event()
    driver = Driver(effects, Timetable(now + 60, now + 90), ask_exit=lambda: None, ready=ready)
    driver.begin("warm")
    assert ready.wait(SECONDS)
    assert driver.named == 2
    return driver


def stood(effects: Process) -> Driver[Process]:
    """... and stands still."""
    driver = begun(effects)
    driver.feed(ev.Stopped())
    assert driver.next_act() == ev.MoveState()
    return driver


def living_log() -> Log:
    """Of run 1, which is on."""
    log = Log(MemoryStore())
    Writer(log, uid=UID, run=1).try_open(2, wait_over=True)
    return log


def test_a_newcomer_that_does_not_ask_for_its_first_batch_holds_up_no_rank_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "QUIET_SECONDS", 0.01)
    effects = Process(0, living_log())
    driver = stood(effects)
    assert driver.next_act() == ev.TrainOn(2)
    driver.finish()
    assert effects.said == [HandoverWord.ABORT]
    assert [(one.run, one.word) for one in effects.told if isinstance(one, HandoverEnded)] == [(2, HandoverWord.ABORT)]


def test_an_agent_that_does_not_answer_holds_up_no_rank_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ACK_SECONDS", 0.01)
    effects = Process(1, living_log(), agent=False)
    driver = stood(effects)
    driver.feed(ev.Moved())
    assert driver.next_act() == ev.TrainOn(2)
    driver.finish()
    assert effects.said == [HandoverWord.ABORT]


def test_all_old_ranks_leave_the_stop_as_the_one_that_has_read_the_most() -> None:
    driver = stood(Process(1, living_log(), choices=(int(ev.Choice.RESTART),)))
    driver.feed(ev.Heard(HandoverWord.ABORT, "the newcomer is gone"))
    assert driver.next_act() == ev.SaveAndExit()
    driver.finish()


def test_a_rank_on_its_way_into_the_stop_does_not_confuse_those_that_leave_it() -> None:
    """Where its main thread is about to tell what it holds, the others agree on how to go on already."""

    def act(peers: Peers) -> object:
        late = peers.rank == 2
        with pytest.raises(RanksApart, match=r"rank 0 agrees .*, rank 2 stops: ") if late else nullcontext():
            on_all(peers, "stops", lambda: (None, ["what it holds"])) if late else None
        return agreed(peers, ev.Choice.EXIT if late else ev.Choice.TRAIN)

    assert on_ranks(3, act) == [ev.Choice.EXIT] * 3


def test_who_has_lost_the_decider_after_its_vote_learns_from_the_log_what_it_goes_on_as() -> None:
    log = living_log()
    driver = stood(Process(1, log))
    driver.feed(ev.Moved())
    assert driver.phase is PartyPhase.VOTED
    TakeoverLog(log, uid=UID, run=1, next_run=2).open(2, 7, "f" * 32)
    driver.feed(ev.LinkClosed())
    assert driver.next_act() == ev.ExitProcess(ExitKind.HANDED_OVER)
    driver.finish()
    assert driver.word
    assert (driver.word.word, driver.word.seq) == (HandoverWord.GO, 2)


def test_a_log_that_does_not_answer_is_asked_again_and_again_and_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driving, "AGAIN_SECONDS", 0.01)
    caplog.set_level(logging.INFO, logger="perdure")
    monkeypatch.setattr(console.LOGGER, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(console.LOGGER, "propagate", True)
    log = living_log()
    driver = stood(Process(1, log))
    driver.feed(ev.Moved())
    TakeoverLog(log, uid=UID, run=1, next_run=2).open(2, 7, "f" * 32)
    answers, failed = log.store.list, list[int]()

    def down_at_first(*said: Any, **more: Any) -> Any:
        if len(failed) < 5:
            failed.append(1)
            raise StorageError("no route to the store")
        return answers(*said, **more)

    monkeypatch.setattr(log.store, "list", down_at_first)
    driver.feed(ev.LinkClosed())
    assert driver.next_act() == ev.ExitProcess(ExitKind.HANDED_OVER)
    driver.finish()
    assert len(failed) == 5
    assert sum("the log does not answer" in line for line in caplog.messages) == 1


def test_who_hears_nothing_of_a_decider_that_stands_still_settles_and_knows_the_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No link of its closes, and no answer comes; only the time that a silence takes is shortened."""
    monkeypatch.setattr(hearing, "SILENCE_SECONDS", SECONDS)
    process = Process(1, living_log(), choices=(int(ev.Choice.TRAIN),))
    stands_still = threading.Event()
    process.line = SimpleNamespace(send_heartbeat=lambda: stands_still.wait(SECONDS) and {})
    driver = stood(process)
    driver.feed(ev.Moved())
    monkeypatch.setattr(hearing, "SILENCE_SECONDS", 0.05)  # not before its vote: it would be none of those that settle
    assert driver.next_act() == ev.TrainOn(2)
    stands_still.set()
    driver.finish()
    assert [slot.entry.refused for slot in [Log(process.run.store).head()] if slot and slot.entry] == [2]
    assert process.run.attempt == AttemptRecord(2, voted=True, word=HandoverWord.ABORT)


def test_a_rank_whose_main_thread_hangs_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(handover, "MISSING_SECONDS", 0.0)
    ended, told = threading.Event(), list[str]()

    def end(_: Run, why: str) -> None:
        told.append(why)
        ended.set()

    monkeypatch.setattr(handover, "lose_peers", end)
    of = LiveHandover(cast("Run", SimpleNamespace(requests=SimpleNamespace(on_request=lambda _: None))))
    of._end_if_it_hangs(threading.Event(), ev.ExitProcess(ExitKind.HANDED_OVER, "it went"))
    of._end_if_it_hangs(threading.Event(), ev.ExitProcess(ExitKind.PEER_LOST, "rank 0 stands still"))
    assert ended.wait(SECONDS)
    assert told == ["rank 0 stands still"]


def test_a_decider_whose_store_falls_silent_stops_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "STORE_SECONDS", 0.01)
    log, now, ready = living_log(), time.monotonic(), NotReady()
    driver = Driver(Process(0, log), Timetable(now + 60, now + 90), ask_exit=lambda: None, ready=ready)
    driver.begin("warm")
    assert ready.wait(SECONDS)

    def down(*_: Any, **__: Any) -> Any:
        raise StorageError("no route to the store")

    monkeypatch.setattr(log.store, "list", down)
    assert ready.over.wait(SECONDS)
    assert driver.named == 0
    driver.finish()


class NotReady(threading.Event):
    """An event that tells of its end, too."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def clear(self) -> None:
        if self.is_set():
            self.over.set()
        super().clear()


def test_what_ends_a_process_tells_of_its_vote_and_of_the_word_that_it_has_read_and_of_no_opening_else() -> None:
    log = living_log()
    driver = stood(Process(1, log))
    run = driver.effects.run
    assert (run.attempt, run.read_opened) == (AttemptRecord(2), 0)
    driver.feed(ev.Moved())
    assert (run.attempt, run.read_opened) == (AttemptRecord(2, voted=True), 0)
    TakeoverLog(log, uid=UID, run=1, next_run=2).open(2, 7, "f" * 32)
    assert run.read_opened == 0
    driver.feed(ev.LinkClosed())
    assert driver.next_act() == ev.ExitProcess(ExitKind.HANDED_OVER)
    assert (run.attempt, run.read_opened) == (AttemptRecord(2, voted=True, word=HandoverWord.GO), 2)


def test_the_bytes_that_come_with_go_are_what_the_log_says() -> None:
    takeover = TakeoverLog(living_log(), uid=UID, run=1, next_run=2)
    takeover.open(2, 7, "f" * 32)
    assert takeover.entry
    assert takeover.entry.entry
    process = Process(1, living_log())
    process.learn(Word(HandoverWord.GO, seq=2, entry=write_entry(takeover.entry.entry).decode()))
    assert process.run.read_opened == 2
