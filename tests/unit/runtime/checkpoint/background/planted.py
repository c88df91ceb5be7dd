"""Each rule of saves in the background, taken out of the machine or of the world: a law has to break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from perdure.checkpoint.background import events as on
from perdure.checkpoint.background.agreeing import drop
from perdure.checkpoint.background.committing import begin_commit
from perdure.checkpoint.background.machine import SavesState, Step, step
from perdure.checkpoint.background.state import CommitState, Mode, PartState, SaveOutcome, stay, then
from perdure.checkpoint.background.this_rank import fail
from perdure.checkpoint.background.vector import ArenaUse
from tests.unit.runtime.checkpoint.background.small import Setting

React = Callable[[SavesState, on.Event], Step]
LATER, THIS_STEP, NOW = on.Wish.LATER, on.Wish.THIS_STEP, on.Wish.NOW


@dataclass(frozen=True)
class Planted:
    """One bug, a small setting in which it does harm, and the law that then breaks."""

    law: str
    setting: Setting


def _free_once_durable(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    return (replace(after, arena="") if after.part is PartState.DURABLE else after), actions


def _free_once_killed(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    killed = any(isinstance(action, on.KillUploader) for action in actions)
    return (replace(after, arena="", dying=0) if killed else after), actions


def _released_by_any(state: SavesState, event: on.Event) -> Step:
    """Also by a process that has died meanwhile, and was followed by another one."""
    if isinstance(event, on.Released):
        event = replace(event, uploader=state.uploader)
    return step(state, event)


def _a_process_that_died_says_failed(state: SavesState, event: on.Event) -> Step:
    if isinstance(event, on.UploaderEnded) and event.uploader == state.uploader and state.part is PartState.UPLOADING:
        return stay(state, uploader=0)
    return step(state, event)


def _starts_by_its_own_arena(state: SavesState, event: on.Event) -> Step:
    if isinstance(event, on.AtBoundary):
        own = ArenaUse.IN_USE if state.arena else ArenaUse.FREE
        return step(replace(state, busiest=own), event)
    return step(state, event)


def _any_durable(state: SavesState, event: on.Event) -> Step:
    if isinstance(event, on.Durable) and state.save:
        event = on.Durable(state.save.name, state.uploader)
    return step(state, event)


def _told_once_durable(state: SavesState, event: on.Event) -> Step:
    before = state.everywhere
    after, actions = step(state, event)
    if after.everywhere and not before and after.save:
        after = replace(after, outcome=SaveOutcome(after.save, seq=2))
    return after, actions


def _committed_by_rank_0_alone(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    if isinstance(event, on.Durable) and after.part is PartState.DURABLE:
        return then((after, actions), begin_commit(after))
    return after, actions


def _given_up_and_deleted(state: SavesState, event: on.Event) -> Step:
    if isinstance(event, on.NoAnswer) and state.save:
        return fail(state, "no answer")
    return step(state, event)


def _failed_with_its_append(state: SavesState, event: on.Event) -> Step:
    """The deadline also counts once the append is sent."""
    if isinstance(event, on.Late) and state.commit is CommitState.SENT and state.save:
        return fail(replace(state, part=PartState.DURABLE), "late")
    return step(state, event)


def _forgotten(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    return replace(after, owed="" if any(isinstance(one, on.TellFailed) for one in actions) else after.owed), actions


def _not_carried(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    return (replace(after, owed="") if isinstance(event, on.HandsOver) else after), actions


def _nobody_stands(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    return (replace(after, mode=Mode.TRAINS, firm=None) if after.mode is Mode.STANDS else after), actions


def _streams_beside(state: SavesState, event: on.Event) -> Step:
    if isinstance(event, on.AtBoundary) and event.wish is NOW and state.save:
        return stay(state, on.Stream(event.reason))
    return step(state, event)


def _opens_without_an_answer(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    return (replace(after, mode=Mode.STOPPED) if after.mode is Mode.SETTLES else after), actions


def _stays_behind(state: SavesState, event: on.Event) -> Step:
    return stay(state) if isinstance(event, on.Ends) else step(state, event)


def _no_deadline(state: SavesState, event: on.Event) -> Step:
    return stay(state) if isinstance(event, on.Late) else step(state, event)


def _no_deadline_once_durable(state: SavesState, event: on.Event) -> Step:
    return stay(state) if isinstance(event, on.Late) and state.part is not PartState.UPLOADING else step(state, event)


def _dropped_and_not_held(state: SavesState, event: on.Event) -> Step:
    after, actions = step(state, event)
    if any(isinstance(one, on.Stream) and one.keep for one in actions):
        return then((after, actions), drop(after))
    return after, actions


def _waits_without_an_end(state: SavesState, event: on.Event) -> Step:
    """A save in progress is waited for, though there is time for a whole save alone."""
    if isinstance(event, on.Leaves) and state.waits and state.save and event.left is not None and event.left > 0:
        return stay(state)
    return step(state, event)


def _closes_over_an_append(state: SavesState, event: on.Event) -> Step:
    if isinstance(event, on.Leaves) and event.unanswered and event.left is not None and event.left <= 0:
        return stay(state, on.Close("time is up"), mode=Mode.LEFT)
    return step(state, event)


def _leaves_what_is_durable(state: SavesState, event: on.Event) -> Step:
    if isinstance(event, on.Leaves) and state.save and event.words.durable >= state.save.number:
        dropped = drop(state)
        return then(dropped, step(dropped[0], event))
    return step(state, event)


PLANTED: dict[str, Planted] = {
    "an arena is free once its part is durable": Planted("reader", Setting(rounds=6, react=_free_once_durable)),
    "an arena is free once its uploader is killed": Planted(
        "reader", Setting({"fail": 1}, rounds=5, react=_free_once_killed)
    ),
    "an arena is released by who has died": Planted(
        "reader", Setting({"die": 1, "late": 1}, 1, rounds=6, react=_released_by_any)
    ),
    "a process that died is waited for": Planted(
        "stuck", Setting({"die": 1}, rounds=3, react=_a_process_that_died_says_failed)
    ),
    "each rank starts by its own arena": Planted("", Setting(rounds=6, react=_starts_by_its_own_arena)),
    "a word of another save is believed": Planted("whole", Setting({"late": 1}, 1, rounds=6, react=_any_durable)),
    "hooks are told once all parts are durable": Planted("told", Setting(rounds=4, react=_told_once_durable)),
    "rank 0 commits when its own part is durable": Planted(
        "whole", Setting(rounds=3, react=_committed_by_rank_0_alone)
    ),
    "an append without an answer is given up, and its folder deleted": Planted(
        "whole", Setting({"lost": 1}, rounds=4, react=_given_up_and_deleted, without="beside")
    ),
    "the deadline also counts once the append is sent": Planted(
        "order", Setting({"late": 1, "lost": 1}, 1, rounds=4, react=_failed_with_its_append, without="beside")
    ),
    "a failed save is forgotten": Planted("owed", Setting({"fail": 1}, 1, rounds=5, react=_forgotten)),
    "a dropped save is forgotten": Planted("apart", Setting(runs=2, offers=1, rounds=4, react=_not_carried)),
    "a save of this very step is skipped": Planted(
        "firm", Setting(rounds=4, firm=1, wishes=(LATER, THIS_STEP), react=_nobody_stands)
    ),
    "a save streams beside one under way": Planted(
        "", Setting(rounds=4, firm=1, wishes=(LATER, NOW), react=_streams_beside)
    ),
    "a newer run opens while an append has no answer": Planted(
        "older", Setting(world=1, runs=2, offers=1, rounds=5, react=_opens_without_an_answer)
    ),
    "a save is dropped after one that was dropped": Planted(
        "drops", Setting(runs=2, offers=1, rounds=4, dropped=True, without="guard")
    ),
    "an uploader stays behind": Planted("behind", Setting(rounds=3, react=_stays_behind)),
    "there is no deadline": Planted(
        "stuck", Setting({"freeze": 1}, 1, rounds=3, firm=1, wishes=(LATER, THIS_STEP), react=_no_deadline)
    ),
    "there is no deadline once a part is durable": Planted(
        "stuck", Setting({"freeze": 1}, 1, rounds=3, firm=1, wishes=(LATER, THIS_STEP), react=_no_deadline_once_durable)
    ),
    "what is under way is dropped for a whole save": Planted(
        "exit", Setting({"stream": 1}, rounds=3, terms=1, react=_dropped_and_not_held)
    ),
    "what is under way is waited for until nothing else fits": Planted(
        "exit", Setting({"freeze": 1}, 1, rounds=3, terms=1, react=_waits_without_an_end)
    ),
    "a run is closed over an append without an answer": Planted(
        "order", Setting({"lost": 1}, rounds=4, terms=1, react=_closes_over_an_append)
    ),
    "what is durable is left behind": Planted("exit", Setting(rounds=3, terms=1, react=_leaves_what_is_durable)),
}
