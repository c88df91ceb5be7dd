"""Whose fault the end of a run was, what it costs, and how long to pause after it. A run costs at most one failure.

A rank's own exception, exit or signal is a failure of the code. SIGKILL, OOM, an eviction, a lost pod or node and the
storage are infrastructure. The first death decides: what others die of afterwards follows from it. A rank that lost
its peer is never blamed; leaving, being late, and losing a peer that leaves as it was asked to cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure.wire import ErrorName, ExitKind
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import CurrentRun, Failures, LostLog, MemberOutcome, PreviousRun, RootProblem
from perdure_operator.decide.draft import Draft, doubled
from perdure_operator.decide.facts import NODES_KEPT, order_of_death, own

_COSTS_CODE: Final = frozenset({Reason.CODE_FAILURE})
_COSTS_INFRASTRUCTURE: Final = frozenset({Reason.INFRASTRUCTURE_FAILURE, Reason.OUT_OF_MEMORY, Reason.FENCED})
_OF_THE_ROOT: Final = frozenset({Reason.CHECKPOINTS_DAMAGED, Reason.STORAGE_REFUSED})
_TERMINAL: Final[Mapping[str, Reason]] = {
    ExitKind.ROOT_TAKEN_OVER: Reason.ROOT_TAKEN_OVER,
    ErrorName.ROOT_TAKEN_OVER: Reason.ROOT_TAKEN_OVER,  # of an older agent
    ErrorName.LOG_LOST: Reason.LOG_LOST,
    ErrorName.CORRUPT: Reason.CHECKPOINTS_DAMAGED,
    ErrorName.STORAGE_REFUSED: Reason.STORAGE_REFUSED,
}
"""Outcomes and errors after which another run would end in the same way; they outrank all others."""


@dataclass(frozen=True)
class ExitCause:
    """How a run ended, and the member's outcome that explains it best."""

    reason: Reason
    blamed: MemberOutcome | None = None
    step: int = 0
    """The step that the run reached, as far as members reported it."""


def judge(outcomes: tuple[MemberOutcome, ...], *, planned: bool, late: bool) -> ExitCause:
    """How these members' run ended. `planned`: they had been asked to leave. `late`: they were deleted after that."""
    by_kind = {one.outcome: one for one in reversed(outcomes)}
    for name, reason in _TERMINAL.items():
        named = [one for one in outcomes if name in (one.outcome, one.error_name)]
        if named:
            return ExitCause(reason, max(named, key=lambda one: one.commit_seq or 0))  # the one that knows most
    deaths = [one for one in outcomes if _is_code(one) or (one.infrastructure and (one.outcome or not planned))]
    asked = planned and ExitKind.STOPPED in by_kind  # the others lost a peer that left as it was asked to
    first = min(deaths, key=order_of_death, default=None)
    if first and _is_code(first):
        return ExitCause(Reason.CODE_FAILURE, first)
    if ExitKind.FENCED in by_kind:
        return ExitCause(Reason.FENCED, by_kind[ExitKind.FENCED])
    if ExitKind.HANDED_OVER in by_kind:
        return ExitCause(Reason.HANDED_OVER)
    if ExitKind.CHECKPOINTED in by_kind:
        return ExitCause(Reason.CHECKPOINTED)
    if first:
        return _outside(first)
    if ExitKind.EXIT_TIMEOUT in by_kind or late:
        return ExitCause(Reason.EXIT_TIMEOUT, by_kind.get(ExitKind.EXIT_TIMEOUT))
    if ExitKind.PEER_LOST in by_kind and not asked:
        return ExitCause(Reason.INFRASTRUCTURE_FAILURE, by_kind[ExitKind.PEER_LOST])
    return ExitCause(Reason.NOTHING_TO_SAVE if ExitKind.STOPPED in by_kind else Reason.UNKNOWN_END)


def judge_standbys(failed: list[MemberOutcome]) -> ExitCause:
    """How members failed that ended before their run: one failure for all, of the code if any is."""
    code = [one for one in failed if _is_code(one)]
    return ExitCause(Reason.CODE_FAILURE, code[0]) if code else _outside(failed[0])


def _is_code(one: MemberOutcome) -> bool:
    return one.outcome == ExitKind.FAILED and not one.infrastructure


def _outside(one: MemberOutcome) -> ExitCause:
    memory = one.error_name == ErrorName.OUT_OF_MEMORY
    return ExitCause(Reason.OUT_OF_MEMORY if memory else Reason.INFRASTRUCTURE_FAILURE, one)


