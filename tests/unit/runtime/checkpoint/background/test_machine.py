"""One rank's machine by example: what a reader looks up first. Every order of events is in test_model."""

from __future__ import annotations

import pytest

from perdure.checkpoint.background import events as on
from perdure.checkpoint.background.machine import SavesState, begin, step
from perdure.checkpoint.background.state import (
    Carried,
    carried,
    may_hand_over,
    name_of,
    quiet,
    renewed,
    stands,
    unanswered,
    under_way,
    words,
)
from perdure.checkpoint.background.vector import ArenaUse, Words, reduced

WRITER = "w"
NAME = name_of(WRITER, 1)
SAVE = on.Save(1, NAME, 7, "cadence")
LATER, THIS_STEP, NOW = on.Wish.LATER, on.Wish.THIS_STEP, on.Wish.NOW
NOBODY = Words()
DURABLE = Words(durable=1, arena=ArenaUse.IN_USE)
FAILED = Words(failed=1)


def after(state: SavesState, *events: on.Event) -> SavesState:
    for event in events:
        state, _ = step(state, event)
    return state


def asked(state: SavesState, event: on.Event) -> tuple[on.Action, ...]:
    return step(state, event)[1]


def idle(rank: int = 0) -> SavesState:
    return after(begin(WRITER, rank), on.Room(True), on.Agreed(NOBODY))


def uploading(rank: int = 0) -> SavesState:
    return after(idle(rank), on.AtBoundary(7, LATER, "cadence"), on.Sealed(NAME))


def durable(rank: int = 0) -> SavesState:
    return after(uploading(rank), on.Durable(NAME, 1))


def committing() -> SavesState:
    return after(durable(), on.Agreed(DURABLE))


def sent() -> SavesState:
    return after(committing(), on.Prepared(NAME))


def committed(rank: int = 0) -> SavesState:
    said = words(after(sent(), on.Appended(NAME, 9)))
    return after(durable(rank), on.Released(NAME, 1), on.Agreed(DURABLE), on.Agreed(said))


def leaves(
    said: Words, left: float | None, rest: float = 10.0, whole: float | None = 20.0, **others: bool
) -> on.Leaves:
    return on.Leaves(said, left, rest, whole, **others)


def test_a_save_from_its_hand_out_to_its_entry_in_the_log() -> None:
    state = idle()
    for event, expected in (
        (on.AtBoundary(7, LATER, "cadence"), (on.Copy(SAVE),)),
        (on.Sealed(NAME), (on.StartUpload(SAVE, 1),)),
        (on.Durable(NAME, 1), ()),
        (on.Released(NAME, 1), ()),
        (on.AtBoundary(8), ()),
        (on.Agreed(Words(durable=1)), (on.Prepare(SAVE),)),
        (on.Prepared(NAME), (on.Append(SAVE, final=False),)),
        (on.NoAnswer(NAME), (on.Append(SAVE, final=False, again=True),)),
        (on.Appended(NAME, 9), ()),
    ):
        state, actions = step(state, event)
        assert actions == expected, event
    state = after(state, on.Agreed(words(state)))
    assert asked(state, on.AtBoundary(9)) == (on.TellCommitted(SAVE, 9),)
    assert asked(after(state, on.AtBoundary(9)), on.AtBoundary(10, LATER, "cadence"))[0] == on.Copy(
        on.Save(2, name_of(WRITER, 2), 10, "cadence")
    )


def test_all_ranks_tell_of_the_commit_by_rank_0s_word() -> None:
    assert asked(committed(rank=1), on.AtBoundary(9)) == (on.TellCommitted(SAVE, 9),)


def test_words_are_integers_whose_greatest_count() -> None:
    said = Words(
        durable=3, failed=2, arena=ArenaUse.IN_USE, committed=words(after(sent(), on.Appended(NAME, 9))).committed
    )
    assert Words.read(said.vector()) == said
    assert reduced([said, Words(durable=2, failed=4)]) == Words(2, 4, ArenaUse.IN_USE, said.committed)


