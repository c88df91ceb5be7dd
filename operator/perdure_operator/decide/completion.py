"""One `completed` outcome of the newest started run completes the job, whatever intent is open."""

from __future__ import annotations

from perdure.contract import Ended
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import Ending
from perdure_operator.decide.endings import ending_of, learn
from perdure_operator.decide.facts import over, own
from perdure_operator.decide.turn import Turn, finished_at


def complete(turn: Turn) -> Turn:
    """The next run's plan and members are dropped; pods stay for their logs."""
    if finished_at(turn.status):
        return turn
    newest = turn.status.plan.run if turn.status.plan else 0
    told = [ending for ending in _all_endings(turn) if ending.outcome == Ended.COMPLETED and ending.run >= newest]
    if not told:
        return turn
    for ending in told:
        turn = learn(turn, ending)
    step = turn.status.step
    message = f"run {told[0].run} has reached its goal" + ("" if step is None else f" at step {step}")
    turn = turn.update(plan=None, intent=None, members=(), endings=(), completion_time=turn.now)
    return turn.condition(ConditionType.COMPLETED, True, Reason.COMPLETED, message).tell(Reason.COMPLETED, message)


def _all_endings(turn: Turn) -> list[Ending]:
    """Of every pod of the job, also of one written off before it was done."""
    pods = [ending_of(pod) for pod in own(turn.snapshot).values() if over(pod)]
    return [*turn.status.endings, *pods]
