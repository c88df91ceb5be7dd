"""Each rule that a model checker once asked for, taken out of the machine or of the world: it has to ask again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from perdure.live.protocol import events as on
from perdure.live.protocol.events import Alarm
from perdure.live.protocol.machine import PartyPhase, PartyState, Step, step
from perdure.live.protocol.newcomer import step_newcomer
from perdure.live.protocol.parties import Attempt
from perdure.live.protocol.returning import say_and_return
from perdure.live.protocol.state import also, stay
from perdure.live.protocol.waiting import lost, went
from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord
from tests.unit.runtime.live.small import Setting

REPLACED = Attempt(1, 2, 2, (1,), (1,))
FIRST_REPLACED = Attempt(1, 2, 2, (0,), (0,))
GROWN = Attempt(1, 2, 2, (2,), ())
FIRST_GROWN = Attempt(1, 2, 1, (1,), ())
ONE_REPLACED = Attempt(1, 2, 1, (0,), (0,))
SHRUNK = Attempt(1, 2, 3, (), (1,))
ALL_REPLACED = Attempt(1, 2, 2, (0, 1), (0, 1))
ONE_OF_THREE_REPLACED = Attempt(1, 2, 3, (2,), (2,))
SHRUNK_TO_ONE = Attempt(1, 2, 2, (), (1,))
SHRUNK_TO_ONE_POD = Attempt(1, 2, 3, (), (2,), 2)
ONE_COMES_FOR_TWO = Attempt(1, 2, 2, (0,), (0, 1))
GROWN_BY_TWO = Attempt(1, 2, 1, (1, 2), ())
REPLACED_BY_TWO = Attempt(1, 2, 1, (0, 1), (0,))
SHAPES = {
    "rank-1-leaves": REPLACED,
    "rank-0-leaves": FIRST_REPLACED,
    "2-to-3": GROWN,
    "3-to-2": SHRUNK,
    "all-leave": ALL_REPLACED,
}
ABORT, RESTART = HandoverWord.ABORT, HandoverWord.RESTART

React = Callable[[PartyState, on.Event], Step]


@dataclass(frozen=True)
class Planted:
    """One bug, a small setting in which it does harm, and the law that then breaks."""

    law: str
    faults: dict[str, int] = field(default_factory=dict)
    late: int = 0
    attempt: Attempt = REPLACED
    react: React = step
    without: str = ""
    connecting: bool = False

    def setting(self, *, mended: bool = False) -> Setting:
        rules = frozenset({self.without} - {""})
        if mended:
            return Setting(self.attempt, self.faults, self.late, connecting=self.connecting)
        return Setting(
            self.attempt, self.faults, self.late, without=rules, react=self.react, connecting=self.connecting
        )


def _aborts(state: PartyState) -> Step:
    """As if it had not voted."""
    if state.joins:
        state, actions = step_newcomer(replace(state, phase=PartyPhase.TELLING), on.Unable("x"))
        return state, actions
    return say_and_return(state, ABORT, "x")


def _who_is_connected_stops(state: PartyState, event: on.Event) -> Step:
    return step(state, on.AllConnected() if event == on.Connected() and not state.joins else event)


def _silence_is_an_answer(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.ASKING and state.settles and event == on.LogAnswered(Verdict.OPEN):
        return step(state, on.LogAnswered(Verdict.REFUSED))
    return step(state, event)


def _a_failed_vote_is_an_abort(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.VOTED and event == on.VoteReduced(False):
        return _aborts(state)
    return step(state, event)


def _a_closed_link_is_an_abort(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.VOTED and event == on.LinkClosed():
        return _aborts(state)
    return step(state, event)


def _the_limit_is_an_abort(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.VOTED and event == on.Passed(Alarm.LIMIT):
        return _aborts(state)
    return step(state, event)


def _sigterm_is_an_abort_at_any_time(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.VOTED and event == on.Sigterm():
        return _aborts(replace(state, exit_requested=True))
    return step(state, event)


def _the_decider_aborts_after_its_put(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.DECIDING and isinstance(event, on.PartyGone):
        return say_and_return(state, ABORT, "x")
    return step(state, event)


def _the_limit_also_counts_after_the_put(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.DECIDING and event == on.Passed(Alarm.LIMIT):
        return say_and_return(state, RESTART, "x")
    return step(state, event)


def _refused_and_yet_appended(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.DECIDING and event == on.LogAnswered(Verdict.REFUSED):
        return stay(state, on.AppendOpened())
    return step(state, event)


def _go_before_the_answer(state: PartyState, event: on.Event) -> Step:
    done = step(state, event)
    return also(done, (on.SayToAll(HandoverWord.GO),)) if on.AppendOpened() in done[1] else done


def _the_vote_is_enough(state: PartyState, event: on.Event) -> Step:
    return went(state) if state.phase is PartyPhase.VOTED and event == on.VoteReduced(True) else step(state, event)


def _no_answer_ends_the_decider(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.DECIDING and event == on.LogAnswered(None):
        return say_and_return(state, ABORT, "x")
    return step(state, event)


def _a_commit_that_was_first_ends_the_decider(state: PartyState, event: on.Event) -> Step:
    if state.phase is PartyPhase.DECIDING and event == on.LogAnswered(Verdict.OPEN):
        return lost(state, "x")
    return step(state, event)


def _a_stop_given_up_is_nobodys(state: PartyState, event: on.Event) -> Step:
    return stay(state) if state.phase is PartyPhase.ABORTED and event == on.Stopped() else step(state, event)


def _a_stop_given_up_is_nobodys_past_the_limit(state: PartyState, event: on.Event) -> Step:
    return (
        stay(state)
        if state.late and state.phase is PartyPhase.ABORTED and event == on.Stopped()
        else step(state, event)
    )


def _nobody_settles(state: PartyState, event: on.Event) -> Step:
    state, actions = step(state, event)
    return replace(state, settles=False), actions


def _waits_for_the_limit(state: PartyState, event: on.Event) -> Step:
    before = state.settles
    state, actions = step(state, event)
    return (replace(state, settles=before) if event == on.LinkClosed() else state), actions


def _a_missed_word_is_told_as_an_abort(state: PartyState, event: on.Event) -> Step:
    state, actions = step(state, event)
    return (replace(state, word=ABORT) if state.phase is PartyPhase.ASKING else state), actions


def _silence_is_not_heard(state: PartyState, event: on.Event) -> Step:
    return stay(state) if isinstance(event, on.Silent) else step(state, event)


def _who_is_lost_is_waited_for(state: PartyState, event: on.Event) -> Step:
    return step(state, replace(event, lost=False) if isinstance(event, on.Silent) else event)


def _a_moments_silence_is_a_loss(state: PartyState, event: on.Event) -> Step:
    return step(state, replace(event, lost=True) if isinstance(event, on.Silent) else event)


def _silence_is_an_abort_also_after_the_vote(state: PartyState, event: on.Event) -> Step:
    if state.phase in (PartyPhase.VOTED, PartyPhase.ASKING, PartyPhase.DECIDING) and isinstance(event, on.Silent):
        return _aborts(state)
    return step(state, event)


def _who_is_the_last_ends(state: PartyState, event: on.Event) -> Step:
    state, actions = step(state, event)
    ends = [
        on.ExitProcess(ExitKind.HANDOVER_FAILED, one.why) if isinstance(one, on.ExitProcess) else one for one in actions
    ]
    return state, tuple(ends) if state.joins else actions


def _who_has_read_go_lets_go(state: PartyState, event: on.Event) -> Step:
    state, actions = step(state, event)
    went = state.leaves and state.word is HandoverWord.GO
    return state, tuple(
        on.ExitProcess(ExitKind.HANDED_OVER) if went and isinstance(one, on.ExitProcess) else one for one in actions
    )


def _an_obstacle_is_an_abort(state: PartyState, event: on.Event) -> Step:
    return step(state, on.Unable(event.why) if isinstance(event, on.NotLive) else event)


def _a_refusal_is_enough(state: PartyState, event: on.Event) -> Step:
    refused = event == on.LogAnswered(Verdict.REFUSED) and state.phase is PartyPhase.ASKING and state.joins
    return step(state, on.Heard(ABORT)) if refused else step(state, event)


def _the_limit_is_an_abort_after_an_obstacle(state: PartyState, event: on.Event) -> Step:
    before = replace(state, late=False) if event == on.Passed(Alarm.LIMIT) else state
    return step(before, event)


PLANTED: dict[str, Planted] = {
    "old ranks that are connected wait for no other party": Planted(
        "H14", attempt=ALL_REPLACED, react=_who_is_connected_stops, connecting=True
    ),
    "an entry is taken for one's own by its writer": Planted("H1", {"commit": 1}, without="bytes"),
    "a log that says nothing is taken for an answer": Planted("H", {}, 2, GROWN, react=_silence_is_an_answer),
    "each rank leaves the stop for itself": Planted("H", {"sigterm": 1}, 2, without="round"),
    "a vote whose reduce failed is an abort": Planted("H", {"reduce": 1}, react=_a_failed_vote_is_an_abort),
    "a link that closed is an abort": Planted("H", {"cut": 1}, react=_a_closed_link_is_an_abort),
    "the limit is an abort": Planted("H", {}, 1, react=_the_limit_is_an_abort),
    "SIGTERM is an abort also after the vote": Planted(
        "H", {"sigterm": 1}, attempt=SHRUNK, react=_sigterm_is_an_abort_at_any_time
    ),
    "the decider aborts after its PUT": Planted("H", {"cut": 1}, react=_the_decider_aborts_after_its_put),
    "the decider says restart after its PUT": Planted("H", {}, 1, react=_the_limit_also_counts_after_the_put),
    "the decider appends behind a refusal": Planted("H2", {}, 2, FIRST_GROWN, react=_refused_and_yet_appended),
    "go is said before the log says it": Planted("H1", {"flip": 1}, react=_go_before_the_answer),
    "the vote is enough for a leaver": Planted("H1", {}, react=_the_vote_is_enough),
    "a PUT without an answer is an abort": Planted("H", {"flip": 1}, react=_no_answer_ends_the_decider),
    "a commit of the older run ends the attempt": Planted(
        "H6", {"commit": 1}, react=_a_commit_that_was_first_ends_the_decider
    ),
    "the decider does not wait for every vote": Planted("H2", {}, without="whole"),
    "a stop for a given-up attempt is ignored": Planted("H10", {"sigterm": 1}, 1, react=_a_stop_given_up_is_nobodys),
    "a rank that cannot, and that the limit then passes, ignores the stop": Planted(
        "H10", {"unable": 1}, 1, react=_a_stop_given_up_is_nobodys_past_the_limit
    ),
    "who has lost the decider waits for the limit": Planted("H12", {"kill": 1}, react=_waits_for_the_limit),
    "whoever misses the word tells of an abort": Planted(
        "H11", {"reduce": 1}, react=_a_missed_word_is_told_as_an_abort
    ),
    "nobody settles": Planted("H10", {"cut": 1}, 2, FIRST_GROWN, react=_nobody_settles),
    "an aborted run's end does not say so": Planted("H9", {"cut": 1}, 1, attempt=ONE_REPLACED, without="mark"),
    "a leaver's image goes with it": Planted("H13", {"kill": 1}, without="rescue"),
    "silence is not heard": Planted("H12", {"freeze": 1}, react=_silence_is_not_heard),
    "who is lost is waited for": Planted("H12", {"freeze": 1}, attempt=GROWN, react=_who_is_lost_is_waited_for),
    "a moment's silence is a loss": Planted(
        "H6", {"freeze": 1}, attempt=GROWN, react=_a_moments_silence_is_a_loss, without="lost"
    ),
    "silence is an abort also after the vote": Planted(
        "H", {"doubt": 1}, react=_silence_is_an_abort_also_after_the_vote
    ),
    "who may be the last that holds the state ends": Planted(
        "H13", {"kill": 1}, attempt=FIRST_GROWN, react=_who_is_the_last_ends
    ),
    "a newcomer ends at a refusal before the only old rank has shown that it lives": Planted(
        "H13", {"kill": 1}, 2, ONE_REPLACED, react=_a_refusal_is_enough
    ),
    "the limit is an abort where the run ends for an obstacle": Planted(
        "H15", {"obstacle": 2}, 2, GROWN, react=_the_limit_is_an_abort_after_an_obstacle, connecting=True
    ),
    "an older run that cannot change live aborts, and ends": Planted(
        "H15", {"obstacle": 1}, attempt=GROWN, react=_an_obstacle_is_an_abort, connecting=True
    ),
    "a leaver does not ask whether the successor's rank 0 knows": Planted(
        "H13", {"kill": 1}, attempt=ONE_REPLACED, react=_who_has_read_go_lets_go
    ),
    "a leaver does not ask whether the successor's rank 0 has said it": Planted(
        "H13", {"kill": 1}, attempt=SHRUNK_TO_ONE, react=_who_has_read_go_lets_go
    ),
    "a leaver does not ask whether the only pod that stays has said it": Planted(
        "H13", {"kill": 2}, attempt=SHRUNK_TO_ONE_POD, react=_who_has_read_go_lets_go
    ),
    "a leaver's last word does not say that nobody takes over any more": Planted(
        "H9", {"freeze": 1}, attempt=SHRUNK, without="rescue-marks"
    ),
    "a leaver's image is committed whatever the log says": Planted(
        "H4", {"kill": 1, "plan": 1}, without="rescue-reads"
    ),
    "the next run opens by its block alone": Planted("P5", {"kill": 1, "plan": 1}, 0, without="block"),
}
