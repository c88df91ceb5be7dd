"""`kubectl perdure status`: all jobs in one table, or one job with its members and its last moves. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from perdure.wire import Role
from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Condition, HistoryEntry, Takeover, TrainingJobStatus
from perdure_operator.kubectl.job import JobSeen, JobSummary, summary
from perdure_operator.kubectl.page import Facts, Page, Table, ago, clock, duration, first_part
from perdure_operator.state.snapshot import PodView

WORDS: Final = 160
"""How many characters of a message a table shows. The page of one job, and JSON, have all of it."""
MOVES: Final = 5
"""How many moves the page of a job shows. JSON has all that status has."""
_TOLD_ABOVE: Final = frozenset({ConditionType.RUNNING, ConditionType.DISRUPTED})
"""Conditions whose messages the page has in lines of their own."""
_GOOD: Final = frozenset({ConditionType.PROTECTED, ConditionType.SIZED, ConditionType.TEMPLATE_ACCEPTED})
_GOOD_WHEN_TRUE: Final = _GOOD | {ConditionType.SPEC_UNDERSTOOD, ConditionType.DELETIONS_ALLOWED, ConditionType.SAVED}
_HOW: Final = {Takeover.UNKNOWN: "not reported yet", Takeover.NEVER: "never took over"}


class MemberSeen(Model):
    """A pod of the job."""

    name: str
    role: str
    """member, leaving, next, standby, spare or former."""
    node: str = ""
    ranks: str = ""
    """Its ranks in the newest run that it is planned for, such as 0-7."""
    run: int | None = None
    """That run."""
    state: str
    """What its kubelet, or the scheduler, reports."""


class JobPage(Model):
    """A job with its members and its last moves."""

    job: JobSummary
    running: str = ""
    """The message of the condition Running."""
    disrupted: str = ""
    """The message of the condition Disrupted while it is True."""
    members: tuple[MemberSeen, ...] = ()
    moves: tuple[HistoryEntry, ...] = ()
    """As in status.history, oldest first."""
    conditions: tuple[Condition, ...] = ()
    steps_lost: int = 0
    steps_in_doubt: int = 0


def table_of_jobs(jobs: Sequence[JobSummary], now: datetime, *, namespaces: bool) -> Page:
    """One row for each job; with a column for the namespace if wanted."""
    heads = ("NAMESPACE", "NAME", "STAGE", "SIZE", "STEP", "SAVED", "DISRUPTED BY", "WAITS FOR", "UNTIL")
    rows = [(one.namespace if namespaces else "", *_row(one, now)) for one in jobs]
    return (Table(heads, tuple(rows)),)


def _row(job: JobSummary, now: datetime) -> tuple[str, ...]:
    saved, wait = job.saved, job.waits_for
    return (
        job.name,
        job.stage,
        _size(job),
        str(saved.step) if saved else "-",
        (f"{ago(saved.reported, now)} ago" if saved.reported else "-") if saved else "-",
        first_part(job.disrupted.cause, WORDS) if job.disrupted else "",
        first_part(wait.message, WORDS) if wait else "",
        clock(wait.until, now) if wait else "",
    )


def _size(job: JobSummary) -> str:
    return f"{job.members}/{'?' if job.wanted is None else job.wanted}"


def job_page(seen: JobSeen) -> JobPage:
    """All that the page of one job tells."""
    status = seen.status
    running, disrupted = status.find(ConditionType.RUNNING), status.find(ConditionType.DISRUPTED)
    return JobPage(
        job=summary(seen),
        running=running.message if running else "",
        disrupted=disrupted.message if disrupted and disrupted.status == "True" else "",
        members=tuple(_member(status, pod, seen.now) for pod in seen.pods),
        moves=status.history,
        conditions=status.conditions,
        steps_lost=status.steps_lost,
        steps_in_doubt=status.steps_in_doubt,
    )


def page_of_job(told: JobPage, now: datetime) -> Page:
    """The page for people."""
    job, wait = told.job, told.job.waits_for
    facts = (
        ("Job", f"{job.namespace}/{job.name}"),
        ("Stage", f"{job.stage}, run {job.run}, {job.members} of {_wanted(job)} members"),
        ("Saved", _saved(told, now)),
        ("Now", told.running),
        ("Disrupted", told.disrupted),
        ("Waits for", wait.message if wait and wait.message not in f"{told.running}{told.disrupted}" else ""),
        ("Until", clock(wait.until, now) if wait else ""),
    )
    members = Table(
        ("POD", "ROLE", "RUN", "RANK", "NODE", "STATE"),
        tuple((one.name, one.role, str(one.run or ""), one.ranks, one.node, one.state) for one in told.members),
    )
    return Facts(facts), members, _moves(told.moves[-MOVES:], now), _conditions(told.conditions)


def _wanted(job: JobSummary) -> str:
    return "an unknown number of" if job.wanted is None else str(job.wanted)


def _saved(told: JobPage, now: datetime) -> str:
    saved = told.job.saved
    if saved is None:
        return "no commit is known yet: members report commits when they end"
    when = f", reported {ago(saved.reported, now)} ago" if saved.reported else ""
    lost = [f"{told.steps_lost} steps lost so far"] if told.steps_lost else []
    lost += [f"at most {told.steps_in_doubt} more in doubt"] if told.steps_in_doubt else []
    return "; ".join([f"step {saved.step}{when}; newer commits are reported when members end", *lost])


def _moves(moves: Sequence[HistoryEntry], now: datetime) -> Table:
    heads = ("RUN", "BEGAN", "HOW", "SIZE", "PAUSE", "LOST", "BECAUSE", "WHY NOT BETTER")
    rows = tuple(
        (
            str(one.run),
            clock(one.time, now),
            _HOW.get(one.how, one.how.value),
            str(one.size),
            "" if one.pause is None else seconds(one.pause),
            _lost(one),
            one.cause,
            one.why,
        )
        for one in moves
    )
    return Table(heads, rows, title="Last moves")


def seconds(span: float) -> str:
    """A pause of training, of which hundredths matter."""
    return f"{span:.2f}s" if span < 10 else duration(span)


def _lost(one: HistoryEntry) -> str:
    told = [str(one.steps_lost)] if one.steps_lost else []
    told += [f"≤{one.steps_in_doubt} in doubt"] if one.steps_in_doubt else []
    told += ["not reported"] if one.unreported else []
    return ", ".join(told) or "0"


def _conditions(conditions: Sequence[Condition]) -> Table:
    """Those that a person should read: what is as it should be is left out."""
    rows = tuple(
        (one.type, one.status, one.reason, one.message)
        for one in conditions
        if one.type not in _TOLD_ABOVE and (one.status == "True") != (one.type in _GOOD_WHEN_TRUE)
    )
    return Table(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows)


def _member(status: TrainingJobStatus, pod: PodView, now: datetime) -> MemberSeen:
    run, ranks = _place(status, pod)
    role, state = _role(status, pod), pod_state(pod, now)
    return MemberSeen(name=pod.name, role=role, node=pod.node, ranks=ranks, run=run, state=state)


def _place(status: TrainingJobStatus, pod: PodView) -> tuple[int | None, str]:
    """The newest run that the pod is, or was, planned for, and its ranks there."""
    for plan in (status.next.plan if status.next else None, status.current.plan if status.current else None):
        for member in plan.members if plan else ():
            if plan and member.uid == pod.uid:
                return plan.run, _ranks(member.rank, plan.world // len(plan.members))
    before = status.previous
    left = next((one for one in before.members if one.uid == pod.uid), None) if before else None
    return (before.run, str(left.rank)) if before and left else (None, "")


def _ranks(first: int, each: int) -> str:
    return str(first) if each <= 1 else f"{first}-{first + each - 1}"


def _role(status: TrainingJobStatus, pod: PodView) -> str:
    """What the pod is to the job, as status has it; else as its label has it."""
    current, upcoming = status.current, status.next
    if status.spares and pod.name in status.spares.names:
        return "spare"
    leavers = upcoming.plan.leavers if upcoming and upcoming.plan else current.plan.leavers if current else ()
    if pod.name in leavers:
        return "leaving"
    if upcoming and pod.name in upcoming.members:
        return "next"
    return pod.role or Role.FORMER.value


def pod_state(pod: PodView, now: datetime) -> str:
    """What its kubelet, or the scheduler, reports."""
    if pod.gone:
        return "gone"
    if pod.terminated:
        ended = f"{pod.terminated.reason or 'ended'}, exit status {pod.terminated.exit_code}"
        return f"{pod.reason}: {ended}" if pod.reason else ended
    if pod.deleting:
        return f"Terminating, until {clock(pod.deletion_deadline, now)}"
    if pod.unschedulable:
        return f"Pending: {pod.unschedulable}"
    if pod.waiting_reason:
        return f"{pod.phase}: {pod.waiting_reason}: {pod.waiting_message}".rstrip(": ")
    if pod.initializing:
        return f"{pod.phase}: init container {pod.initializing} is running"
    if pod.pulling:
        return f"{pod.phase}: its image is being pulled"
    return "Ready" if pod.ready else f"{pod.phase}, not Ready"
