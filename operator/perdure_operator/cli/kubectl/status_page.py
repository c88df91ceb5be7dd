"""`kubectl perdure status`: all jobs in one table, or one job with its members and its last moves. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from perdure.wire import Role
from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Condition, HistoryEntry, MoveAct, Phase, Takeover, TrainingJobStatus
from perdure_operator.cli.kubectl.job import JobSeen, JobSummary, TimeSpent, summary, time_spent
from perdure_operator.cli.kubectl.page import Facts, Page, Table, ago, clock, deadline, duration, first_part
from perdure_operator.decide.draft import clock as spoken
from perdure_operator.decide.stragglers import stragglers_in_words
from perdure_operator.state.snapshot import PodView

UNKNOWN: Final = "unknown"
"""Placeholder for a number that was not reported."""
MANY: Final = 16
"""With more members than this, those that are Ready are counted and not listed."""
MOVES: Final = 5
"""How many moves the page of a job shows. JSON has all that status has."""
_SHOWN_ABOVE: Final = frozenset({ConditionType.RUNNING, ConditionType.DISRUPTED})
"""Conditions whose messages the page has in lines of their own."""
_AS_WANTED: Final = frozenset({ConditionType.COMPLETED, ConditionType.SUSPENDED})
"""Conditions that tell of nothing wrong, True or False."""
_BAD_WHEN_TRUE: Final = frozenset({ConditionType.HANDING_OVER, ConditionType.FAILED})
"""Conditions that a person should read while they are True. All others are as they should be when they are True."""
_FINISHED: Final = frozenset({Phase.COMPLETED, Phase.FAILED})
READY: Final = "Ready"
_HOW: Final = {Takeover.UNKNOWN: "not reported yet", Takeover.NEVER: "never took over"}

_ACTS: Final = {
    MoveAct.CONNECTING: "it trains on, while old and new members connect",
    MoveAct.MOVING: "its ranks stand, and their state goes to the new members",
    MoveAct.VOTING: "its ranks stand and have voted: the log decides",
}
"""How far a live hand-over is."""


class MemberSeen(Model):
    """A pod of the job."""

    name: str
    role: str
    """member, has to leave (its node is going away), leaving, next, standby, spare or former."""
    node: str = ""
    ranks: str = ""
    """Its ranks in the newest run that it is planned for, such as 0-7."""
    run: int | None = None
    """The newest run that it is planned for."""
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
    """The moves in status.history, oldest first."""
    conditions: tuple[Condition, ...] = ()
    steps_lost: int = 0
    steps_in_doubt: int = 0
    time: TimeSpent | None = None
    """Null before a run gave account of its time."""


def table_of_jobs(jobs: Sequence[JobSummary], now: datetime, *, namespaces: bool) -> Page:
    """One row for each job; with a column for the namespace if wanted."""
    heads = ("NAMESPACE", "NAME", "STAGE", "SIZE", "STEP", "SAVED", "DISRUPTED BY", "WAITS FOR", "UNTIL")
    rows = [(one.namespace if namespaces else "", *_row(one, now)) for one in jobs]
    return (Table(heads, tuple(rows), cut=True),)


def _row(job: JobSummary, now: datetime) -> tuple[str, ...]:
    saved, wait = job.saved, job.waits_for
    when = f", {ago(saved.time, now)} ago" if saved and saved.time else ""
    return (
        job.name,
        job.stage,
        _size(job),
        UNKNOWN if job.step is None else str(job.step),
        f"{saved.step}{when}" if saved else UNKNOWN,
        first_part(job.disrupted.cause) if job.disrupted else "",
        _without_its_end(first_part(wait.message), wait.until) if wait else "",
        deadline(wait.until, now) if wait else "",
    )


def _without_its_end(message: str, until: datetime | None) -> str:
    """The message without the time that stands beside it."""
    return message.replace(f", until {spoken(until)}", "").replace(f" until {spoken(until)}", "") if until else message


def _size(job: JobSummary) -> str:
    return "/".join("?" if number is None else str(number) for number in (job.members, job.wanted))


def job_page(seen: JobSeen) -> JobPage:
    """All that the page of one job tells."""
    status = seen.status
    running, disrupted = status.find(ConditionType.RUNNING), status.find(ConditionType.DISRUPTED)
    return JobPage(
        job=summary(seen),
        running=running.message if running else "",
        disrupted=disrupted.message if disrupted and disrupted.status == "True" else "",
        members=tuple(sorted((_member(status, pod, seen.now) for pod in _all(seen)), key=_by_rank)),
        moves=status.history,
        conditions=status.conditions,
        steps_lost=status.steps_lost,
        steps_in_doubt=status.steps_in_doubt,
        time=time_spent(status),
    )


def page_of_job(page: JobPage, now: datetime, *, every: bool = False) -> Page:
    """The page for people; `every`: with all members, also if there are MANY."""
    job, wait = page.job, page.job.waits_for
    failed = job.stage == Phase.FAILED
    facts = (
        ("Job", f"{job.namespace}/{job.name}"),
        ("Stage", f"{job.stage}{_run(job)}"),
        ("Step", "" if job.step is None else f"{job.step}, as its rank 0 reports"),
        ("Hand-over", f"{_ACTS[job.handover_act]}, as its rank 0 reports" if job.handover_act else ""),
        ("Batch", _batch(job)),
        ("Values", _values(job)),
        ("Saved", saved_in_words(page, now)),
        ("A death costs", death_costs_in_words(job)),
        ("Moves live", _moves_live(job)),
        ("A save takes", save_takes(job)),
        (
            "A save stops it",
            ""
            if job.save_stall_seconds is None
            else f"for {seconds(job.save_stall_seconds)}, as its rank 0 reports of the newest",
        ),
        (
            "Waits for data",
            "" if job.data_wait_percent is None else f"{job.data_wait_percent} % of each step, as its rank 0 reports",
        ),
        ("Goodput", _time(page.time) if page.time else ""),
        ("Straggler", stragglers_in_words(job.stragglers)),
        ("Now", page.running),
        ("Disrupted", page.disrupted),
        (
            "Because" if failed else "Waits for",
            wait.message if wait and wait.message not in f"{page.running}{page.disrupted}" else "",
        ),
        ("Until", deadline(wait.until, now, whom="an operator") if wait else ""),
    )
    return Facts(facts), _conditions(page.conditions), *_members(page.members, every), _moves(page.moves[-MOVES:], now)


def death_costs_in_words(job: JobSummary) -> str:
    """What a member's death costs now; "" if that is not known."""
    return f"{job.death_costs}, as its rank 0 reports" if job.death_costs else ""