def charge(draft: Draft, exit_cause: ExitCause, run: CurrentRun | PreviousRun | None = None) -> Draft:
    """Count the failure, and fail the job if its budget is used up.

    `run` is the one that ended. Some of its members may have ended in the previous run, whose end does not count twice.
    """
    words = describe(exit_cause.blamed)
    if exit_cause.reason is Reason.ROOT_TAKEN_OVER:
        uri = draft.snapshot.spec.checkpoint.uri
        return _fail(draft, Reason.ROOT_TAKEN_OVER, f"another job writes to {uri}: {words}")
    if exit_cause.reason is Reason.LOG_LOST:
        lost = LostLog(
            time=draft.now,
            generation=draft.snapshot.generation,
            found_step=(exit_cause.blamed.commit_step if exit_cause.blamed else None) or 0,
            message=words,
        )
        return draft.update(log_lost=lost)
    if exit_cause.reason in _OF_THE_ROOT:
        return draft.update(root_problem=_root_problem(draft, exit_cause.reason, words))
    code, infrastructure = exit_cause.reason in _COSTS_CODE, exit_cause.reason in _COSTS_INFRASTRUCTURE
    if not (code or infrastructure) or (infrastructure and _is_counted(exit_cause, run)):
        return draft
    draft = draft.update(failures=_hung_on(draft, _counted(draft, exit_cause), run))
    new, allowed = draft.status.failures, draft.snapshot.spec.failure
    if new.out_of_memory > allowed.max_out_of_memory_failures:
        message = (
            f"{new.out_of_memory} out-of-memory kills in a row at step {new.out_of_memory_step}, "
            f"maxOutOfMemoryFailures is {allowed.max_out_of_memory_failures}: raise the memory limit of the "
            f"container, or let it use less; the last: {words}"
        )
        return _fail(draft, Reason.TOO_MANY_OUT_OF_MEMORY, message)
    if new.code_in_a_row > allowed.max_code_failures:
        limit = f"maxCodeFailures is {allowed.max_code_failures}"
        message = f"{new.code_in_a_row} failures of the code in a row, {limit}; the last: {words}"
        return _fail(draft, Reason.TOO_MANY_CODE_FAILURES, message)
    if new.infrastructure_in_a_row > allowed.max_infrastructure_failures:
        limit = f"maxInfrastructureFailures is {allowed.max_infrastructure_failures}"
        count = new.infrastructure_in_a_row
        message = f"{count} failures of infrastructure without a new commit, {limit}; the last: {words}"
        return _fail(draft, Reason.TOO_MANY_INFRASTRUCTURE_FAILURES, message)
    return draft


def _root_problem(draft: Draft, reason: Reason, words: str) -> RootProblem:
    before = draft.status.root_problem
    return RootProblem(
        time=draft.now,
        generation=draft.snapshot.generation,
        damaged=reason is Reason.CHECKPOINTS_DAMAGED,
        count=before.count + 1 if before else 1,
        message=words,
    )


def _is_counted(exit_cause: ExitCause, run: CurrentRun | PreviousRun | None) -> bool:
    """Whether the end of this run was already counted, by other members' outcomes."""
    if run is None or run.counted is None:
        return False
    return run.counted == run.run or (exit_cause.blamed is not None and exit_cause.blamed.run == run.counted)


def _counted(draft: Draft, exit_cause: ExitCause) -> Failures:
    """The counts with this failure. An out-of-memory kill at a later step than the last one begins a new row."""
    old, step = draft.status.failures, max(exit_cause.step, exit_cause.blamed.step if exit_cause.blamed else 0)
    in_a_row = 0
    if exit_cause.reason is Reason.OUT_OF_MEMORY:
        in_a_row = old.out_of_memory + 1 if step <= old.out_of_memory_step or not old.out_of_memory else 1
    code, infrastructure = exit_cause.reason in _COSTS_CODE, exit_cause.reason in _COSTS_INFRASTRUCTURE
    return old.model_copy(
        update={
            "code": old.code + code,
            "infrastructure": old.infrastructure + infrastructure,
            "code_in_a_row": old.code_in_a_row + code,
            "code_seq": draft.status.commit_seq if code else old.code_seq,
            "code_time": draft.now if code else old.code_time,
            "infrastructure_in_a_row": old.infrastructure_in_a_row + infrastructure,
            "last_time": draft.now,
            "consecutive": old.consecutive + 1,
            "out_of_memory": in_a_row,
            "out_of_memory_step": max(step, old.out_of_memory_step) if in_a_row > 1 else step,
        }
    )


def _hung_on(draft: Draft, failures: Failures, run: CurrentRun | PreviousRun | None) -> Failures:
    """The failures with the nodes of members that hung: if the node is the cause, its next member hangs as well.

    All of them, because if all hung at once nothing shows which was first.
    """
    if run is None:
        return failures
    planned = run.plan.members if isinstance(run, CurrentRun) else ()
    nodes = {one.uid: one.node for one in planned} | {pod.uid: pod.node for pod in own(draft.snapshot).values()}
    hung = [nodes.get(one.uid, "") for one in run.outcomes if one.error_name == ErrorName.NO_PROGRESS]
    newest = dict.fromkeys([*(node for node in failures.hung_nodes if node not in hung), *filter(None, hung)])
    return failures.model_copy(update={"hung_nodes": tuple(newest)[-NODES_KEPT:]})


def describe(outcome: MemberOutcome | None) -> str:
    """A member's end for people, with the last lines of its traceback if it left one."""
    if outcome is None:
        return ""
    what = " ".join(part for part in (outcome.error_kind, outcome.error_name) if part)
    end = f"{outcome.name}: {outcome.outcome or 'no outcome'}" + (f" ({what})" if what else "")
    return end + (f"\n{outcome.error_tail}" if outcome.error_tail else "")


def backoff_until(failures: Failures) -> datetime | None:
    """When the next run may begin: 1 s after the first failure, twice as long after each further one."""
    if failures.last_time is None or failures.consecutive < 1:
        return None
    return doubled(failures.last_time, failures.consecutive)


def _fail(draft: Draft, reason: Reason, message: str) -> Draft:
    return draft.finish(ConditionType.FAILED, reason, message)
