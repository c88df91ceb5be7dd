"""A hand-over in the log: who appends what where, what fences whom, and what never opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perdure.errors import Fenced, HandoverRefused, StorageError
from perdure.log.entry import Entry, Opened, Refused, key_of
from perdure.log.reader import Log, Slot
from perdure.log.takeover import TakeoverLog
from perdure.log.verdict import Verdict
from perdure.log.writer import NotYet, Resume, Writer
from perdure.store import Store
from tests.support.store import MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import MANIFEST, UID, opened, position, story, writer

STEP = 40


def log_writer(store: Store, of: Writer | None = None, *, run: int = 1) -> TakeoverLog:
    """A party's; with `of`, from where that writer stands."""
    return TakeoverLog(Log(store), uid=UID, run=run, next_run=run + 1, place=of.place if of else None)


def commit(of: Writer, step: int, *, final: bool = False) -> None:
    of.commit(position(step), MANIFEST, final=final, reason="test")


def losing_answers(store: Store, lost: Callable[[str], bool]) -> WatchedStore:
    """Its PUTs arrive; the answers to those of the keys that `lost` names do not."""

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        result = act()
        if verb == "put" and lost(key):
            raise StorageError("no answer")
        return result

    return WatchedStore(store, around)


class TestGo:
    def test_the_decider_opens_in_the_name_of_the_new_rank_0_which_then_writes_on(self) -> None:
        store = MemoryStore()
        old, new = opened(store), writer(store, 2)
        commit(old, 30)
        decider = log_writer(store, old)
        assert decider.open(2, STEP, new.id) is Verdict.GO
        assert decider.entry
        new.take_up(decider.entry)
        commit(new, 50)
        assert story(store) == ["Opened 1", "Committed 1 @30", "Opened 2 @40", "Committed 2 @50"]
        entry = Log(store).linked(3).entry
        assert entry
        assert (entry.event, entry.writer, entry.last_commit) == (Opened(2, 2, 1, STEP), new.id, 2)

    def test_the_older_runs_writer_is_fenced_from_then_on_also_in_the_same_process(self) -> None:
        store = MemoryStore()
        old = opened(store)
        log_writer(store, old).open(2, STEP, writer(store, 2).id)
        with pytest.raises(Fenced, match="run 2 has written after it"):
            commit(old, STEP)
        assert old.overtaken()

    def test_the_next_run_opens_when_the_one_that_took_over_has_ended(self) -> None:
        store = MemoryStore()
        old, new = opened(store), writer(store, 2)
        decider = log_writer(store, old)
        decider.open(2, STEP, new.id)
        assert decider.entry
        new.take_up(decider.entry)
        third = writer(store, 3)
        assert isinstance(third.try_open(1, wait_over=False), NotYet)
        commit(new, 50, final=True)
        assert isinstance(third.try_open(1, wait_over=False), Resume)

    def test_a_commit_of_the_older_run_that_was_first_is_stepped_over(self) -> None:
        store = MemoryStore()
        old = opened(store)
        decider = log_writer(store, old)
        commit(old, 30)
        assert decider.open(2, STEP, "ab") is Verdict.OPEN
        assert decider.open(2, STEP, "ab") is Verdict.GO
        entry = Log(store).linked(3).entry
        assert entry
        assert entry.event == Opened(2, 2, 1, STEP)

    def test_a_put_whose_answer_was_lost_is_known_again(self) -> None:
        store = MemoryStore()
        old = opened(store)
        decider = log_writer(losing_answers(store, lambda _: len(store.objects) == 2), old)
        with pytest.raises(StorageError):
            decider.open(2, STEP, "ab")
        assert decider.open(2, STEP, "ab") is Verdict.GO
        assert story(store) == ["Opened 1", "Opened 2 @40"]

    def test_repeated_bytes_are_the_same_bytes(self) -> None:
        store = MemoryStore()
        old = opened(store)
        sent: list[bytes] = []

        class Silent(MemoryStore):
            def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
                sent.append(bytes(data))
                raise StorageError(f"no answer to {key}, {if_absent}")

        decider = TakeoverLog(Log(Silent()), uid=UID, run=1, next_run=2, place=old.place)
        for _ in range(2):
            with pytest.raises(StorageError):
                decider.open(2, STEP, "ab")
        assert sent[0] == sent[1]

    def test_a_writer_takes_up_nothing_that_was_not_opened_for_it(self) -> None:
        store = MemoryStore()
        decider = log_writer(store, opened(store))
        decider.open(2, STEP, "another")
        assert decider.entry
        with pytest.raises(Fenced, match="does not open run 2 for this writer"):
            writer(store, 2).take_up(decider.entry)


