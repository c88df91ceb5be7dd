"""`kubectl perdure what-if drain`: what a drain would do to each job, by the operator's own decisions. Pure.

Shows what the operator would decide, until when, and what cannot be known in advance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import Field

from perdure.wire import Completion, Role
from perdure.wire.settings import DEFAULT_EVERY_SECONDS
from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import SignalSource
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import LiveRefused, Takeover
from perdure_operator.cli.kubectl.forward import How, Outlook, asked_to_leave, drained, play
from perdure_operator.cli.kubectl.job import heard_progress, reported_death_costs, saved_step
from perdure_operator.cli.kubectl.page import Facts, Page, Table, duration
from perdure_operator.decide import stage_of
from perdure_operator.decide.facts import own, terminated
from perdure_operator.state.snapshot import PodView, Snapshot

MOST_SECONDS: Final = 3600
"""A longer warm-up is most likely none: a pod that was not Ready in between shows only since when it is again."""
NOT_LOOKED_AT: Final = (
    "Not looked at: other pods on these nodes, and their budgets; whether several jobs compete for the same room."
)
WHERE: Final = 4
"""With more nodes than this, a page tells their number."""


@dataclass(frozen=True)
class Rules:
    """The rules by which a drain is played."""

    rows: str
    """Which rows of the table of signals, in words."""
    version: str
    """The version of Perdure whose decisions are played."""
    operator: str = ""
    """The version of the operator's chart; "" if unknown."""
    namespace: str | None = None
    """Whose jobs were looked at; None for all."""


@dataclass(frozen=True)
class DrainSeen:
    """A job with pods on the nodes of a drain."""

    snapshot: Snapshot
    warm_ups: tuple[float, ...] = ()
    """How many seconds each of its pods took from its creation until it was Ready."""


@dataclass(frozen=True)
class Unseen:
    """A job with pods there that could not be read."""

    namespace: str
    name: str
    why: str


class Evictions(Model):
    """What the eviction API says to a drain of the job's members."""

    refused: bool
    """Whether it refuses at first, one member at least."""
    unprotected: tuple[str, ...] = ()
    """Members that train and are evicted at once: no budget keeps them until a move is over."""
    why: str
    first_after: float | None = None
    """About so many seconds after the cordon the first is admitted if new members find room; absent if unknown."""
    at_latest: datetime | None = None
    """The time by which they are admitted if new members find no room; absent without a limit."""


class MoveOfJob(Model):
    """What a job would do if members had to leave these nodes."""

    namespace: str
    name: str
    stage: str
    members: tuple[str, ...]
    """Its pods on these nodes."""
    nodes: tuple[str, ...]
    """The nodes that these pods are on."""
    with_room: Outlook
    """If its new members find a node."""
    without_room: Outlook
    """If they find none."""
    at_risk: str
    """Which steps could be lost."""
    hangs: str = ""
    """Since when its run makes no progress, in the operator's words; "" if it makes some, or if that is not known."""
    warm_up: float | None = None
    """The most seconds that one of its pods took until it was Ready; absent if none is."""
    not_known: tuple[str, ...] = ()


class DrainOfJob(MoveOfJob):
    """What a drain would do to one job."""

    evictions: Evictions


def drain(seen: DrainSeen, nodes: Iterable[str]) -> DrainOfJob:
    """What a drain of these nodes would do to the job."""
    snapshot, named = seen.snapshot, frozenset(nodes)
    going = pods_on(snapshot, named)
    unprotected = _unprotected(snapshot, going)
    told = _foretold(seen, going, unprotected, drained(snapshot, named, unprotected), SignalSource.CORDON)
    outlooks = told.with_room, told.without_room
    return DrainOfJob(**dict(told), evictions=_evictions(snapshot, going, unprotected, outlooks, told.warm_up))


def move(seen: DrainSeen, nodes: Iterable[str], vacate: str) -> MoveOfJob:
    """What the annotation perdure.dev/vacate with this value would do to the job, which has pods on these nodes."""
    going = pods_on(seen.snapshot, frozenset(nodes))
    return _foretold(seen, going, (), asked_to_leave(seen.snapshot, vacate), SignalSource.JOB)


