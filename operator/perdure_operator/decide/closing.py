"""Closes a run once every member of it is terminal, gone or written off: what it cost, what it lost, what it left."""

from __future__ import annotations

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import Disruption, Intent, MemberOutcome, RunPlan
from perdure_operator.decide.blame import Verdict, charge, describe, judge
from perdure_operator.decide.disruption import remember, told_its_end
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import ended

_SAVED = frozenset({Reason.CHECKPOINTED, Reason.NOTHING_TO_SAVE})
_QUIET = frozenset({Reason.CHECKPOINTED, Reason.NOTHING_TO_SAVE, Reason.UNKNOWN_END})


def close_run(draft: Draft) -> Draft:
    """The plan and its endings leave the status in the very write that counts them: nothing is counted twice."""
    status, plan = draft.status, draft.status.plan
    if plan is None or any(not ended(status, member.name) for member in plan.members):
        return draft
    endings, intent = status.endings, status.intent
    planned = intent is not None and intent.disruption is not Disruption.MEMBER_LOST
    verdict = judge(endings, planned=planned, late=planned and _is_late(draft, intent))
    steps_lost = _steps_lost(plan, endings, status.step or 0)
    declared = intent is not None and plan.run in intent.lost
    unfinished = declared or not told_its_end(plan, endings)
    draft = draft.update(
        plan=None,
        members=(),
        endings=(),
        lost=remember(status.lost, plan.run) if unfinished else status.lost,
        steps_lost=status.steps_lost + steps_lost,
    )
    message = _account(plan, endings, verdict, steps_lost)
    draft = draft.condition(ConditionType.SAVED, verdict.reason in _SAVED and not steps_lost, verdict.reason, message)
    draft = draft.tell(verdict.reason, message, warning=verdict.reason not in _QUIET)
    return charge(draft, verdict)


def _is_late(draft: Draft, intent: Intent | None) -> bool:
    return intent is not None and intent.deadline is not None and draft.now >= intent.deadline


def _steps_lost(plan: RunPlan, endings: tuple[MemberOutcome, ...], committed: int) -> int:
    """Steps that outcomes tell of beyond the newest commit that they, or earlier ones, tell of."""
    mine = [ending for ending in endings if ending.run == plan.run]
    commits = [(e.commit_seq, e.commit_step) for e in mine if e.commit_seq is not None and e.commit_step is not None]
    base = max(commits)[1] if commits else committed
    return max([ending.step - base for ending in mine] + [0])


def _account(plan: RunPlan, endings: tuple[MemberOutcome, ...], verdict: Verdict, steps_lost: int) -> str:
    """How the run ended, in one sentence and the blamed member's words."""
    steps = [ending.step for ending in endings if ending.run == plan.run]
    where = f" at step {max(steps)}" if steps else ""
    cost = f"{steps_lost} steps lost since the last commit" if steps_lost else "no step known to be lost"
    if verdict.reason in _SAVED:
        cost = f"{steps_lost} steps lost"
    words = describe(verdict.blamed)
    return f"run {plan.run} ended{where}: {cost}" + (f"; {words}" if words else "")