@pytest.mark.parametrize(
    "event",
    [on.Durable("old", 1), on.Durable(NAME, 2), on.Failed("old", ""), on.Released("old", 1), on.Sealed("old"),
     on.Late("old"), on.UploaderEnded(2), on.UploaderStuck(1), on.Prepared(NAME), on.Appended(NAME, 1),
     on.Released(NAME, 2)],
    ids=repr,
)  # fmt: skip
def test_a_word_of_something_else_is_ignored(event: on.Event) -> None:
    assert step(uploading(), event) == (uploading(), ())


def test_a_save_begins_only_where_no_rank_is_busy() -> None:
    busy = after(idle(), on.Agreed(Words(arena=ArenaUse.IN_USE)))
    assert asked(busy, on.AtBoundary(7, LATER, "cadence")) == ()
    assert asked(after(begin(WRITER, 0), on.Room(True)), on.AtBoundary(7, LATER, "cadence")) == ()


def test_a_save_streams_where_a_rank_has_no_arena() -> None:
    without = after(idle(), on.Agreed(Words(arena=ArenaUse.NONE)))
    assert asked(without, on.AtBoundary(7, LATER, "cadence")) == (on.Stream("cadence"),)


def test_a_part_that_fails_fails_on_all_and_is_made_again() -> None:
    failed, actions = step(uploading(), on.Failed(NAME, "refused"))
    assert actions == (on.KillUploader(1),)
    assert words(failed) == Words(failed=1, arena=ArenaUse.IN_USE)
    assert words(after(failed, on.UploaderEnded(1))) == FAILED
    told = after(failed, on.UploaderEnded(1), on.Agreed(FAILED))
    assert asked(after(failed, on.UploaderEnded(1)), on.Agreed(FAILED)) == (on.Abandon(SAVE),)
    again = on.Copy(on.Save(2, name_of(WRITER, 2), 9, "cadence"))
    assert asked(told, on.AtBoundary(9)) == (on.TellFailed(SAVE, "refused"), again)
    assert asked(told, on.AtBoundary(9, paused=True)) == (on.TellFailed(SAVE, "refused"),)


def test_a_copy_that_has_changed_is_of_no_use_to_any_rank_and_is_told_apart() -> None:
    copying = after(idle(), on.AtBoundary(7, LATER, "cadence"))
    changed = after(copying, on.CopyChanged(NAME))
    assert words(changed) == FAILED
    told = after(changed, on.Agreed(FAILED))
    again = on.Copy(on.Save(2, name_of(WRITER, 2), 9, "cadence"))
    assert asked(told, on.AtBoundary(9)) == (on.TellFailed(SAVE, "it changed while it was copied", changed=True), again)
    assert not after(told, on.AtBoundary(9)).changed


def test_a_copy_that_has_changed_after_its_deadline_was_late() -> None:
    copying = after(idle(), on.AtBoundary(7, LATER, "cadence"))
    told = after(copying, on.Late(NAME), on.CopyChanged(NAME), on.Agreed(FAILED))
    assert asked(told, on.AtBoundary(9, paused=True)) == (on.TellFailed(SAVE, "not uploaded by its deadline"),)


def test_the_uploader_of_a_save_that_failed_elsewhere_is_killed() -> None:
    assert asked(uploading(rank=1), on.Agreed(FAILED)) == (on.KillUploader(1),)


def test_an_uploader_that_dies_is_followed_by_another_once() -> None:
    assert asked(uploading(), on.UploaderEnded(1)) == (on.StartUpload(SAVE, 2),)
    assert words(after(uploading(), on.UploaderEnded(1), on.UploaderEnded(2))) == FAILED


def test_a_save_whose_uploaders_have_died_says_why() -> None:
    again = after(uploading(), on.UploaderEnded(1, "killed by SIGKILL"))
    assert after(again, on.UploaderEnded(2, "exit status 1")).why == "exit status 1"
    assert after(again, on.UploaderEnded(2)).why == "its uploaders have ended"


