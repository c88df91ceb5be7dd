"""Going back to a chosen commit: once, permanently, and without a trace of the bypassed ones."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from perdure.checkpoint import inspect
from perdure.checkpoint.history import find, history
from perdure.checkpoint.retention import retire
from perdure.errors import StorageError, UserError
from perdure.log.entry import Origin, key_of
from perdure.log.reader import Log
from perdure.log.takeover import TakeoverLog
from perdure.log.verdict import Verdict
from perdure.log.writer import NotYet, Resume, Writer
from perdure.store import Store, open_store
from perdure.wire import CommitSelector, ResumeFrom, read_resume_from
from perdure.wire.settings import LOCAL_UID
from tests.support.store import Died, MemoryStore, WatchedStore, dying, failing
from tests.unit.runtime.checkpoint.test_retention import kept
from tests.unit.runtime.checkpoint.world import load_solo, opened, position, save_solo

OTHER = "file:///elsewhere"


def opened_from(store: Store, run: int, uid: str = "new", **wish: Any) -> tuple[Writer, Resume]:
    """A run that should begin from a commit of this root, or of one that has the requested commit as entry 7."""
    resume_from = read_resume_from(wish) if wish else None

    def number(wanted: ResumeFrom) -> int:
        return 7 if wanted.uri else find(store, wanted.wanted).commit.seq

    log_writer = Writer(Log(store), uid=uid, run=run, resume_from=resume_from, find=number)
    resume = log_writer.try_open(1, wait_over=True)
    assert not isinstance(resume, NotYet)
    return log_writer, resume


def resumed(store: Store, log_writer: Writer) -> int | None:
    loaded = load_solo(store, log_writer)
    return loaded.commit.step if loaded else None


@pytest.fixture
def store() -> MemoryStore:
    """Commits of steps 1 to 6, entries 2 to 7, of an earlier job that is complete."""
    store = MemoryStore()
    log_writer = opened(store, uid="old")
    for step in range(1, 7):
        save_solo(store, log_writer, step)
    log_writer.complete({"epochs": 1}, position(6))
    return store


def test_the_chosen_commit_is_resumed_and_no_later_run_undoes_it(store: MemoryStore) -> None:
    log_writer, resume = opened_from(store, 1, step=3)
    assert (resumed(store, log_writer), resume.completed, resume.returns, resume.origin) == (3, None, True, None)
    log_writer, resume = opened_from(store, 2, step=3)  # it has died without a commit
    assert (resumed(store, log_writer), resume.completed, resume.returns) == (3, None, False)
    save_solo(store, log_writer, 4)
    log_writer, _ = opened_from(store, 3, step=3)
    assert resumed(store, log_writer) == 4
    assert resumed(store, opened_from(store, 4)[0]) == 4


def test_a_reader_that_does_not_know_it_is_led_around_by_the_links(store: MemoryStore) -> None:
    opened_from(store, 1, step=3)
    entries = [json.loads(store.get(key_of(seq))) for seq in (9,)]
    assert (entries[0]["lastCommit"], entries[0]["resumes"]) == (4, 4)
    assert entries[0]["from"] == {"wish": '{"step": 3}', "seq": 4, "bypasses": 7}
    assert resumed(store, opened(store, 2, uid="new", wait_over=True)) == 3


def test_a_living_run_that_is_taken_over_stays_where_it_went_back_to(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1, step=3)
    newer = Writer(Log(store), uid="new", run=2)
    takeover = TakeoverLog(Log(store), uid="new", run=1, next_run=2, place=log_writer.place)
    assert takeover.open(2, 3, newer.id) is Verdict.GO
    assert takeover.entry
    newer.take_up(takeover.entry)
    save_solo(store, newer, 5)
    assert [slot.seq for slot in newer.commits()] == [11, 4, 3, 2]
    log_writer, _ = opened_from(store, 3, step=3)
    assert resumed(store, log_writer) == 5


def test_a_job_goes_back_in_its_first_run_alone(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1)
    save_solo(store, log_writer, 7)
    log_writer, resume = opened_from(store, 2, step=3)
    assert (resumed(store, log_writer), resume.returns) == (7, False)


def test_without_an_operator_each_other_wish_counts_once(store: MemoryStore) -> None:
    def resumed_with(run: int, **wish: Any) -> int | None:
        log_writer, _ = opened_from(store, run, uid=LOCAL_UID, **wish)
        found = resumed(store, log_writer)
        save_solo(store, log_writer, (found or 0) + 10)
        return found

    assert resumed_with(1) == 6
    assert resumed_with(2, step=3) == 3
    assert resumed_with(3, step=3) == 13
    assert resumed_with(4) == 23
    assert resumed_with(5, step=3) == 33
    assert resumed_with(6, seq=2) == 1
    assert resumed_with(7, step=3) == 3
    assert resumed_with(8, seq=7) == 6  # a bypassed one may be chosen


def test_what_there_is_not_is_refused_and_nothing_is_appended(store: MemoryStore) -> None:
    before = dict(store.objects)
    with pytest.raises(UserError, match="memory: has no commit of epoch 9: there are entry 7"):
        opened_from(store, 1, epoch=9)
    assert store.objects == before


def test_bypassed_commits_stay_until_as_many_new_ones_are_made(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1, step=3)
    steps = []
    for step in range(11, 15):
        save_solo(store, log_writer, step)
        retire(store, log_writer, 3)
        steps.append(kept(store))
    assert steps == [[2, 3, 4, 5, 6, 11], [3, 4, 5, 6, 11, 12], [11, 12, 13], [12, 13, 14]]
    assert [(one.commit.step, one.commit.bypassed) for one in history(store)] == [(14, False), (13, False), (12, False)]


def test_what_was_bypassed_is_not_kept_as_the_first_of_so_many_steps(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1, step=3)
    for step in range(4, 9):
        save_solo(store, log_writer, step)
        retire(store, log_writer, 2, keep_every=2)
    assert [(one.commit.step, one.commit.bypassed) for one in history(store)] == [
        (step, False) for step in (8, 7, 6, 4, 2)
    ]


def test_what_was_bypassed_is_looked_through_once_and_not_at_each_save(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1, step=2)
    asked: list[str] = []

    def around(_: str, key: str, act: Any) -> Any:
        asked.append(key)
        return act()

    watched = WatchedStore(store, around)
    log_writer.log.store = watched
    bypassed = {key_of(seq) for seq in range(5, 8)}
    looked = []
    for step in range(11, 16):
        save_solo(store, log_writer, step)
        asked.clear()
        retire(watched, log_writer, 3)
        looked.append(bypassed <= set(asked))
    assert kept(store) == [13, 14, 15]
    assert looked == [True, True, True, False, False]


def test_the_list_and_a_choice_tell_what_is_bypassed_from_what_is_not(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1, step=3)
    save_solo(store, log_writer, 5)
    found = [(one.commit.seq, one.commit.step, one.commit.bypassed) for one in history(store)]
    assert found == [
        (10, 5, False),
        (7, 6, True),
        (6, 5, True),
        (5, 4, True),
        (4, 3, False),
        (3, 2, False),
        (2, 1, False),
    ]
    assert find(store, CommitSelector(step=5)).commit.seq == 10
    assert find(store, CommitSelector(step=6)).commit.bypassed
    assert find(store, CommitSelector()).commit.seq == 10


def test_going_back_twice_and_forward_again_leaves_one_line(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1, uid=LOCAL_UID, step=3)
    save_solo(store, log_writer, 13)
    log_writer, _ = opened_from(store, 2, uid=LOCAL_UID, step=6)
    save_solo(store, log_writer, 16)
    assert [(one.commit.step, one.commit.bypassed) for one in history(store)] == [
        (16, False),
        (13, True),
        *((step, False) for step in range(6, 0, -1)),
    ]
    log_writer, _ = opened_from(store, 3, uid=LOCAL_UID, step=13)
    assert [(one.commit.step, one.commit.bypassed) for one in history(store)] == [
        (16, True),
        (13, False),
        *((step, True) for step in (6, 5, 4)),
        *((step, False) for step in (3, 2, 1)),
    ]


@pytest.mark.parametrize("damaged", range(1, 13))
def test_an_entry_that_cannot_be_read_hides_no_commit_but_its_own(store: MemoryStore, damaged: int) -> None:
    log_writer, _ = opened_from(store, 1, uid=LOCAL_UID, step=3)
    save_solo(store, log_writer, 13)
    log_writer, _ = opened_from(store, 2, uid=LOCAL_UID, step=2)
    save_solo(store, log_writer, 22)
    whole = [one.commit.seq for one in history(store)]
    assert whole == [12, 10, *range(7, 1, -1)]
    store.objects[key_of(damaged)] = b"{}"
    found = list(islice(log_writer.every_commit(), 100))
    assert [slot.seq for slot, _ in found if slot.entry] == [seq for seq in whole if seq not in hidden_by(damaged)]
    assert len(found) < 20


def hidden_by(damaged: int) -> set[int]:
    """An unreadable Opened does not show what it has bypassed, and a head is not looked behind."""
    return {9: {7, 6, 5}, 11: {10, 7, 6, 5, 4}}.get(damaged, {damaged})


def test_no_start_takes_what_is_bypassed_for_what_no_entry_names(store: MemoryStore) -> None:
    log_writer, _ = opened_from(store, 1, step=3)
    _, resume = opened_from(store, 2)
    assert resume.skipped == ()
    log_writer, _ = opened_from(store, 3)
    save_solo(store, log_writer, 4)
    retire(store, log_writer, 9)
    assert kept(store) == [1, 2, 3, 4, 5, 6]


def test_a_commit_of_another_root_is_where_the_job_begins_until_it_has_one_of_its_own(store: MemoryStore) -> None:
    log_writer, resume = opened_from(store, 1, uri=OTHER, epoch=3)
    origin = Origin(json.dumps({"epoch": 3, "uri": OTHER}), 7, OTHER, 7)
    assert (resume.origin, resumed(store, log_writer), resume.completed) == (origin, None, None)
    log_writer, resume = opened_from(store, 2, uri=OTHER, epoch=3)
    assert resume.origin == origin
    save_solo(store, log_writer, 40)
    log_writer, resume = opened_from(store, 3, uri=OTHER, epoch=3)
    assert (resume.origin, resumed(store, log_writer)) == (None, 40)
    assert [slot.seq for slot in log_writer.commits()] == [11]


@pytest.mark.parametrize("uid", ["new", LOCAL_UID])
def test_a_run_after_one_that_has_taken_in_nothing_asks_again_what_the_other_root_has(uid: str) -> None:
    store, other = MemoryStore(), MemoryStore()
    there = opened(other)
    save_solo(other, there, 1)

    def begun(run: int, **wish: Any) -> int | None:
        wanted = read_resume_from(wish) if wish else None
        log_writer = Writer(
            Log(store), uid=uid, run=run, resume_from=wanted, find=lambda _: find(other, CommitSelector()).commit.seq
        )
        resume = log_writer.try_open(1, wait_over=True)
        assert isinstance(resume, Resume)
        return resume.origin.seq if resume.origin else None

    assert begun(1, uri=OTHER) == 2
    save_solo(other, there, 2)
    retire(other, there, 1)
    assert begun(2, uri=OTHER) == 3
    assert begun(3) == 3  # a reader that is shown none any more knows the last
    save_solo(store, opened(store, 4, uid=uid, wait_over=True), 5)
    assert begun(5, uri=OTHER) is None


@pytest.mark.parametrize("after", [False, True])
def test_a_death_or_a_lost_answer_at_any_call_of_the_opening_leaves_one_line(*, after: bool) -> None:
    for wrapper in (dying, failing):
        for call in range(200):
            store = MemoryStore()
            log_writer = opened(store, uid="old")
            for step in range(1, 5):
                save_solo(store, log_writer, step)
            wrapped = wrapper(store, call, after=after)
            first = Writer(
                Log(wrapped),
                uid="new",
                run=1,
                resume_from=ResumeFrom(CommitSelector(step=2)),
                find=lambda wish: find(store, wish.wanted).commit.seq,  # noqa: B023
            )
            try:
                first.try_open(1, wait_over=True)
            except (Died, StorageError):
                log_writer, _ = opened_from(store, 2, step=2)
            else:
                log_writer = first
                log_writer.log.store = store
            assert resumed(store, log_writer) == 2, f"call {call}"
            save_solo(store, log_writer, 3)
            assert [slot.seq for slot in opened_from(store, 3, step=2)[0].commits()][1:] == [3, 2]
            if call > 12:
                break


def test_the_log_and_verify_tell_it(tmp_path: Any) -> None:
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    log_writer = opened(store, uid="old")
    for step in range(1, 5):
        save_solo(store, log_writer, step)
    log_writer, _ = opened_from(store, 1, step=2)
    assert any(
        "goes back: from entry 3, bypassing what lies between up to entry 5" in line.text
        for line in inspect.log(uri, {})
    )
    assert "commit 3 of run 1: step 2" in next(inspect.show(uri, CommitSelector(), {})).text
    for step in range(11, 14):
        save_solo(store, log_writer, step)
    retire(store, log_writer, 3)
    assert [line for line in inspect.verify(uri, {}) if "DAMAGED" in line.text] == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give one of epoch, step, seq, pin, and uri for another root"),
        ({"epochs": 3}, "give one of epoch"),
        ("epoch=3", "give one of epoch"),
        ({"epoch": 1, "step": 2}, "epoch and step are given"),
        ({"epoch": "3"}, "epoch is '3': give an integer"),
        ({"uri": ""}, "uri is ''"),
        ({"epoch": None}, "names no commit"),
    ],
)
def test_a_wish_that_says_nothing_or_too_much_is_refused(given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_resume_from(given)
