"""Which run may append to the log, and when: every rule of the log, shown by two writers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import Fenced, RootTakenOver, StorageError, UserError
from perdure.log.entry import Closed, Committed, Completed, ImageRef, Opened, key_of
from perdure.log.images import ImageOffer, Stamp
from perdure.log.reader import Log
from perdure.log.takeover import TakeoverLog
from perdure.log.writer import NotYet, Resume, Writer
from perdure.store import Store, open_store
from perdure.wire import CommitRef
from tests.support.store import CarelessStore, MemoryStore, UnorderedStore, WatchedStore, failing
from tests.unit.runtime.checkpoint.world import MANIFEST, UID, opened, position, story, writer

NEW_UID = "ffff"


def commit(log_writer: Writer, step: int, *, final: bool = False) -> int:
    return log_writer.commit(position(step), MANIFEST, final=final, reason="test").seq


def newest_step(resume: Resume | NotYet) -> int | None:
    assert isinstance(resume, Resume)
    events = [slot.entry.event for slot in resume.commits if slot.entry]
    return events[0].step if events and isinstance(events[0], Committed) else None


class TestChain:
    def test_the_first_entry_has_nothing_before_it(self) -> None:
        store = MemoryStore()
        opened(store)
        first = Log(store).slot(1)
        assert first
        assert first.entry
        assert (first.entry.prev, first.entry.last_commit, first.entry.last_opened) == (None, None, None)

    def test_each_entry_names_the_bytes_before_it_and_the_newest_commit_and_opening(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        commit(log_writer, 10)
        commit(log_writer, 20, final=True)
        opened(store, 2)
        slots = list(Log(store).entries(4))
        assert [slot.problem for slot in slots] == [""] * 4
        links = [(slot.entry.last_commit, slot.entry.last_opened) for slot in slots if slot.entry]
        assert links == [(3, 1), (2, 1), (None, 1), (None, None)]

    def test_a_cold_start_is_one_list_of_one_key_and_two_gets(self) -> None:
        store = MemoryStore()
        commit(opened(store), 10, final=True)
        opened(store, 2)
        calls: list[str] = []

        def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
            calls.append(verb)
            return act()

        log = Log(WatchedStore(store, around))
        head = log.head()
        assert head
        assert head.entry
        assert log.slot(head.entry.last_commit or 0)
        assert [verb for verb in calls if verb != "head"] == ["list", "get", "get"]

    def test_an_altered_entry_is_found_by_the_next_one(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        commit(log_writer, 10)
        log_writer.close("no-step")
        store.objects[key_of(2)] = store.objects[key_of(2)].replace(b'"step":10', b'"step":99')
        problems = [slot.problem for slot in Log(store).entries(3)]
        assert problems == ["", "log entry 2 was changed after entry 3 was written", ""]


class TestOpening:
    def test_an_empty_root_is_opened_at_once(self) -> None:
        resume = writer(MemoryStore()).try_open(2, wait_over=False)
        assert isinstance(resume, Resume)
        assert (resume.run, list(resume.commits), resume.completed, resume.skipped) == (1, [], None, ())

    @pytest.mark.parametrize("end", ["final", "closed", "completed"])
    def test_a_run_opens_when_the_one_before_has_ended(self, end: str) -> None:
        store = MemoryStore()
        first = opened(store)
        commit(first, 10)
        second = writer(store, 2)
        assert isinstance(second.try_open(1, wait_over=False), NotYet)
        match end:
            case "final":
                commit(first, 20, final=True)
            case "closed":
                first.close("no-step")
            case "completed":
                first.complete({"epochs": 1}, position(10, 1))
        assert isinstance(second.try_open(1, wait_over=False), Resume)

    def test_a_warm_standby_as_rank_0_waits_for_the_save_in_progress_and_resumes_from_it(self) -> None:
        store = MemoryStore()
        first = opened(store)
        commit(first, 100)
        standby = writer(store, 2)
        waiting = standby.try_open(1, wait_over=False)
        assert isinstance(waiting, NotYet)
        assert "run 1 has not ended" in waiting.reason
        commit(first, 180, final=True)
        assert newest_step(standby.try_open(1, wait_over=False)) == 180

    def test_a_lost_run_is_not_waited_for_and_its_zombie_is_fenced(self) -> None:
        store = MemoryStore()
        zombie = opened(store)
        commit(zombie, 100)
        successor = writer(store, 2, lost=[1])
        assert newest_step(successor.try_open(1, wait_over=False)) == 100
        with pytest.raises(Fenced, match=r"run 1 may no longer write .* run 2") as caught:
            commit(zombie, 180, final=True)
        assert (type(caught.value), caught.value.opened) == (Fenced, 2)
        assert commit(successor, 110) == 4
        assert story(store) == ["Opened 1", "Committed 1 @100", "Opened 2", "Committed 2 @110"]

    def test_a_run_is_not_waited_for_when_the_wait_is_over(self) -> None:
        store = MemoryStore()
        opened(store)
        assert isinstance(writer(store, 2).try_open(1, wait_over=True), Resume)

    def test_a_number_lost_under_another_run_does_not_help(self) -> None:
        store = MemoryStore()
        opened(store, 2)
        assert isinstance(writer(store, 3, lost=[1]).try_open(1, wait_over=False), NotYet)

    def test_a_412_that_the_run_before_has_won_is_no_fence(self) -> None:
        """The zombie of a lost run commits between the successor's look at the head and its append."""
        store = MemoryStore()
        first = opened(store)
        commit(first, 100)

        def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
            if verb == "put" and not committed:
                committed.append(commit(first, 180, final=True))
            return act()

        committed: list[int] = []
        second = writer(WatchedStore(store, around), 2, lost=[1])
        assert newest_step(second.try_open(1, wait_over=False)) == 180
        assert story(store)[-2:] == ["Committed 1 @180!", "Opened 2"]

    @pytest.mark.parametrize("run", [1, 2, 3])
    def test_a_number_that_is_not_above_every_opened_one_is_refused_with_the_highest(self, run: int) -> None:
        store = MemoryStore()
        opened(store, 3).close("no-step")
        with pytest.raises(Fenced, match="higher number") as caught:
            writer(store, run).try_open(1, wait_over=True)
        assert caught.value.opened == 3

    def test_without_an_operator_the_number_is_the_highest_and_one(self) -> None:
        store = MemoryStore()
        assert opened(store, None).run == 1
        assert opened(store, None, wait_over=True).run == 2

    def test_of_two_writers_of_one_run_one_opens(self) -> None:
        store = MemoryStore()
        opened(store, 1)
        with pytest.raises(Fenced):
            writer(store, 1, lost=[1]).try_open(1, wait_over=True)

    def test_a_store_that_ignores_conditions_is_refused_before_anything_is_written(self) -> None:
        store = CarelessStore()
        with pytest.raises(UserError, match=r"If-None-Match.*use a store that honours"):
            writer(store).try_open(1, wait_over=False)
        assert store.objects == {}

    def test_the_probe_leaves_nothing_behind(self) -> None:
        store = MemoryStore()
        opened(store)
        assert store.list("") == [key_of(1)]