def test_an_uploader_that_cannot_be_reaped_costs_the_arena() -> None:
    stuck = after(uploading(), on.Late(NAME), on.UploaderStuck(1))
    assert words(stuck) == Words(failed=1, arena=ArenaUse.NONE)
    assert words(after(stuck, on.UploaderEnded(1), on.Room(True))).arena == ArenaUse.NONE


def test_an_arena_that_is_not_released_by_the_deadline_is_freed() -> None:
    told = after(durable(), on.Agreed(DURABLE), on.Prepared(NAME), on.Appended(NAME, 9))
    told = after(told, on.Agreed(words(told)))
    assert asked(told, on.Late(NAME)) == (on.KillUploader(1),)


def test_a_sent_append_is_given_up_only_where_another_run_owns_the_log() -> None:
    for event in (on.Late(NAME), on.NotPrepared(NAME, "x"), on.Failed(NAME, "x"), on.Agreed(DURABLE)):
        assert unanswered(after(sent(), on.Released(NAME, 1), event))
    fenced = after(sent(), on.CommitFenced(NAME, "run 3"))
    assert words(fenced).arena == ArenaUse.FENCED
    assert asked(after(fenced, on.Agreed(words(fenced))), on.AtBoundary(9)) == (on.StopFenced("run 3"),)
    assert asked(after(durable(1), on.Agreed(words(fenced))), on.AtBoundary(9)) == (on.StopFenced(""),)


def test_the_clock_skips_and_others_stand() -> None:
    assert asked(uploading(), on.AtBoundary(8, LATER, "cadence")) == ()
    for wish, action in ((THIS_STEP, on.Copy(on.Save(2, name_of(WRITER, 2), 8, "epoch"))), (NOW, on.Stream("epoch"))):
        standing = after(after(durable(), on.Agreed(DURABLE), on.Released(NAME, 1)), on.AtBoundary(8, wish, "epoch"))
        assert stands(standing)
        said = words(after(standing, on.Prepared(NAME), on.Appended(NAME, 9)))
        settled, actions = step(standing, on.Stood(said))
        assert actions == (on.TellCommitted(SAVE, 9), action)
        assert not stands(settled)
        missed = on.TellMissed("epoch", "the save before it is not settled")
        assert asked(standing, on.Stood(words(standing), late=True)) == (missed,)


def test_a_position_that_was_just_saved_is_not_saved_again() -> None:
    standing = after(committing(), on.AtBoundary(7, NOW, "script", same=True))
    said = words(after(standing, on.Prepared(NAME), on.Appended(NAME, 9)))
    assert asked(standing, on.Stood(said)) == (on.TellCommitted(SAVE, 9),)


def test_a_hand_over_drops_what_is_not_being_committed() -> None:
    stopped = after(uploading(), on.Stops())
    assert not stands(stopped)
    assert carried(stopped) == Carried("cadence", dropped=True)
    over, actions = step(stopped, on.HandsOver())
    assert actions == (on.Abandon(SAVE), on.KillUploader(1))
    newer = renewed(over, "w2", 1)
    assert (newer.owed, newer.dropped) == ("cadence", True)
    assert words(newer) == Words(arena=ArenaUse.IN_USE)
    newer = after(newer, on.UploaderEnded(1), on.Agreed(NOBODY))
    begun, actions = step(newer, on.AtBoundary(7))
    assert actions == (on.Copy(on.Save(1, name_of("w2", 1), 7, "cadence")),)
    assert not may_hand_over(begun)


def test_a_newer_run_opens_only_once_an_append_is_answered() -> None:
    stopped = after(sent(), on.Stops())
    assert stands(stopped)
    assert asked(stopped, on.Stood(DURABLE, late=True)) == (on.RefuseHandover("the store has not answered a commit"),)
    said = words(after(stopped, on.Appended(NAME, 9)))
    assert asked(stopped, on.Stood(said)) == (on.TellCommitted(SAVE, 9),)
    assert carried(after(stopped, on.Stood(said))) == Carried()