def _foretold(
    seen: DrainSeen, going: Sequence[PodView], unprotected: Sequence[str], after: Snapshot, by: SignalSource
) -> MoveOfJob:
    snapshot, warm_up = seen.snapshot, _longest(seen)
    advances, hangs = _progress(snapshot)
    after = _as_reported(after)
    with_room, without_room = (_outlook(after, room=room, hangs=hangs, by=by) for room in (True, False))
    return MoveOfJob(
        namespace=snapshot.namespace,
        name=snapshot.name,
        stage=stage_of(snapshot.status).value,
        members=tuple(pod.name for pod in going),
        nodes=tuple(sorted({pod.node for pod in going})),
        with_room=with_room,
        without_room=without_room,
        at_risk=_at_risk(snapshot, with_room, [pod for pod in going if pod.name in unprotected], hangs=bool(hangs)),
        hangs=hangs,
        warm_up=warm_up,
        not_known=tuple(_not_known(snapshot, with_room, warm_up, advances=advances)),
    )


def _progress(snapshot: Snapshot) -> tuple[bool | None, str]:
    """Whether the run makes progress, as its rank 0 has reported lately, and the operator's words if it makes none."""
    status = snapshot.status
    found = status.find(ConditionType.PROGRESSING)
    if found is None or heard_progress(status, snapshot.now) is None:
        return None, ""
    if found.status == "False":
        return False, found.message
    return (True if found.status == "True" else None), ""


def _as_reported(snapshot: Snapshot) -> Snapshot:
    """With a script that has refused to change its members live if it reports that it would."""
    status = snapshot.status
    heard = heard_progress(status, snapshot.now)
    if heard is None or heard.live is not False or status.current is None:
        return snapshot
    first = own(snapshot).get(status.current.plan.members[0].name) if status.current.plan.members else None
    template = (first.template_hash if first else "") or snapshot.template_hash
    refused = LiveRefused(template=template, why=heard.live_why)
    return snapshot.model_copy(update={"status": status.model_copy(update={"live_refused": refused})})


def _outlook(after: Snapshot, *, room: bool, hangs: str, by: SignalSource) -> Outlook:
    """What the operator does. It asks a run that hangs, too, which cannot answer."""
    found = play(after, room=room, by=by)
    asks = found.how in (How.LIVE, How.IN_PLACE)
    return found.model_copy(update={"how": How.HANGS, "size": 0, "why": ""}) if hangs and asks else found


def pods_on(snapshot: Snapshot, nodes: frozenset[str]) -> list[PodView]:
    """The job's own pods there that have not ended."""
    there = (pod for pod in own(snapshot).values() if pod.node in nodes)
    return [pod for pod in there if not (pod.gone or terminated(pod))]


def _longest(seen: DrainSeen) -> float | None:
    """The longest warm-up; None if none is known, or only one that cannot be true."""
    longest = max(seen.warm_ups, default=None)
    return longest if longest is not None and longest <= MOST_SECONDS else None


def _trains(pod: PodView) -> bool:
    return pod.role == Role.MEMBER and pod.ready and not (terminated(pod) or pod.deleting)


def _unprotected(snapshot: Snapshot, going: Sequence[PodView]) -> tuple[str, ...]:
    """The members there that train and whose eviction is admitted at once."""
    there = [pod.name for pod in going if _trains(pod)]
    if snapshot.foreign_budgets:
        return ()
    if snapshot.budget is None:
        return tuple(there)
    available = sum(map(_trains, own(snapshot).values())) + len(snapshot.foreign_pods)
    return tuple(there[: max(0, available - snapshot.budget.min_available)])


def _evictions(
    snapshot: Snapshot,
    going: Sequence[PodView],
    unprotected: tuple[str, ...],
    outlooks: tuple[Outlook, Outlook],
    warm_up: float | None,
) -> Evictions:
    budget, (with_room, without_room) = snapshot.budget, outlooks
    if snapshot.foreign_budgets:
        others = ", ".join(snapshot.foreign_budgets)
        return Evictions(refused=True, why=f"refused until another PodDisruptionBudget is changed or deleted: {others}")
    if budget is None:
        graces = max((pod.grace for pod in going), default=0)
        why = f"no PodDisruptionBudget: members are evicted at once, with {graces} s to save"
        return Evictions(refused=False, unprotected=unprotected, why=why)
    train = sum(map(_trains, going))
    if not train:
        return Evictions(refused=False, why="admitted at once: no member that trains has to stay available there")
    kept = f"the job's PodDisruptionBudget keeps {budget.min_available} members available"
    if unprotected:
        kept = f"{kept}, and the first {len(unprotected)} of {train} members there are evicted at once"
    if len(unprotected) == train:
        return Evictions(refused=False, unprotected=unprotected, why=kept)
    return Evictions(
        refused=True,
        unprotected=unprotected,
        why=f"{kept}: refused (429, kubectl tries again every 5 s) until the members there have ended",
        first_after=_first_after(snapshot, with_room, warm_up),
        at_latest=without_room.saved_by,
    )


