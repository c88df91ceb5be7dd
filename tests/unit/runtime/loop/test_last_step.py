"""One rank of a small mesh dies, stands still or is cut off, in every order of events: no finished step is lost, and
the next run never begins with shards of two steps. Each rule that is left out is missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from perdure.log.entry import ImageRef
from perdure.log.images import ImageChoice, ImageOffer
from perdure.loop.last_step import LastStep, StepAction, StepEvent, StepPhase, StepReaction, react
from tests.unit.runtime.loop.losing import TO_THE_COMMIT, Found, React, Setting, Stage, explore


def _nobody_finishes_alone(state: LastStep, event: StepEvent) -> StepReaction:
    """A rank that loses the meeting stays where it is."""
    if state.phase is StepPhase.MEETS and event in (StepEvent.SILENCE, StepEvent.ASKED):
        return replace(state, phase=StepPhase.ENDED), (StepAction.LEAVE,)
    return react(state, event)


def _no_image_of_the_place_before(state: LastStep, event: StepEvent) -> StepReaction:
    state, actions = react(state, event)
    return state, tuple(action for action in actions if action is not StepAction.KEEP)


def _no_image_behind_the_last_step(state: LastStep, event: StepEvent) -> StepReaction:
    if state.alone and event is StepEvent.STOOD:
        return replace(state, phase=StepPhase.ENDED), (StepAction.TELL, StepAction.RAISE)
    return react(state, event)


def _trains_on_behind_its_image(state: LastStep, event: StepEvent) -> StepReaction:
    state, actions = react(state, event)
    if state.phase is StepPhase.ENDED and event is StepEvent.ASKED:
        return replace(state, phase=StepPhase.STANDS), actions
    return state, actions


def _the_meeting_is_not_left_for_the_agent(state: LastStep, event: StepEvent) -> StepReaction:
    if state.phase is StepPhase.MEETS and event is StepEvent.ASKED:
        return state, ()
    return react(state, event)


def _who_is_asked_in_the_meeting_keeps_nothing(state: LastStep, event: StepEvent) -> StepReaction:
    if event is StepEvent.ASKED:
        return _no_image_of_the_place_before(state, event)
    return react(state, event)


def _leaves_an_image_of_a_broken_step(state: LastStep, event: StepEvent) -> StepReaction:
    if state.phase is StepPhase.STEPS and event in (StepEvent.FAILED, StepEvent.LATE):
        return replace(state, phase=StepPhase.ENDED), (StepAction.LEAVE,)
    return react(state, event)


def _waits_for_ever_for_its_own_step(state: LastStep, event: StepEvent) -> StepReaction:
    return (state, ()) if event is StepEvent.LATE else react(state, event)


def _the_newest_step_of_any_shard(offers: Sequence[ImageOffer], **_: object) -> ImageChoice:
    return ImageChoice(ImageRef(*max(offer.place for offer in offers)))


def _only_the_newest_step(offers: Sequence[ImageOffer], **_: object) -> ImageChoice:
    place = max(offer.place for offer in offers)
    there = [offer for offer in offers if offer.place == place]
    return ImageChoice(ImageRef(*place) if len({offer.part for offer in there}) == there[0].parts else None)


@dataclass(frozen=True)
class _MeetsAgain(LastStep):
    """A rank that would meet the others before each of its optimizers."""

    again: bool = False


def _meets_before_each_optimizer(state: LastStep, event: StepEvent) -> StepReaction:
    """Whoever loses a later meeting can only go on: its first optimizer has changed the place before."""
    assert isinstance(state, _MeetsAgain)
    again = state.again
    if state.phase is StepPhase.STEPS and event is StepEvent.WILL_STEP and not state.alone:
        if state.asked:
            return replace(state, alone=True), (StepAction.PROCEED,)
        return replace(state, phase=StepPhase.MEETS, again=True), (StepAction.MEET,)
    if again and state.phase is StepPhase.MEETS and event is StepEvent.FAILED:
        return replace(state, phase=StepPhase.ENDED), (StepAction.TELL,)
    after, actions = react(state, event)
    if again and event is StepEvent.STOOD:
        after = replace(state, phase=after.phase, again=False)
    return after, tuple(action for action in actions if not (again and action is StepAction.KEEP))


def _keeps_each_place(below: React) -> React:
    """An image of the place before is written at each step, not at a loss alone."""

    def keeping(state: LastStep, event: StepEvent) -> StepReaction:
        after, actions = below(state, event)
        first = not (isinstance(state, _MeetsAgain) and state.again)
        keeps = first and state.phase is StepPhase.MEETS and event is StepEvent.MET
        return after, (StepAction.KEEP, *actions) if keeps else actions

    return keeping


LONGER = pytest.mark.chaos
HSDP = Setting(2, 2, "kill")
TWO = Setting(2, 1, "kill")
ONE_OF_TWO_FROZEN = Setting(2, 1, "freeze")
PLANTED: dict[str, tuple[Setting, Callable[[Found], bool]]] = {
    "nobody meets": (replace(HSDP, meets=False), lambda found: found.lost == TO_THE_COMMIT),
    "only the ranks of a row meet": (replace(HSDP, among="row"), lambda found: found.lost == 1),
    "nobody finishes a step alone": (replace(TWO, react=_nobody_finishes_alone), lambda found: bool(found.lost)),
    "no image of the place before": (
        replace(HSDP, react=_no_image_of_the_place_before),
        lambda found: found.lost == TO_THE_COMMIT,
    ),
    "no image behind the last step": (
        replace(HSDP, react=_no_image_behind_the_last_step),
        lambda found: bool(found.lost),
    ),
    "who has left an image trains on": (
        replace(ONE_OF_TWO_FROZEN, react=_trains_on_behind_its_image),
        lambda found: not found.good,
    ),
    "the meeting is not left for the agent": (
        replace(ONE_OF_TWO_FROZEN, react=_the_meeting_is_not_left_for_the_agent),
        lambda found: bool(found.stuck),
    ),
    "who is asked in the meeting keeps nothing": (
        replace(HSDP, fault="freeze", react=_who_is_asked_in_the_meeting_keeps_nothing),
        lambda found: found.lost == TO_THE_COMMIT,
    ),
    "who breaks in its step leaves an image of it": (
        replace(TWO, breaks=1, react=_leaves_an_image_of_a_broken_step),
        lambda found: bool(found.apart),
    ),
    "nobody is late": (
        replace(TWO, breaks=1, react=_waits_for_ever_for_its_own_step),
        lambda found: bool(found.stuck),
    ),
    "the newest step of any shard": (
        replace(HSDP, choose=_the_newest_step_of_any_shard),
        lambda found: bool(found.apart),
    ),
    "the newest step or none": (replace(HSDP, choose=_only_the_newest_step), lambda found: found.lost == TO_THE_COMMIT),
}


@pytest.mark.parametrize(
    ("shards", "fault"),
    [(2, "kill"), (2, "doubt"), (2, "raise"), (1, "freeze"), pytest.param(2, "freeze", marks=LONGER)],
)
def test_one_rank_of_a_mesh_costs_no_finished_step_and_nothing_is_mixed(shards: int, fault: str) -> None:
    found = explore(Setting(2, shards, fault))
    assert found.good, found


@pytest.mark.parametrize(
    ("replicas", "shards", "breaks"),
    [(3, 1, 1), *(pytest.param(2, 2, breaks, marks=LONGER) for breaks in (1, 2, 3))],
)
def test_nor_does_one_while_the_step_of_another_one_breaks_if_each_shard_has_a_third(
    replicas: int, shards: int, breaks: int
) -> None:
    """In its replicas, in its row, or in neither."""
    found = explore(Setting(replicas, shards, "kill", breaks=breaks))
    assert found.good, found


@pytest.mark.parametrize("meets", [True, False])
def test_who_is_asked_stands_still_or_is_in_its_last_step(*, meets: bool) -> None:
    """So a rank that is late is never in a meeting, and what it tells is the last that it leaves."""
    known = left = {LastStep(meets)}
    while left:
        left = {react(state, event)[0] for state in left for event in StepEvent} - known
        known = known | left
    assert {state.phase for state in known if state.asked} == {StepPhase.STEPS, StepPhase.ENDED}
    assert all(react(state, StepEvent.LATE)[0].phase is StepPhase.ENDED for state in known if state.asked)


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_nor_does_one_of_whole_models_without_any_meeting(fault: str) -> None:
    found = explore(Setting(3, 1, fault, steps=2, meets=False))
    assert found.good, found


@pytest.mark.parametrize("rule", PLANTED)
def test_without_a_rule_something_is_lost(rule: str) -> None:
    setting, is_seen = PLANTED[rule]
    found = explore(setting, first_only=True)
    assert is_seen(found), f"{rule}: {found}"


TWO_PASSES = replace(HSDP, passes=2)
MESHES = [pytest.param(replace(TWO, passes=2), id="2x1"), pytest.param(TWO_PASSES, id="2x2", marks=LONGER)]
EACH: dict[str, Any] = {"machine": _MeetsAgain(True), "react": _meets_before_each_optimizer}


def test_a_rank_lost_before_it_comes_to_the_meeting_costs_nothing_if_a_step_has_two_backward_passes() -> None:
    found = explore(replace(TWO_PASSES, when=lambda one: one.done < (0, 0, Stage.REDUCED)))
    assert found.good, found


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("more", [pytest.param({}, id="one-meeting"), pytest.param(EACH, id="a-meeting-each")])
def test_one_lost_later_costs_the_steps_since_the_commit_and_a_second_meeting_saves_none(
    mesh: Setting, more: dict[str, Any]
) -> None:
    """Nobody can finish the second backward pass without the lost rank, and nobody has the place before any more."""
    found = explore(replace(mesh, **more), first_only=True)
    assert found.lost == TO_THE_COMMIT, found


@LONGER
def test_only_an_image_of_each_place_together_with_a_meeting_each_would_save_all() -> None:
    assert explore(replace(TWO_PASSES, machine=EACH["machine"], react=_keeps_each_place(EACH["react"]))).good
    assert explore(replace(TWO_PASSES, react=_keeps_each_place(react)), first_only=True).lost == 1


@LONGER
@pytest.mark.parametrize(("replicas", "shards"), [(3, 2), (2, 3)])
def test_larger_meshes(replicas: int, shards: int) -> None:
    found = explore(Setting(replicas, shards, "kill"))
    assert found.good, found


def test_whole_models_never_meet() -> None:
    assert react(LastStep(), StepEvent.WILL_STEP) == (LastStep(phase=StepPhase.STEPS), (StepAction.PROCEED,))