class TestRefused:
    def test_it_stops_the_decider_for_ever(self) -> None:
        store = MemoryStore()
        old = opened(store)
        decider, settler = log_writer(store, old), log_writer(store, old)
        assert settler.refuse() is Verdict.REFUSED
        assert decider.open(2, STEP, "ab") is Verdict.REFUSED
        assert decider.open(2, STEP, "ab") is Verdict.REFUSED
        assert story(store) == ["Opened 1", "Refused 1"]

    def test_of_opened_and_refused_the_first_counts(self) -> None:
        store = MemoryStore()
        old = opened(store)
        decider, settler = log_writer(store, old), log_writer(store, old)
        assert decider.open(2, STEP, "ab") is Verdict.GO
        assert settler.refuse() is Verdict.GO
        assert story(store) == ["Opened 1", "Opened 2 @40"]

    def test_it_fences_no_run_and_every_later_entry_of_the_run_says_so(self) -> None:
        store = MemoryStore()
        old = opened(store)
        log_writer(store, old).refuse()
        assert not old.overtaken()
        commit(old, 50)
        commit(old, 60, final=True)
        assert story(store) == ["Opened 1", "Refused 1", "Committed 1 @50", "Committed 1 @60!"]
        assert [slot.entry.refused for slot in Log(store).entries(4) if slot.entry] == [2, 2, 2, 0]

    def test_behind_an_end_of_the_log_that_cannot_be_read_nothing_is_appended(self) -> None:
        """It may be the very entry that has decided."""
        store = MemoryStore()
        old = opened(store)
        log_writer(store, old).refuse()
        store.objects[key_of(2)] = store.objects[key_of(2)][:-9]
        for act in (log_writer(store).refuse, lambda: log_writer(store).open(2, STEP, "ab")):
            with pytest.raises(StorageError):
                act()
        assert len(store.objects) == 2

    def test_who_has_slept_through_a_later_attempt_too_knows_that_its_own_is_over(self) -> None:
        store = MemoryStore()
        old = opened(store)
        old.never_opens(3)
        commit(old, 50, final=True)
        assert log_writer(store).look() is Verdict.REFUSED

    def test_it_stands_behind_the_older_runs_commits(self) -> None:
        store = MemoryStore()
        old = opened(store)
        settler = log_writer(store, old)
        commit(old, 30)
        assert settler.refuse() is Verdict.OPEN
        assert settler.refuse() is Verdict.REFUSED

    def test_an_abort_that_another_thread_reports_while_an_entry_is_read_is_kept(self) -> None:
        store = MemoryStore()
        old = opened(store)
        log_writer(store, old).refuse()

        class Read(Entry):
            @property
            def refused(self) -> int:
                old.never_opens(9)
                return super().refused

        class Reading(Log):
            def slot(self, seq: int) -> Slot | None:
                slot = super().slot(seq)
                return replace(slot, entry=Read(**vars(slot.entry))) if slot and slot.entry else slot

        old.log = Reading(store)
        commit(old, 30)
        assert old.aborted == 9

    def test_a_commit_whose_answer_was_lost_is_found_behind_it(self) -> None:
        store = MemoryStore()
        old = Writer(Log(losing_answers(store, lambda _: len(store.objects) == 3)), uid=UID, run=1)
        assert isinstance(old.try_open(1, wait_over=False), Resume)
        log_writer(store, old).refuse()
        with pytest.raises(StorageError):
            commit(old, 50)
        landed = old.landed(50, final=False)
        assert landed
        assert landed.seq == 3

    def test_a_refusal_of_another_run_fences(self) -> None:
        store = MemoryStore()
        old = opened(store)
        second = opened(store, 2, wait_over=True)
        log_writer(store, second, run=2).refuse()
        with pytest.raises(Fenced):
            commit(old, 30)