def _first_after(snapshot: Snapshot, outlook: Outlook, warm_up: float | None) -> float | None:
    """Seconds until members are asked, new ones are Ready, and leaving ones have ended; None if one is unknown."""
    exits = _exit_seconds(snapshot)
    if outlook.how in (How.HANGS, How.TRAINS_ON, How.WAITS) or (outlook.starting and warm_up is None):
        return None
    if exits is None and outlook.how is not How.LIVE:
        return None
    return outlook.seconds + ((warm_up or 0.0) if outlook.starting else 0.0) + (exits or 0.0)


def _exit_seconds(snapshot: Snapshot) -> float | None:
    """What its members took to save and leave; if none was asked to yet, what rank 0 says that a save takes."""
    known, heard = snapshot.status.exit_seconds, heard_progress(snapshot.status, snapshot.now)
    return known if known is not None else heard.required_grace_seconds if heard else None


def _at_risk(snapshot: Snapshot, outlook: Outlook, unprotected: Sequence[PodView], *, hangs: bool) -> str:
    if snapshot.status.current is None:
        return "none: no run is on"
    if snapshot.spec.completion is not Completion.LOG:
        return "what the script has not saved when it is asked to end"
    saved = f"the steps since its last commit ({cadence(snapshot.spec.checkpoint)})"
    newest = saved_step(snapshot.status)
    known = f"; the last one known is of step {newest.step}" if newest else "; none is known yet"
    if unprotected:
        grace = min(pod.grace for pod in unprotected)
        heard = heard_progress(snapshot.status, snapshot.now)
        takes = heard.required_grace_seconds if heard else None
        about = "" if takes is None else f", and a save takes about {takes} s"
        return f"{saved}{known}: members are evicted at once, unless all have saved {grace} s later{about}"
    if hangs:
        return f"at most {saved}{known}: members that hang do not save"
    if outlook.how is How.LIVE:
        costs = reported_death_costs(snapshot.status, snapshot.now)
        before = f"if a member dies before the move, {costs}, as rank 0 reports; in the middle of it" if costs else ""
        return f"none; {before or 'if a member dies meanwhile'}, at most {saved}{known}"
    if outlook.how is How.TRAINS_ON:
        return f"none as long as it trains on; if its members are deleted by force, {saved}{known}"
    return f"none if the members save in time; otherwise {saved}{known}"


def cadence(policy: CheckpointPolicy) -> str:
    """How often a run saves, in words."""
    for number, what in ((policy.every_steps, "steps"), (policy.every_epochs, "epochs")):
        if number is not None:
            return f"one every {number} {what}"
    return f"one every {policy.every_seconds or DEFAULT_EVERY_SECONDS} seconds"


def _not_known(snapshot: Snapshot, outlook: Outlook, warm_up: float | None, *, advances: bool | None) -> Iterable[str]:
    status = snapshot.status
    if outlook.starting:
        yield f"whether there is room for {_members(outlook.starting)}"
    if outlook.starting and warm_up is None:
        yield "how long they take to be Ready"
    heard = heard_progress(status, snapshot.now)
    can = heard is not None and heard.live
    if outlook.how is How.LIVE and not can and all(one.how is not Takeover.LIVE for one in status.history):
        yield "whether its script can be handed over live, as no run of it was: if not, it goes on in place"
    if outlook.how in (How.IN_PLACE, How.RECREATE) and _exit_seconds(snapshot) is None:
        yield "how long its members take to save, as none was asked to yet"
    if status.current and advances is None:
        yield "whether its members make progress"


def _members(count: int) -> str:
    return "1 new member" if count == 1 else f"{count} new members"


