"""One `completed` outcome of the newest started run completes the job, whatever intent is open."""

from __future__ import annotations

from perdure.contract import ExitKind
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import MemberOutcome
from perdure_operator.decide.draft import Draft, finished_at
from perdure_operator.decide.endings import ending_of, learn
from perdure_operator.decide.facts import over, own


def complete(draft: Draft) -> Draft:
    """The next run's plan and members are dropped; pods stay for their logs."""
    if finished_at(draft.status):
        return draft
    newest = draft.status.plan.run if draft.status.plan else 0
    told = [ending for ending in _all_endings(draft) if ending.outcome == ExitKind.COMPLETED and ending.run >= newest]
    if not told:
        return draft
    for ending in told:
        draft = learn(draft, ending)
    step = draft.status.step
    message = f"run {told[0].run} has reached its goal" + ("" if step is None else f" at step {step}")
    draft = draft.update(plan=None, intent=None, members=(), endings=(), completion_time=draft.now)
    return draft.condition(ConditionType.COMPLETED, True, Reason.COMPLETED, message).tell(Reason.COMPLETED, message)


def _all_endings(draft: Draft) -> list[MemberOutcome]:
    """Of every pod of the job, also of one written off before it was done."""
    pods = [ending_of(pod) for pod in own(draft.snapshot).values() if over(pod)]
    return [*draft.status.endings, *pods]