class TestOpeningAfterwards:
    def test_a_refused_run_never_opens_not_even_when_the_wait_is_over(self) -> None:
        store = MemoryStore()
        log_writer(store, opened(store)).refuse()
        with pytest.raises(HandoverRefused, match="its hand-over from run 1 was aborted"):
            writer(store, 2, lost=[1]).try_open(2, wait_over=True)

    def test_a_run_whose_abort_the_newcomer_missed_does_not_take_the_older_runs_end_for_its_own_start(self) -> None:
        store = MemoryStore()
        old = opened(store)
        old.never_opens(2)
        commit(old, 60, final=True)
        assert log_writer(store).look() is Verdict.REFUSED
        with pytest.raises(HandoverRefused):
            writer(store, 2).try_open(2, wait_over=False)

    def test_the_next_higher_run_opens(self) -> None:
        store = MemoryStore()
        old = opened(store)
        old.never_opens(2)
        commit(old, 60, final=True)
        assert isinstance(writer(store, 3).try_open(2, wait_over=False), Resume)

    def test_a_run_that_numbers_itself_goes_past_a_refused_one(self) -> None:
        store = MemoryStore()
        old = opened(store)
        old.never_opens(2)
        commit(old, 60, final=True)
        resume = writer(store, None).try_open(2, wait_over=False)
        assert isinstance(resume, Resume)
        assert resume.run == 3

    def test_after_a_restart_the_newer_run_opens_in_place(self) -> None:
        store = MemoryStore()
        commit(opened(store), 60, final=True)
        assert log_writer(store).look() is Verdict.ENDED
        assert isinstance(writer(store, 2).try_open(2, wait_over=False), Resume)


class TestLooking:
    @pytest.mark.parametrize("early", [True, False], ids=["from-a-place", "from-the-head"])
    def test_one_who_knows_nothing_and_one_who_has_read_before_see_the_same(self, early: bool) -> None:
        store = MemoryStore()
        old, new = opened(store), writer(store, 2)
        before = old.place
        commit(old, 30)
        decider = log_writer(store, old)
        assert decider.look() is Verdict.OPEN
        decider.open(2, STEP, new.id)
        assert decider.entry
        new.take_up(decider.entry)
        commit(new, 50)
        commit(new, 60, final=True)
        opened(store, 3)
        late = TakeoverLog(Log(store), uid=UID, run=1, next_run=2, place=before if early else None)
        assert late.look() is Verdict.GO
        assert late.entry
        assert late.entry.seq == 3

    def test_a_refusal_is_seen_below_what_came_after_it(self) -> None:
        store = MemoryStore()
        old = opened(store)
        log_writer(store, old).refuse()
        commit(old, 50)
        opened(store, 3, wait_over=True)
        assert log_writer(store).look() is Verdict.REFUSED

    def test_another_run_that_opened_first_is_reported(self) -> None:
        store = MemoryStore()
        opened(store)
        opened(store, 3, wait_over=True)
        assert log_writer(store).look() is Verdict.FENCED

    def test_another_jobs_entry_is_reported(self) -> None:
        store = MemoryStore()
        old = opened(store)
        opened(store, 1, uid="ffff")
        assert log_writer(store, old).look() is Verdict.FENCED

    def test_an_entry_that_cannot_be_read_is_no_answer(self) -> None:
        store = MemoryStore()
        old = opened(store)
        looking = log_writer(store, old)
        log_writer(store, old).refuse()
        key = next(key for key in store.objects if b'"Refused"' in store.objects[key])
        store.objects[key] = store.objects[key].replace(b'"refuses":2', b'"refuses":3')
        with pytest.raises(StorageError, match="was changed after it was written"):
            looking.look()

    def test_a_refusal_names_what_it_refuses(self) -> None:
        store = MemoryStore()
        log_writer(store, opened(store)).refuse()
        slot = Log(store).slot(2)
        assert slot
        assert slot.entry
        assert slot.entry.event == Refused(2)