def offer(run: int, step: int, uid: str = UID) -> ImageOffer:
    return ImageOffer(1, Stamp(uid, run, step, 1, 2), "a")


def begins_with(resume: Resume | NotYet) -> ImageRef | None:
    assert isinstance(resume, Resume)
    return resume.image


class TestImage:
    """What a lost run's survivors have kept: the rule itself is that of test_image."""

    def test_the_run_after_a_lost_one_begins_from_its_image_and_the_log_says_so(self) -> None:
        store = MemoryStore()
        commit(opened(store), 100)
        second = writer(store, 2, lost=[1])
        assert begins_with(second.try_open(2, wait_over=False, images=[offer(1, 117)])) == ImageRef(1, 117)
        slot = Log(store).slot(3)
        assert slot
        assert slot.entry
        assert slot.entry.event == Opened(2, 2, image=ImageRef(1, 117))

    def test_without_any_commit_too(self) -> None:
        store = MemoryStore()
        opened(store)
        assert begins_with(writer(store, 2, lost=[1]).try_open(2, wait_over=False, images=[offer(1, 1)]))

    def test_one_that_a_commit_has_reached_is_not_used_and_the_reason_is_given(self) -> None:
        store = MemoryStore()
        commit(opened(store), 100)
        resume = writer(store, 2, lost=[1]).try_open(2, wait_over=False, images=[offer(1, 100)])
        assert isinstance(resume, Resume)
        assert (resume.image, resume.no_image) == (None, "the image of run 1, step 100 is in a commit")

    def test_a_commit_that_comes_between_look_and_append_is_seen(self) -> None:
        store = MemoryStore()
        zombie = opened(store)

        def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
            if verb == "put" and not committed:
                committed.append(commit(zombie, 117))
            return act()

        committed: list[int] = []
        second = writer(WatchedStore(store, around), 2, lost=[1])
        resume = second.try_open(2, wait_over=False, images=[offer(1, 117)])
        assert (begins_with(resume), newest_step(resume)) == (None, 117)

    def test_a_run_that_dies_before_it_has_committed_its_image_leaves_it_to_the_next(self) -> None:
        store = MemoryStore()
        opened(store)
        writer(store, 2, lost=[1]).try_open(2, wait_over=False, images=[offer(1, 117)])
        third = writer(store, 3, lost=[2])
        assert begins_with(third.try_open(2, wait_over=False, images=[offer(1, 117)])) == ImageRef(1, 117)

    def test_a_run_that_has_begun_without_it_has_passed_it(self) -> None:
        store = MemoryStore()
        opened(store)
        writer(store, 2, lost=[1]).try_open(2, wait_over=False)
        third = writer(store, 3, lost=[2])
        assert begins_with(third.try_open(2, wait_over=False, images=[offer(1, 117)])) is None

    def test_whose_answer_got_lost_begins_from_what_it_has_written(self) -> None:
        store = MemoryStore()
        opened(store)

        def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
            found = act()
            if (verb, key) == ("put", key_of(2)):
                raise StorageError("the answer was lost")
            return found

        second = writer(WatchedStore(store, around), 2, lost=[1])
        with pytest.raises(StorageError):
            second.try_open(2, wait_over=False, images=[offer(1, 117)])
        assert begins_with(second.try_open(2, wait_over=False)) == ImageRef(1, 117)

    def test_a_run_that_was_taken_over_is_found_below_the_one_that_did(self) -> None:
        store = MemoryStore()
        opened(store)
        log = Log(store)
        TakeoverLog(log, uid=UID, run=1, next_run=2).open(2, 117, "b" * 32)
        third = writer(store, 3, lost=[1, 2])
        assert begins_with(third.try_open(2, wait_over=False, images=[offer(1, 117)])) == ImageRef(1, 117)

    @pytest.mark.parametrize(("used", "left"), [(2, 1), (1, 2)], ids=["who did not know", "who knew"])
    def test_so_is_the_same_state_of_another_beside_the_image_that_a_run_had_begun_from(
        self, used: int, left: int
    ) -> None:
        """One has heard of the hand-over before it was lost, and one has not."""
        store = MemoryStore()
        opened(store)
        TakeoverLog(Log(store), uid=UID, run=1, next_run=2).open(2, 117, "b" * 32)
        third = writer(store, 3, lost=[1, 2])
        assert begins_with(third.try_open(2, wait_over=False, images=[offer(used, 117)])) == ImageRef(used, 117)
        fourth = writer(store, 4, lost=[1, 2, 3])
        assert begins_with(fourth.try_open(2, wait_over=False, images=[offer(left, 117)])) == ImageRef(left, 117)

    def test_a_commit_that_cannot_be_read_counts_for_nothing_and_the_one_before_it_does(self) -> None:
        store = MemoryStore()
        pen = opened(store)
        commit(pen, 100)
        commit(pen, 110)
        pen.close("test")
        store.objects[key_of(3)] = b"torn"
        assert begins_with(writer(store, 2).try_open(2, wait_over=False, images=[offer(1, 100)])) is None
        third = writer(store, 3, lost=[2])
        assert begins_with(third.try_open(2, wait_over=False, images=[offer(1, 117)])) is None, "run 2 has passed it"

    def test_an_image_behind_a_commit_that_cannot_be_read_counts(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        commit(log_writer, 100)
        log_writer.close("test")
        store.objects[key_of(2)] = b"torn"
        second = writer(store, 2).try_open(2, wait_over=False, images=[offer(1, 117)])
        assert begins_with(second) == ImageRef(1, 117)

    def test_a_run_that_could_not_use_the_newest_commit_leaves_images_that_count(self) -> None:
        store = MemoryStore()
        pen = opened(store)
        commit(pen, 100)
        commit(pen, 120)
        writer(store, 2, lost=[1]).try_open(2, wait_over=False)  # it goes on from step 100: the other is damaged
        third = writer(store, 3, lost=[2])
        resume = third.try_open(2, wait_over=False, images=[offer(2, 117)])
        assert begins_with(resume) == ImageRef(2, 117)
        assert isinstance(resume, Resume)
        assert resume.commits.step_below(117) == 100

    def test_runs_of_an_earlier_job_are_earlier_whatever_their_numbers_are(self) -> None:
        store = MemoryStore()
        commit(opened(store, 7), 120)
        opened(store, 1, uid=NEW_UID)
        second = writer(store, 2, uid=NEW_UID, lost=[1])
        resume = second.try_open(2, wait_over=False, images=[offer(1, 117, NEW_UID)])
        assert begins_with(resume) == ImageRef(1, 117)


class TestAnotherUid:
    def test_a_new_uid_opens_at_once_and_the_old_one_is_out_for_good(self) -> None:
        store = MemoryStore()
        old = opened(store, 5)
        commit(old, 100)
        new = opened(store, 1, uid=NEW_UID)
        with pytest.raises(RootTakenOver, match=f"belongs to job uid {NEW_UID}.*its own root"):
            commit(old, 110)
        with pytest.raises(RootTakenOver) as caught:
            writer(store, 6).try_open(1, wait_over=True)
        assert caught.value.opened == 5
        assert commit(new, 101) == 4

    def test_run_numbers_are_counted_per_uid(self) -> None:
        store = MemoryStore()
        opened(store, 7).close("no-step")
        assert opened(store, 1, uid=NEW_UID).opened == 1
        assert opened(store, None, uid="third").run == 1

    def test_a_new_uid_resumes_from_the_old_ones_commit(self) -> None:
        store = MemoryStore()
        commit(opened(store, 5), 100)
        assert newest_step(writer(store, 1, uid=NEW_UID).try_open(1, wait_over=False)) == 100

    def test_a_zombie_of_the_old_uid_that_wins_the_race_does_not_stop_the_new_one(self) -> None:
        store = MemoryStore()
        old = opened(store, 5)

        def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
            if verb == "put" and not committed:
                committed.append(commit(old, 180))
            return act()

        committed: list[int] = []
        new = writer(WatchedStore(store, around), 1, uid=NEW_UID)
        assert newest_step(new.try_open(1, wait_over=False)) == 180

    def test_a_fence_by_ones_own_uid_with_a_takeover_behind_it_is_the_takeover(self) -> None:
        store = MemoryStore()
        first = opened(store, 1)
        opened(store, 2, wait_over=True)
        opened(store, 1, uid=NEW_UID)
        with pytest.raises(RootTakenOver):
            commit(first, 10)


class TestAppending:
    def test_after_the_next_run_opened_no_append_succeeds(self) -> None:
        store = MemoryStore()
        first = opened(store)
        opened(store, 2, wait_over=True)
        before = dict(store.objects)
        for append in (
            lambda: commit(first, 10),
            lambda: first.close("no-step"),
            lambda: first.complete({}, position(10)),
        ):
            with pytest.raises(Fenced):
                append()
        assert store.objects == before

    @pytest.mark.parametrize("after", [False, True])
    def test_an_append_whose_answer_is_lost_is_made_once(self, *, after: bool) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        log_writer.log = Log(failing(store, 0, after=after))
        with pytest.raises(StorageError):
            commit(log_writer, 10, final=True)
        assert commit(log_writer, 10, final=True) == 2
        assert story(store) == ["Opened 1", "Committed 1 @10!"]

    @pytest.mark.parametrize("after", [False, True])
    def test_what_has_landed_is_known_before_another_attempt(self, *, after: bool) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        assert log_writer.landed(10, final=True) is None
        log_writer.log = Log(failing(store, 0, after=after))
        with pytest.raises(StorageError):
            commit(log_writer, 10, final=True)
        assert log_writer.landed(10, final=True) == (CommitRef(2, 10) if after else None)

    def test_a_412_for_ones_own_entry_is_a_lost_answer(self) -> None:
        """botocore tries again by itself and reports 412 for what its first try has written."""
        store = MemoryStore()

        def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
            if verb == "put" and key.startswith("log/"):
                act()
            return act()

        log_writer = writer(WatchedStore(store, around))
        assert isinstance(log_writer.try_open(1, wait_over=False), Resume)
        assert commit(log_writer, 10) == 2
        log_writer.close("done")
        assert story(store) == ["Opened 1", "Committed 1 @10", "Closed 1"]

    def test_an_earlier_commit_that_arrived_late_is_passed_over(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        log_writer.log = Log(failing(store, 0, after=True))
        with pytest.raises(StorageError):
            commit(log_writer, 10)
        assert log_writer.landed(11, final=True) is None
        assert commit(log_writer, 11, final=True) == 3
        assert story(store) == ["Opened 1", "Committed 1 @10", "Committed 1 @11!"]

    def test_a_commit_that_did_not_end_the_run_is_not_taken_for_the_one_that_does(self) -> None:
        """The cadence's at the very step at which the ranks then leave."""
        store = MemoryStore()
        log_writer = opened(store)
        log_writer.log = Log(failing(store, 0, after=True))
        with pytest.raises(StorageError):
            commit(log_writer, 10)
        other = opened(MemoryStore())
        assert commit(log_writer, 10, final=True) == 3
        assert story(store) == ["Opened 1", "Committed 1 @10", "Committed 1 @10!"]
        other.log = Log(failing(other.log.store, 0, after=True))
        with pytest.raises(StorageError):
            commit(other, 10)
        assert other.landed(10, final=True) is None

    def test_closing_after_a_commit_whose_answer_was_lost_closes_behind_it(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        log_writer.log = Log(failing(store, 0, after=True))
        with pytest.raises(StorageError):
            commit(log_writer, 10)
        log_writer.close("stopped")
        assert story(store) == ["Opened 1", "Committed 1 @10", "Closed 1"]

    def test_an_opening_whose_answer_is_lost_is_found_again(self) -> None:
        store = MemoryStore()
        opened(store).close("no-step")
        calls = 3  # list, head and get of the log's end; the fourth call is the PUT
        log_writer = writer(failing(store, calls, after=True), 2)
        with pytest.raises(StorageError):
            log_writer.try_open(1, wait_over=False)
        assert isinstance(log_writer.try_open(1, wait_over=False), Resume)
        assert commit(log_writer, 10) == 4
        assert story(store) == ["Opened 1", "Closed 1", "Opened 2", "Committed 2 @10"]

    def test_an_opening_that_arrived_and_was_overtaken_is_fenced(self) -> None:
        store = MemoryStore()
        log_writer = writer(failing(store, 5, after=True), 1)
        with pytest.raises(StorageError):
            log_writer.try_open(1, wait_over=False)
        assert story(store) == ["Opened 1"]
        opened(store, 2, wait_over=True)
        with pytest.raises(Fenced) as caught:
            log_writer.try_open(1, wait_over=True)
        assert caught.value.opened == 2

    def test_an_opening_that_arrived_and_was_taken_over_by_another_uid_is_out(self) -> None:
        store = MemoryStore()
        log_writer = writer(failing(store, 5, after=True), 1)
        with pytest.raises(StorageError):
            log_writer.try_open(1, wait_over=False)
        opened(store, 1, uid=NEW_UID)
        with pytest.raises(RootTakenOver):
            log_writer.try_open(1, wait_over=True)

    def test_long_reasons_are_cut(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        log_writer.commit(position(1), MANIFEST, final=False, reason="x" * 9000)
        log_writer.close("y" * 9000)
        assert story(store) == ["Opened 1", "Committed 1 @1", "Closed 1"]


class TestCompleted:
    def test_a_completed_log_tells_its_goal(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        commit(log_writer, 720)
        log_writer.complete({"epochs": 30}, position(720, 30))
        again = writer(store, 2).try_open(1, wait_over=False)
        assert isinstance(again, Resume)
        assert again.completed == Completed({"epochs": 30}, 720, 30)
        assert newest_step(again) == 720

    def test_it_is_still_reported_after_runs_that_made_no_commit(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        commit(log_writer, 720)
        log_writer.complete({"epochs": 30}, position(720, 30))
        opened(store, 2).close("no-step")
        again = writer(store, 3).try_open(1, wait_over=False)
        assert isinstance(again, Resume)
        assert again.completed

    def test_a_raised_goal_goes_on_and_is_completed_again(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        commit(log_writer, 720)
        log_writer.complete({"epochs": 30}, position(720, 30))
        more = opened(store, 2)
        commit(more, 730)
        more.close("stopped")
        again = writer(store, 3)
        resume = again.try_open(1, wait_over=False)
        assert isinstance(resume, Resume)
        assert resume.completed is None
        again.complete({"epochs": 60}, position(1440, 60))
        assert story(store)[-1] == "Completed 3 @1440"


class TestDamage:
    @pytest.mark.parametrize("garbage", [b"", b"{", b"{}", b"\xff\xfe"])
    def test_an_unreadable_head_is_reported_and_never_written_over(self, garbage: bytes) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        commit(log_writer, 10)
        log_writer.close("no-step")
        store.objects[key_of(3)] = garbage
        second = writer(store, 2)
        resume = second.try_open(1, wait_over=True)
        assert newest_step(resume) == 10
        assert isinstance(resume, Resume)
        assert "log entry 3" in resume.skipped[0]
        assert (store.objects[key_of(3)], commit(second, 20)) == (garbage, 5)
        assert [slot.entry is None for slot in Log(store).entries(5)] == [False, False, True, False, False]

    def test_a_log_of_garbage_alone_is_appended_to(self) -> None:
        store = MemoryStore()
        store.put(key_of(1), b"garbage")
        assert story(store) == ["unreadable"]
        commit(opened(store), 10)
        assert story(store) == ["unreadable", "Opened 1", "Committed 1 @10"]

    def test_an_unreadable_commit_is_passed_over_to_the_one_below(self) -> None:
        store = MemoryStore()
        log_writer = opened(store)
        for step in (10, 20, 30):
            commit(log_writer, step)
        store.objects[key_of(3)] = b"garbage"
        slots = list(log_writer.commits())
        assert [slot.seq for slot in slots] == [4, 3, 2]
        assert slots[1].entry is None

    def test_foreign_keys_are_reported_and_ignored(self) -> None:
        store = MemoryStore()
        opened(store).close("no-step")
        store.put("log/.README", b"hello")
        resume = writer(store, 2).try_open(1, wait_over=False)
        assert isinstance(resume, Resume)
        assert resume.skipped == ("log/.README is not an entry of this log: remove it",)
        assert story(store) == ["Opened 1", "Closed 1", "Opened 2"]

    def test_a_store_that_lists_in_no_order_is_read_by_a_full_list(self) -> None:
        store = UnorderedStore()
        log_writer = opened(store)
        for step in range(6):
            commit(log_writer, step)
        log_writer.close("no-step")
        opened(store, 2)
        assert story(store)[-2:] == ["Closed 1", "Opened 2"]


def test_two_writers_raced_on_a_folder_have_one_winner_per_number(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", {})
    opened(store, 1)
    fenced = race(store, [2, 3, 4, 5])
    words = story(store)
    runs = [int(word.split()[1]) for word in words]
    assert runs == sorted(runs), "no append of a run after a later one opened"
    assert [slot.problem for slot in Log(store).entries(len(words))] == [""] * len(words)
    assert 5 not in fenced
    assert words[-1] == "Closed 5"


def race(store: Store, runs: list[int]) -> set[int]:
    """Each run opens over the others and commits until it is fenced or done; returns the fenced ones."""
    start = threading.Barrier(len(runs), timeout=60)

    def act(run: int) -> bool:
        start.wait()
        try:
            log_writer = writer(store, run)
            while isinstance(log_writer.try_open(1, wait_over=True), NotYet):
                pass  # the others keep appending: they come to an end
            for step in range(5):
                commit(log_writer, step)
            log_writer.close("done")
        except Fenced:
            return True
        return False

    with ThreadPoolExecutor(len(runs)) as pool:
        return {run for run, was_fenced in zip(runs, pool.map(act, runs), strict=True) if was_fenced}


def test_closed_is_an_event_with_its_outcome() -> None:
    store = MemoryStore()
    opened(store).close("stopped")
    slot = Log(store).slot(2)
    assert slot
    assert slot.entry
    assert slot.entry.event == Closed("stopped")
