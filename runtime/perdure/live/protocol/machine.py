"""One party's state machine.

Pure and total: the same state and event always give the same step, and events without meaning in a state are ignored.
No clock: alarms are events (perdure.live.protocol.timing). The hand-over's shell drives it, and so does the model
checker that tries every order of events in small worlds.
"""

from __future__ import annotations

from perdure.live.protocol.events import Event, SetWarm
from perdure.live.protocol.newcomer import step_newcomer
from perdure.live.protocol.old import step_old
from perdure.live.protocol.parties import Attempt
from perdure.live.protocol.state import PartyPhase, PartyState, Step, known, named

__all__ = ["PartyPhase", "PartyState", "Step", "begin", "known", "named", "step"]


def begin(attempt: Attempt, number: int) -> Step:
    """The first state and actions of party `number`."""
    me = attempt.parties[number]
    others = frozenset(party.number for party in attempt.parties) - {number}
    if not me.decides:
        return PartyState(attempt, me), (SetWarm(),)
    # No stop before the object store, which decides, has answered once.
    return PartyState(attempt, me, silent=True, needed=others), (SetWarm(),)


def step(state: PartyState, event: Event) -> Step:
    """The state after `event`, and the actions in order."""
    return step_newcomer(state, event) if state.joins else step_old(state, event)