def test_an_aborted_hand_over_costs_nothing() -> None:
    assert after(uploading(), on.Stops(), on.TrainsOn()) == uploading()


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (leaves(NOBODY, 5.0), (on.Abandon(SAVE), on.KillUploader(1), on.Close("no time for the save under way"))),
        (leaves(NOBODY, 15.0), ()),
        (leaves(NOBODY, 25.0), (on.KillUploader(1), on.Stream("leaving", final=True, keep=10.0))),
        (leaves(NOBODY, 35.0), ()),
        (leaves(NOBODY, None), ()),
        (leaves(NOBODY, None, rest=199.0), ()),
        (leaves(NOBODY, None, rest=201.0), (on.KillUploader(1), on.Stream("leaving", final=True, keep=201.0))),
        (leaves(NOBODY, None, rest=29.0, whole=0.0), ()),
        (leaves(NOBODY, None, rest=31.0, whole=0.0, same=True),
            (on.KillUploader(1), on.Stream("leaving", final=True, keep=31.0))),
        (leaves(NOBODY, 35.0, hurries=True), (on.KillUploader(1), on.Stream("leaving", final=True, keep=10.0))),
        (leaves(NOBODY, 35.0, hurries=True, rest=1.0), ()),
        (leaves(NOBODY, 35.0, hurries=True, same=True), ()),
        (leaves(NOBODY, 55.0, hurries=True, same=True, rest=21.0),
            (on.KillUploader(1), on.Stream("leaving", final=True, keep=21.0))),
        (leaves(NOBODY, 25.0, same=True), ()),
        (leaves(NOBODY, 15.0, whole=None), ()),
        (leaves(NOBODY, 5.0, whole=None), (on.Abandon(SAVE), on.KillUploader(1), on.Left())),
        (leaves(DURABLE, 5.0), (on.Prepare(SAVE),)),
        (leaves(FAILED, 25.0), (on.Abandon(SAVE), on.KillUploader(1), on.TellFailed(SAVE, ""),
                                on.Stream("leaving", final=True))),
    ],
)  # fmt: skip
def test_the_ranks_decide_by_time_what_they_leave_with(event: on.Leaves, expected: tuple[on.Action, ...]) -> None:
    assert asked(uploading(), event) == expected


def test_what_was_held_is_uploaded_again_if_the_whole_save_fails() -> None:
    held = after(uploading(), leaves(NOBODY, 25.0), on.UploaderEnded(1), on.Streamed(False))
    assert asked(held, leaves(NOBODY, 12.0)) == (on.StartUpload(SAVE, 2),)
    assert asked(after(held, leaves(NOBODY, 12.0), on.Durable(NAME, 2)), leaves(DURABLE, 5.0)) == (on.Prepare(SAVE),)
    state = after(held, leaves(NOBODY, 12.0), on.Durable(NAME, 2), leaves(DURABLE, 5.0))
    assert asked(state, on.Prepared(NAME)) == (on.Append(SAVE, final=True),)


def test_a_whole_save_ends_the_turn() -> None:
    assert asked(idle(), leaves(NOBODY, 5.0)) == (on.Stream("leaving", final=True),)
    held = after(uploading(), leaves(NOBODY, 25.0), on.UploaderEnded(1))
    assert asked(held, on.Streamed(True)) == (on.Abandon(SAVE), on.Left())


def test_no_rank_closes_over_an_append_without_an_answer() -> None:
    event = on.Leaves(DURABLE, 0.0, 10.0, 20.0, unanswered=True)
    assert asked(sent(), event) == (on.GiveUp("time is up, and the store has not answered a commit"),)


def test_nothing_of_a_process_stays_behind() -> None:
    assert asked(uploading(), on.Ends()) == (on.KillUploader(1),)
    assert quiet(after(uploading(), on.Ends(), on.UploaderEnded(1)))
    assert under_way(uploading()) == SAVE
