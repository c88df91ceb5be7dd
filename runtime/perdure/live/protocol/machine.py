"""One party's machine: what it does for whatever happens, and nothing else.

Pure and total: the same state and event always give the same answer, and an event that means nothing in a state is
ignored. No clock: alarms are events (perdure.live.protocol.timing). Driven by the hand-over's shell, and by the model
checker that tries every order of events in small worlds.
"""

from __future__ import annotations

from perdure.live.protocol.events import Event, SetWarm
from perdure.live.protocol.newcomer import step_newcomer
from perdure.live.protocol.old import step_old
from perdure.live.protocol.parties import Attempt
from perdure.live.protocol.state import Phase, State, Step, known, named

__all__ = ["Phase", "State", "Step", "begin", "known", "named", "step"]


def begin(attempt: Attempt, number: int) -> Step:
    """Party `number` takes part from now on."""
    me = attempt.parties[number]
    others = frozenset(party.number for party in attempt.parties) - {number}
    if not me.decides:
        return State(attempt, me), (SetWarm(),)
    # No stop before the store that is to decide has been seen to answer.
    return State(attempt, me, silent=True, needed=others), (SetWarm(),)


def step(state: State, event: Event) -> Step:
    """The state after `event`, and what to do about it, in this order."""
    return step_newcomer(state, event) if state.joins else step_old(state, event)