def save_takes(job: JobSummary) -> str:
    """How long a save takes; "" if that is not known."""
    span = job.required_grace_seconds
    return "" if span is None else f"about {duration(span)}, as its rank 0 reports"


def _time(time: TimeSpent) -> str:
    """The largest losses first."""
    if time.goodput_ratio is None:
        return ""
    lost = sorted(time.badput.items(), key=lambda one: -one[1])
    words = [f"{cause} {duration(seconds)}" for cause, seconds in lost if seconds >= 1]
    open_ = f"; {duration(time.undecided)} not decided yet" if time.undecided >= 1 else ""
    rest = f"; lost: {', '.join(words)}" if words else ""
    return f"{100 * time.goodput_ratio:.1f} % of the time, {duration(time.goodput)}{rest}{open_}"


def _moves_live(job: JobSummary) -> str:
    if job.live is None:
        return ""
    why = f": {job.live_why}" if job.live_why else ""
    return f"{'yes' if job.live else f'no{why}'}, as its rank 0 reports"


def _batch(job: JobSummary) -> str:
    if job.batch is None:
        return ""
    wins = "" if job.efficiency_percent is None else f", of which each wins {job.efficiency_percent} % of its best"
    return f"{job.batch} samples in a step{wins}, as its rank 0 reports"


def _values(job: JobSummary) -> str:
    said = ", ".join(f"{name} {value:g}" for name, value in sorted(job.values.items()))
    return f"{said}, as its rank 0 reports" if said else ""


def _run(job: JobSummary) -> str:
    if job.members is None:
        return ": its status cannot be read, so nothing is known of its run"
    wanted = "an unknown number of" if job.wanted is None else str(job.wanted)
    return f", run {job.run}, {job.members} of {wanted} members"


