"""Which images a rank leaves, and when its optimizers may step, so that one lost rank costs no step: a pure machine.

No rank has all of a sharded model. So after a death the images of several ranks have to be of one step, with each shard
in one of them. Two rules ensure that together, where two ranks hold each shard:

* Before the first optimizer of a step changes anything, all ranks meet. A rank that comes has its final gradient.
* A rank that loses another one in this meeting cannot know whether a third has passed it. So it keeps an image of the
  place before the step, steps with the gradient it has, and leaves a second image behind the step.

If any rank has passed the meeting, all had come to it, and every survivor has an image behind the step. If none has,
every survivor has one of the place before. The next run takes the newest step of which it finds all shards
(perdure.log.images). So no survivor has to ask another one.

A rank that has left its image because its agent wanted one trains no more: the ranks may all be alive, and would finish
steps that the next run does not know.

Whole models need no meeting, because one image is the whole state. perdure.loop.survivor_snapshots carries this out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class StepPhase(Enum):
    """Where a rank is between two places at which the run might stop."""

    STANDS = "stands"
    """No optimizer has stepped since the last such place."""
    MEETS = "meets"
    """The rank waits for the others, and then its optimizer steps."""
    STEPS = "steps"
    """An optimizer may have changed something."""
    ENDED = "ended"
    """The rank has left its images, or none."""


class StepEvent(Enum):
    """What happens to a rank."""

    WILL_STEP = "an optimizer is about to step"
    MET = "all ranks have come to the meeting"
    SILENCE = "the meeting has failed: another rank is lost"
    STOOD = "it is at the next place at which the run might stop"
    ASKED = "its agent wants an image: the run is lost"
    FAILED = "its training has ended with an error, as when a collective loses a rank, or no image is worth a wait"
    LATE = "it was asked for an image, and its step takes too long"


class StepAction(Enum):
    """What a rank does."""

    MEET = "wait for the others"
    KEEP = "write an image of the last place; another may follow"
    PROCEED = "let the optimizer step"
    LEAVE = "write an image of the last place, and tell the agent what is there"
    TELL = "tell the agent what is there"
    RAISE = "raise an error: a rank is lost"


@dataclass(frozen=True)
class LastStep:
    """One rank."""

    meets: bool = False
    """Whether the ranks meet before they step."""
    phase: StepPhase = StepPhase.STANDS
    asked: bool = False
    """Whether its agent wants an image."""
    alone: bool = False
    """Whether it has lost another rank, and only finishes the step."""


StepReaction = tuple[LastStep, tuple[StepAction, ...]]


def react(state: LastStep, event: StepEvent) -> StepReaction:
    """What the rank does next, and what it is then."""
    match state.phase:
        case StepPhase.STANDS:
            return _stands(state, event)
        case StepPhase.MEETS:
            return _meets(state, event)
        case StepPhase.STEPS:
            return _steps(state, event)
        case StepPhase.ENDED:
            return state, (StepAction.RAISE,) if event is StepEvent.WILL_STEP else ()


def _stands(state: LastStep, event: StepEvent) -> StepReaction:
    match event:
        case StepEvent.WILL_STEP if state.meets:
            return replace(state, phase=StepPhase.MEETS), (StepAction.MEET,)
        case StepEvent.WILL_STEP:
            return replace(state, phase=StepPhase.STEPS), (StepAction.PROCEED,)
        case StepEvent.ASKED | StepEvent.FAILED:
            return _left(state)
    return state, ()


def _meets(state: LastStep, event: StepEvent) -> StepReaction:
    match event:
        case StepEvent.MET:
            return replace(state, phase=StepPhase.STEPS), (StepAction.PROCEED,)
        case StepEvent.SILENCE | StepEvent.ASKED:
            asked = event is StepEvent.ASKED
            return replace(state, phase=StepPhase.STEPS, alone=True, asked=asked), (StepAction.KEEP, StepAction.PROCEED)
        case StepEvent.FAILED:
            return _left(state)
    return state, ()


def _steps(state: LastStep, event: StepEvent) -> StepReaction:
    match event:
        case StepEvent.WILL_STEP:
            return state, (StepAction.PROCEED,)
        case StepEvent.STOOD if state.alone:
            return _left(state, StepAction.RAISE)
        case StepEvent.STOOD if state.asked:
            return _left(state)
        case StepEvent.STOOD:
            return replace(state, phase=StepPhase.STANDS), ()
        case StepEvent.ASKED:
            return replace(state, asked=True), ()
        case StepEvent.FAILED | StepEvent.LATE:
            return replace(state, phase=StepPhase.ENDED), (StepAction.TELL,)
    return state, ()


def _left(state: LastStep, *more: StepAction) -> StepReaction:
    return replace(state, phase=StepPhase.ENDED), (StepAction.LEAVE, *more)
