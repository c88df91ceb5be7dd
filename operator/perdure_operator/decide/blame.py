"""Whose fault the end of a run was, what it costs, and how long to pause after it. A run costs at most one failure.

A rank's own exception, exit or signal is a failure of the code. SIGKILL, OOM, an eviction, a lost pod or node and the
storage are infrastructure. A rank that lost its peer is never blamed; leaving, and being late, cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure.contract import ExitKind
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import Failures, MemberOutcome
from perdure_operator.decide.draft import Draft, later

BACKOFF_AT_MOST_SECONDS: Final = 300

_MOST_DOUBLINGS: Final = 20
_COSTS_CODE: Final = frozenset({Reason.CODE_FAILURE})
_COSTS_INFRASTRUCTURE: Final = frozenset({Reason.INFRASTRUCTURE_FAILURE, Reason.FENCED})


@dataclass(frozen=True)
class Verdict:
    """How a run ended, and the member's outcome that explains it best."""

    reason: Reason
    blamed: MemberOutcome | None = None


def judge(outcomes: tuple[MemberOutcome, ...], *, planned: bool, late: bool) -> Verdict:
    """`planned`: members had been asked to leave. `late`: they were deleted, for their time was over."""
    by_kind = {one.outcome: one for one in reversed(outcomes)}
    code = [one for one in outcomes if one.outcome == ExitKind.FAILED and not one.infrastructure]
    if code:
        return Verdict(Reason.CODE_FAILURE, code[0])
    taken_over = [one for one in outcomes if one.error_name == "RootTakenOver"]
    if taken_over:
        return Verdict(Reason.ROOT_TAKEN_OVER, taken_over[0])
    if ExitKind.FENCED in by_kind:
        return Verdict(Reason.FENCED, by_kind[ExitKind.FENCED])
    if ExitKind.CHECKPOINTED in by_kind:
        return Verdict(Reason.CHECKPOINTED)
    outside = [one for one in outcomes if one.infrastructure and (one.outcome or not planned)]
    if outside:
        return Verdict(Reason.INFRASTRUCTURE_FAILURE, outside[0])
    if ExitKind.EXIT_TIMEOUT in by_kind or late:
        return Verdict(Reason.EXIT_TIMEOUT, by_kind.get(ExitKind.EXIT_TIMEOUT))
    if ExitKind.PEER_LOST in by_kind:
        return Verdict(Reason.INFRASTRUCTURE_FAILURE, by_kind[ExitKind.PEER_LOST])
    return Verdict(Reason.NOTHING_TO_SAVE if ExitKind.STOPPED in by_kind else Reason.UNKNOWN_END)


def judge_standbys(failed: list[MemberOutcome]) -> Verdict:
    """However many ended before their run, it is one failure: of the code if one says so."""
    code = [one for one in failed if not one.infrastructure and one.outcome == ExitKind.FAILED]
    if code:
        return Verdict(Reason.CODE_FAILURE, code[0])
    return Verdict(Reason.INFRASTRUCTURE_FAILURE, failed[0])


def charge(draft: Draft, verdict: Verdict) -> Draft:
    """Count the failure, and give the job up where its budget is used up."""
    words = describe(verdict.blamed)
    if verdict.reason is Reason.ROOT_TAKEN_OVER:
        uri = draft.snapshot.spec.checkpoint.uri
        return _fail(draft, Reason.ROOT_TAKEN_OVER, f"another job writes to {uri}: {words}")
    code, infrastructure = verdict.reason in _COSTS_CODE, verdict.reason in _COSTS_INFRASTRUCTURE
    if not code and not infrastructure:
        return draft
    old, allowed = draft.status.failures, draft.snapshot.spec.failure
    new = Failures(
        code=old.code + code,
        infrastructure=old.infrastructure + infrastructure,
        last_time=draft.now,
        consecutive=old.consecutive + 1,
    )
    draft = draft.update(failures=new)
    if new.code > allowed.max_code_failures:
        message = f"{new.code} failures of the code, maxCodeFailures is {allowed.max_code_failures}; the last: {words}"
        return _fail(draft, Reason.TOO_MANY_CODE_FAILURES, message)
    if new.infrastructure > allowed.max_infrastructure_failures:
        limit = f"maxInfrastructureFailures is {allowed.max_infrastructure_failures}"
        message = f"{new.infrastructure} failures of infrastructure, {limit}; the last: {words}"
        return _fail(draft, Reason.TOO_MANY_INFRASTRUCTURE_FAILURES, message)
    return draft


def describe(outcome: MemberOutcome | None) -> str:
    """A member's end for people: with the last lines of its traceback, where it left one."""
    if outcome is None:
        return ""
    what = " ".join(part for part in (outcome.outcome, outcome.error_kind, outcome.error_name) if part)
    return f"{outcome.name}: {what or 'no outcome'}" + (f"\n{outcome.error_tail}" if outcome.error_tail else "")


def backoff_until(failures: Failures) -> datetime | None:
    """When the next run may be started: 1 s after the first failure, twice as long after each further one."""
    if failures.last_time is None or failures.consecutive < 1:
        return None
    seconds = 2 ** min(failures.consecutive - 1, _MOST_DOUBLINGS)
    return later(failures.last_time, min(seconds, BACKOFF_AT_MOST_SECONDS))


def _fail(draft: Draft, reason: Reason, message: str) -> Draft:
    return draft.finish(ConditionType.FAILED, reason, message)