class Drain(Model):
    """What a drain of these nodes would do."""

    nodes: tuple[str, ...]
    now: datetime
    namespace: str | None = None
    """Whose jobs were looked at; null for all namespaces."""
    signals: str
    """Which rows of the table of signals were taken."""
    version: str
    """The version of Perdure whose decisions were played."""
    operator: str = ""
    """The version of the operator's chart; "" if unknown."""
    jobs: tuple[DrainOfJob, ...]
    unreadable: dict[str, str] = Field(default_factory=dict)
    """Jobs of which nothing is said, as namespace/name, and why."""
    not_looked_at: str = NOT_LOOKED_AT


def what_if(seen: Iterable[DrainSeen | Unseen], nodes: Sequence[str], now: datetime, rules: Rules) -> Drain:
    """What a drain of these nodes would do to those of the jobs that have pods there which have not ended."""
    found, named = list(seen), frozenset(nodes)
    there = [one for one in found if isinstance(one, DrainSeen) and pods_on(one.snapshot, named)]
    return Drain(
        nodes=tuple(nodes),
        now=now,
        namespace=rules.namespace,
        signals=rules.rows,
        version=rules.version,
        operator=rules.operator,
        jobs=tuple(drain(one, nodes) for one in there),
        unreadable={f"{one.namespace}/{one.name}": one.why for one in found if isinstance(one, Unseen)},
    )


def page(drain: Drain) -> Page:
    """The page for people: all jobs in one table, then each with its reasons."""
    jobs, now, there = drain.jobs, drain.now, _in_namespace(drain)
    where = ", ".join(drain.nodes) if len(drain.nodes) <= WHERE else f"these {len(drain.nodes)} nodes"
    unreadable = [f"{name}: cannot be read, so it is not judged: {why}" for name, why in drain.unreadable.items()]
    if not jobs and not unreadable:
        return (f"No training job{there} has a pod on {where}.",)
    heads = ("NAMESPACE", "NAME", "PODS THERE", "IF NEW MEMBERS FIND ROOM", "IF THEY FIND NONE", "EVICTIONS")
    rows = tuple(
        (
            job.namespace,
            job.name,
            str(len(job.members)),
            _short(job.with_room),
            _short(job.without_room),
            _admitted(job.evictions),
        )
        for job in jobs
    )
    title = f"If {where} were drained now{f': jobs{there}' if there else ''}"
    return (
        Table(heads, rows, title=title),
        *(details(job, now) for job in jobs),
        *unreadable,
        _played(drain),
        drain.not_looked_at,
    )


def _in_namespace(drain: Drain) -> str:
    return f" in namespace {drain.namespace}" if drain.namespace else ""


def _admitted(evictions: Evictions) -> str:
    if evictions.unprotected:
        return f"{len(evictions.unprotected)} at once, unprotected"
    return "refused at first" if evictions.refused else "admitted at once"


def _played(drain: Drain) -> str:
    return played(Rules(drain.signals, drain.version, drain.operator))


def played(rules: Rules) -> str:
    """Whose decisions were played, in words."""
    known = f"the operator's chart is of version {rules.operator}" if rules.operator else "the operator's is not known"
    other = "" if rules.operator == rules.version else f"; {known}, and another version may decide otherwise"
    return f"These are the decisions of Perdure {rules.version}{other}. Rows of the table of signals: {rules.rows}."


def table_of_each(drains: Sequence[Drain]) -> Page:
    """The page for nodes of which each is drained alone: a row for each node and job."""
    heads = ("NODE", "NAMESPACE", "NAME", "PODS THERE", "IF NEW MEMBERS FIND ROOM", "IF THEY FIND NONE", "EVICTIONS")
    rows = [
        (
            *(one.nodes[0], job.namespace, job.name, str(len(job.members))),
            *(_short(job.with_room), _short(job.without_room), _admitted(job.evictions)),
        )
        for one in drains
        for job in one.jobs
    ]
    first = drains[0]
    unreadable = {name: why for one in drains for name, why in one.unreadable.items()}
    parts = [f"{name}: cannot be read, so it is not judged: {why}" for name, why in unreadable.items()]
    idle = [one.nodes[0] for one in drains if not (one.jobs or one.unreadable)]
    if idle:
        names = ", ".join(idle) if len(idle) <= WHERE else f"{len(idle)} of these nodes"
        parts.append(f"No training job{_in_namespace(first)} has a pod on {names}.")
    title = "If only this node were drained now"
    return (Table(heads, tuple(rows), title=title), *parts, _played(first), first.not_looked_at)