def _members(members: Sequence[MemberSeen], every: bool) -> Page:
    """All members; of MANY only those that are not as all others are, and how many those are."""
    plain = [one for one in members if one.role == Role.MEMBER and one.state == READY]
    left_out = [] if every or len(plain) <= MANY else plain
    shown = [one for one in members if one not in left_out]
    table = Table(
        ("POD", "ROLE", "RUN", "RANK", "NODE", "STATE"),
        tuple((one.name, one.role, str(one.run or ""), one.ranks, one.node, one.state) for one in shown),
    )
    counted = f"{len(left_out)} members are Ready: --members lists them."
    return (table, counted) if left_out else (table,)


def saved_in_words(page: JobPage, now: datetime) -> str:
    """The newest commit that is known, and what was lost."""
    saved, finished = page.job.saved, page.job.stage in _FINISHED
    lost = [f"{page.steps_lost} steps lost so far"] if page.steps_lost else []
    lost += [f"at most {page.steps_in_doubt} more in doubt"] if page.steps_in_doubt else []
    if page.job.members is None:
        return ""
    if saved is None:
        known = "no commit was reported" if finished else "unknown: no member has reported a commit yet"
        return "; ".join([known, *lost])
    when = f", {ago(saved.time, now)} ago" if saved.time else ""
    newer = [] if finished or saved.reported else ["newer commits are reported when members end"]
    return "; ".join([f"step {saved.step}{when}", *newer, *lost])


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
    words = [str(one.steps_lost)] if one.steps_lost else []
    words += [f"≤{one.steps_in_doubt} in doubt"] if one.steps_in_doubt else []
    words += ["not reported"] if one.unreported else []
    return ", ".join(words) or "0"


def _conditions(conditions: Sequence[Condition]) -> Table:
    """The conditions that a person should read. Those that are as they should be are left out."""
    rows = tuple(
        (one.type, one.status, one.reason, one.message)
        for one in conditions
        if one.type not in _SHOWN_ABOVE | _AS_WANTED and (one.status == "True") == (one.type in _BAD_WHEN_TRUE)
    )
    return Table(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows)


def _member(status: TrainingJobStatus, pod: PodView, now: datetime) -> MemberSeen:
    run, ranks = _place(status, pod)
    role, state = _role(status, pod), pod_state(pod, now)
    return MemberSeen(name=pod.name, role=role, node=pod.node, ranks=ranks, run=run, state=state)


def _all(seen: JobSeen) -> Iterator[PodView]:
    """The job's pods, and its members that have none any more and have not ended as far as status says."""
    if seen.pods is None:
        return
    yield from seen.pods
    current, there = seen.status.current, {pod.uid for pod in seen.pods}
    ended = {one.uid for one in current.outcomes} if current else set()
    for member in current.plan.members if current else ():
        if member.uid not in there | ended:
            yield PodView(name=member.name, uid=member.uid, role=Role.MEMBER, node=member.node, gone=True)


def _by_rank(one: MemberSeen) -> tuple[int, int, int, str]:
    """Members by rank, the newest run first; then pods without one, in the order in which they were named."""
    rank = int(one.ranks.partition("-")[0]) if one.ranks else sys.maxsize
    number = one.name.rpartition("-")[2]
    return -(one.run or 0), rank, int(number) if number.isdecimal() else 0, one.name


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
    intent = current.intent if current else None
    if intent and pod.node in intent.nodes and pod.role == Role.MEMBER:
        return "has to leave"
    return pod.role or Role.FORMER.value


def pod_state(pod: PodView, now: datetime) -> str:
    """What its kubelet, or the scheduler, reports."""
    if pod.gone:
        return "gone"
    if pod.terminated:
        ended = f"{pod.terminated.reason or 'ended'}, exit status {pod.terminated.exit_code}"
        return f"{pod.reason}: {ended}" if pod.reason else ended
    if pod.deleting:
        return f"Terminating, until {deadline(pod.deletion_deadline, now, whom='its kubelet')}"
    if pod.unschedulable:
        return f"Pending: {pod.unschedulable}"
    if pod.waiting_reason:
        return f"{pod.phase}: {pod.waiting_reason}: {pod.waiting_message}".rstrip(": ")
    if pod.initializing:
        return f"{pod.phase}: init container {pod.initializing} is running"
    if pod.pulling:
        return f"{pod.phase}: its image is being pulled"
    return READY if pod.ready else f"{pod.phase}, not Ready"