def details(job: MoveOfJob, now: datetime) -> Facts:
    """All that is foretold of one job."""
    drain = job if isinstance(job, DrainOfJob) else None
    since = CORDON if drain else REQUEST
    return Facts(
        (
            ("Job", f"{job.namespace}/{job.name}, {job.stage}"),
            ("Pods there", ", ".join(job.members)),
            ("With room", _long(job.with_room, now, since)),
            ("Without", _long(job.without_room, now, since)),
            ("Warm-up", _warm_up(job, now, since)),
            ("Evictions", _evictions_in_words(drain, now) if drain else ""),
            ("Progress", job.hangs),
            ("Steps at risk", job.at_risk),
            ("Not known", "; ".join(job.not_known)),
        )
    )


def _warm_up(job: MoveOfJob, now: datetime, since: str) -> str:
    """How long new members take by the present ones, and whether that is longer than they are awaited."""
    outlook, span = job.with_room, job.warm_up
    if span is None or not outlook.starting:
        return ""
    warm_up = f"its pods took up to {duration(span)} to be Ready"
    until = outlook.awaited_until
    late = until and _at(outlook, now) + timedelta(seconds=span) > until
    limit = (
        f": the operator waits for new ones only until {_after(until, now, since)}, then it goes as without room"
        if late
        else ""
    )
    return f"{warm_up}{limit}"


def _short(outlook: Outlook) -> str:
    waits = outlook.awaited_until and outlook.how in (How.RECREATE, How.LIVE) and outlook.seconds > SOON
    return f"{outlook.how.value} after {duration(outlook.seconds)}" if waits else outlook.how.value


SOON: Final = 10
"""Seconds after the cordon that are worth no time of their own in the table: the quiet second, and what follows."""


CORDON: Final = "the cordon"
REQUEST: Final = "the request"
"""Where the times of a drain, and those of a move, count from."""


def _after(moment: datetime | None, now: datetime, since: str) -> str:
    """A simulated time relative to its cause, because that has not happened."""
    return f"{duration((moment - now).total_seconds())} after {since}" if moment else ""


def _at(outlook: Outlook, now: datetime) -> datetime:
    return now + timedelta(seconds=outlook.seconds)


_WORDS: Final = {
    How.LIVE: "live: the run goes on between two batches",
    How.IN_PLACE: "in place: the members save, and those that stay go on in their pods",
    How.RECREATE: "recreate: all members save and leave, and all members of the next run are new",
    How.HANGS: "hangs: the run changes its members between two steps, or saves behind one; if it makes none, they end "
    "without a save",
    How.TRAINS_ON: "trains on: no member leaves",
    How.WAITS: "no run is on: it waits",
}


def _long(outlook: Outlook, now: datetime, since: str) -> str:
    size = f", with {outlook.size} members" if outlook.size else ""
    late = outlook.seconds and outlook.how is not How.TRAINS_ON
    when = f", {duration(outlook.seconds)} after {since}" if late else ""
    if outlook.starting and outlook.how in (How.LIVE, How.IN_PLACE) and outlook.seconds <= SOON:
        when = f", once {_members(outlook.starting)} {'is' if outlook.starting == 1 else 'are'} Ready"
    by = f"; they may save until {_after(outlook.saved_by, now, since)}" if outlook.saved_by else ""
    why = f"; because {outlook.why}" if outlook.why else ""
    waits = ", and the drain waits for as long as kubectl lets it"
    drains = waits if outlook.how is How.TRAINS_ON and since == CORDON else ""
    return f"{_WORDS[outlook.how]}{drains}{size}{when}{by}{why}"


def _evictions_in_words(job: DrainOfJob, now: datetime) -> str:
    evictions = job.evictions
    first = (
        f"; with room the first is admitted about {duration(evictions.first_after)} after the cordon"
        if evictions.first_after
        else ""
    )
    last = (
        f"; without room by {_after(evictions.at_latest, now, CORDON)}, if they save in time"
        if evictions.at_latest
        else ""
    )
    never = "; without room that is never" if evictions.refused and job.without_room.how is How.TRAINS_ON else ""
    return f"{evictions.why}{first}{last}{never}"
