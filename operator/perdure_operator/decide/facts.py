"""Questions about a snapshot: which pods are the job's, which of them have ended, which nodes are lost, what was
refused.

Nothing here decides or changes anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.wire import AFTER_COMPLETION_SECONDS, LINGER_SECONDS, Completion, ExitKind, Role
from perdure_operator.api import names
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import CurrentRun, Disruption, Intent, MemberOutcome, PreviousRun, Replacements
from perdure_operator.decide.draft import Draft, doubled_seconds, later
from perdure_operator.state.newest_answer import NewestAnswer
from perdure_operator.state.snapshot import (
    KeptTemplate,
    NodeView,
    PodView,
    Refusal,
    RefusalKind,
    Snapshot,
    TemplateVerdict,
    Zone,
)

CAUSE_LENGTH: Final = 500
"""How many characters of a cause status keeps."""

EDIT_SECONDS: Final = 10
"""An edit of the spec ends a pause only after this time: two controllers that overwrite each other edit it all the
time."""
GANG_PAUSE_SECONDS: Final = 60
ROW_SECONDS: Final = 60
"""An edit of the spec ends a series of replacements only after this time."""

LATE_MARGIN_SECONDS: Final = 30
"""How much longer than their time to save members may take before they are deleted."""
LEFTOVER_MARGIN_SECONDS: Final = 30
"""How much longer than allowed the scripts of a completed run may take before the operator acts: their agents act
first."""
ENDINGS_SECONDS: Final = 30
"""How long after the end of a job status neither names nor counts the scripts that go on: it would be written as each
ends."""
SEAT_SECONDS: Final = LINGER_SECONDS - 5
"""How long after the end of one member the others certainly hold their seats."""

PULLING_SECONDS: Final = LINGER_SECONDS
"""How long at most a run trains on for new members whose nodes still pull images or run init containers: as long as a
lost member's replacement has for it, too."""

_SAVED_IN_LOG: Final = (ExitKind.CHECKPOINTED, ExitKind.COMPLETED, ExitKind.HANDED_OVER)
"""Outcomes after which the log has the run's end."""

CAN_WAIT: Final = frozenset({Disruption.NODE_LEAVING, Disruption.SIZE_CHANGE, Disruption.RUN_LOST})
"""Reasons for which no member leaves at a known time, unless a node has a deadline."""
_NAMES_SHOWN: Final = 8
NODES_KEPT: Final = 8
"""How many of the nodes on which members failed status keeps."""
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_OUTAGE_SHARE: Final = 0.55
"""--unhealthy-zone-threshold of kube-controller-manager."""


def patience(snapshot: Snapshot, disruption: Disruption) -> int:
    """How many seconds the job waits for standbys.

    After a member was lost no member trains, and a run without the standbys would lose the steps since the last commit
    that the others hold. So the job waits for as long as they hold them.
    """
    seconds = snapshot.spec.disruption.replacement_timeout_seconds
    return max(seconds, SEAT_SECONDS) if disruption is Disruption.MEMBER_LOST else seconds


def are_set_up(draft: Draft) -> bool:
    """Whether a node is at work for a new member: it pulls an image or runs an init container, which takes time."""
    pods = own(draft.snapshot)
    here = (pods[name] for name in draft.next_members if name in pods and not pods[name].deleting)
    return any((pod.pulling or pod.initializing) and not terminated(pod) for pod in here)


def gang_pause(uid: str, attempts: int, timeout: int) -> timedelta:
    """The pause before a gang's members are created again: doubled up to the timeout, times 1 to 2 by uid."""
    seconds = doubled_seconds(attempts, GANG_PAUSE_SECONDS, timeout)
    drawn = hashlib.sha256(f"{uid} {attempts}".encode()).digest()[0] / 256
    return timedelta(seconds=round(seconds * (1 + drawn)))


def longest_gang_pause(timeout: int) -> int:
    """The longest pause of a gang that has released its nodes, in seconds. Its job's uid decides by how much it is
    shorter."""
    return 2 * timeout


def deadline(draft: Draft) -> datetime | None:
    """When activeDeadlineSeconds is over: it counts from the first members after the last suspension."""
    seconds, start = draft.snapshot.spec.active_deadline_seconds, draft.status.start_time
    return later(start, seconds) if seconds is not None and start is not None else None


def asked_at(intent: Intent) -> datetime | None:
    """When members were first asked to leave, None if they were not."""
    return later(intent.deadline, -intent.seconds - LATE_MARGIN_SECONDS) if intent.deadline else None


@NewestAnswer
def own(snapshot: Snapshot) -> Mapping[str, PodView]:
    """The job's own pods by name; a living pod hides a gone one of the same name."""
    mine = [pod for pod in snapshot.pods if pod.owner_uid == snapshot.uid and _is_named(snapshot, pod)]
    return {pod.name: pod for pod in sorted(mine, key=lambda pod: (not pod.gone, pod.name, pod.uid))}


def _is_named(snapshot: Snapshot, pod: PodView) -> bool:
    """Whether the pod has a member's name: a user may have made the job the owner of another pod, to delete both."""
    return names.is_member(pod.name, snapshot.name, snapshot.uid)


def of_earlier_jobs(snapshot: Snapshot) -> list[PodView]:
    """Pods of earlier jobs of this name: each has a member's name and an assignment, which only an operator gives.

    A label alone proves nothing: users set it to let a pod through a NetworkPolicy, and copied templates have it.
    """
    others = (pod for pod in snapshot.pods if pod.owner_uid != snapshot.uid and not pod.gone)
    return [pod for pod in others if pod.assignment and names.is_member_of_any(pod.name, snapshot.name)]


def orphaned(snapshot: Snapshot) -> bool:
    """Whether any member of the run has lost its owner: `kubectl delete --cascade=orphan` takes one after the other."""
    current = snapshot.status.current
    members = {member.uid for member in current.plan.members} if current else set()
    return any(pod.uid in members and not pod.owner_uid and not pod.gone for pod in snapshot.pods)


def terminated(pod: PodView) -> bool:
    """Whether container 0 has terminated: the member has then ended, even if its sidecars run."""
    return pod.gone or pod.terminated is not None or pod.phase in ("Succeeded", "Failed")


def leftover_seconds(draft: Draft) -> int:
    """How long pods of the finished job may still run: after completion their scripts may go on."""
    completed = draft.status.holds(ConditionType.COMPLETED)
    return AFTER_COMPLETION_SECONDS + LEFTOVER_MARGIN_SECONDS if completed else 0


def leftovers(draft: Draft) -> list[PodView]:
    """Members of the finished job that still run after most scripts have ended."""
    since = draft.status.finished_at
    if since is None or draft.now < later(since, ENDINGS_SECONDS):
        return []
    return [pod for pod in own(draft.snapshot).values() if pod.role == Role.MEMBER and not terminated(pod)]


def lingers(pod: PodView) -> bool:
    """Whether container 0 has terminated and other containers keep the pod running.

    The phase alone does not show it: a kubelet that has reported the end of the last container cleans up for a second
    or more before it reports the end of the pod.
    """
    over = pod.gone or pod.phase in ("Succeeded", "Failed")
    return pod.terminated is not None and pod.others_run and not over


def node_of(snapshot: Snapshot, pod: PodView) -> NodeView | None:
    """The node under a pod; None if there is none or it is not known."""
    return next((node for node in snapshot.nodes if node.name == pod.node), None)


def in_outage(snapshot: Snapshot, node: NodeView) -> bool:
    """Whether the control plane is more likely at fault than this node.

    The rule is that of Kubernetes' node lifecycle controller: no node is Ready at all, or more than two nodes of the
    zone, and at least 55 % of them, are not.
    """
    if snapshot.zones and not any(zone.ready for zone in snapshot.zones):
        return True
    zone = next((zone for zone in snapshot.zones if zone.name == node.zone), Zone())
    down = zone.not_ready
    return zone.ready > 0 and down > 2 and down / (down + zone.ready) >= _OUTAGE_SHARE


def given_up_at(draft: Draft, node: str) -> datetime | None:
    """When members on this unreachable node are given up; None while it is reachable, or no other node is.

    In an outage nodes are given up late, one after the other, and only while some node is Ready to take members. A node
    that is overdue, after hours without a leader or a Ready node, still counts from the node that was given up last.
    """
    unready = next((one for one in draft.status.unready if one.node == node), None)
    failure = draft.snapshot.spec.failure
    if unready is None:
        return None
    if not unready.outage:
        return later(unready.since, failure.lost_node_seconds)
    if not any(zone.ready for zone in draft.snapshot.zones):
        return None
    if unready.given_up:
        return unready.given_up
    waiting = [one for one in draft.status.unready if one.outage and not one.given_up]
    before = sum((one.since, one.node) < (unready.since, node) for one in waiting)
    at, last = (
        later(unready.since, failure.mass_outage_seconds + before * failure.lost_node_seconds),
        draft.status.given_up,
    )
    return max(at, later(last, (before + 1) * failure.lost_node_seconds)) if last else at


def node_lost(draft: Draft, pod: PodView) -> bool:
    """Whether members on the pod's node are given up."""
    at = given_up_at(draft, pod.node)
    return at is not None and at <= draft.now


def refused(draft: Draft, members: Iterable[str]) -> Refusal | None:
    """Why one of these members has no pod, or their budget does not protect them yet; None if nothing was refused."""
    budget, wanted = draft.snapshot.budget, set(members)
    if budget is None or budget.altered or budget.min_available < len(wanted):
        wanted.add(names.budget(draft.snapshot.name, draft.snapshot.uid))
    wanted -= set(own(draft.snapshot))
    refusals = (one for one in draft.snapshot.refusals if one.kind is not RefusalKind.DELETION_REFUSED)
    return next((one for one in refusals if one.pod in wanted), None)


def refused_change(draft: Draft, name: str) -> Refusal | None:
    """Why the last change of this pod, or of the budget, was refused; None if it was not."""
    changes = (one for one in draft.snapshot.refusals if one.kind is RefusalKind.PATCH_REFUSED)
    return next((one for one in changes if one.pod == name), None)


def refused_deletions(draft: Draft) -> list[Refusal]:
    """Why objects of the job that still exist cannot be deleted."""
    return [one for one in draft.snapshot.refusals if one.kind is RefusalKind.DELETION_REFUSED]


def fallback(draft: Draft) -> KeptTemplate | None:
    """The template for new members while spec.template is refused: the last that passed a dry run, if it is kept."""
    if _verdict(draft) is not TemplateVerdict.BAD:
        return None
    snapshot = draft.snapshot
    name = names.kept_template(snapshot.name, snapshot.uid, draft.status.template_checked)
    return next((one for one in snapshot.kept if one.name == name and one.hash), None)


def template_can_be_used(draft: Draft) -> bool:
    """Whether new members can be made as the spec is now: False while its dry run is not answered, or was refused and
    no earlier template is kept."""
    verdict = _verdict(draft)
    return verdict in (TemplateVerdict.GOOD, TemplateVerdict.WAIT) or fallback(draft) is not None


def made_from_another(draft: Draft, pod: PodView) -> bool:
    """Whether a new member would be made from another template than this pod was."""
    kept, wanted = fallback(draft), {draft.snapshot.template_hash}
    if kept:
        wanted = {kept.hash}
    elif _verdict(draft) is TemplateVerdict.UNKNOWN:  # it may be refused: the last good one is still what counts
        wanted.add(draft.status.template_checked)
    return bool(pod.template_hash) and pod.template_hash not in wanted


def template_of(draft: Draft, pod: PodView) -> str:
    """The hash of the template that the pod was made from; the current one if a person has removed the annotation."""
    return pod.template_hash or draft.snapshot.template_hash


def _verdict(draft: Draft) -> TemplateVerdict:
    """The verdict on the current template."""
    snapshot = draft.snapshot
    if draft.status.template_checked == snapshot.template_hash:
        return TemplateVerdict.GOOD
    known = snapshot.template_check.hash == snapshot.template_hash
    return snapshot.template_check.verdict if known else TemplateVerdict.UNKNOWN


def outcome_of(run: CurrentRun | PreviousRun | None, name: str) -> MemberOutcome | None:
    """How this member of the run ended, None while it has not."""
    return next((one for one in run.outcomes if one.name == name), None) if run else None


def waits_for_room(intent: Intent) -> bool:
    """Whether members move only once there is room elsewhere: no member has to leave, and nothing limits the wait."""
    limits = intent.ready_by or intent.grow_by
    return intent.prepare and limits is None and intent.disruption is Disruption.NODE_LEAVING


def leavers(draft: Draft) -> list[PodView]:
    """Pods of the previous run's leavers that have not ended, in rank order."""
    previous, pods = draft.status.previous, own(draft.snapshot)
    if previous is None:
        return []
    return [pods[m.name] for m in previous.members if m.name in pods]


def still_running(draft: Draft) -> list[PodView]:
    """Pods of the current run that have not ended, in rank order."""
    current = draft.current
    if current is None:
        return []
    pods = own(draft.snapshot)
    return [pods[m.name] for m in current.plan.members if m.name in pods and not outcome_of(current, m.name)]


def order_of_death(one: MemberOutcome) -> tuple[bool, datetime, bool]:
    """A sort key for the time of death. A member that lost a peer comes last, as it died of another's death.

    Kubelets report whole seconds. If two members ended in the same second, one that was ended from outside comes first.
    """
    return one.outcome == ExitKind.PEER_LOST, one.time or _NEVER, not one.infrastructure


def unexpected(snapshot: Snapshot, current: CurrentRun) -> list[MemberOutcome]:
    """Outcomes after which the run cannot go on. With exit codes, a rank that completes leaves the others at work."""
    by_exit_code = snapshot.spec.completion is Completion.EXIT_CODE
    return [one for one in current.outcomes if not (by_exit_code and one.outcome == ExitKind.COMPLETED)]


def stands_still(draft: Draft) -> bool:
    """Whether no run trains. Then members may stay on nodes that they would leave only if there were room elsewhere."""
    return draft.current is None or bool(unexpected(draft.snapshot, draft.current))


def waited_enough(draft: Draft) -> bool:
    """Whether the time for standbys is over. Then members that need not leave stay: else all would have to leave."""
    intent = draft.intent
    return bool(intent and intent.prepare and intent.ready_by and draft.now >= intent.ready_by)


def ended_in_log(run: CurrentRun | PreviousRun) -> bool:
    """Whether the log shows the run's end: its final commit is there, or rank 0 has most likely closed it."""
    first = run.first if isinstance(run, PreviousRun) else next((m.name for m in run.plan.members), "")
    return saved_in_log(run) or any(one.name == first and one.outcome == ExitKind.STOPPED for one in run.outcomes)


def saved_in_log(run: CurrentRun | PreviousRun) -> bool:
    """Whether an outcome reports the run's end in the log.

    Rank 0 is `stopped` even if it was killed before it closed the run; the entry may have been on its way.
    """
    return reports_save(run.run, run)


def reports_save(number: int, run: CurrentRun | PreviousRun) -> bool:
    """Whether one of these members reports the end of run `number` in the log."""
    return any(one.run == number and one.outcome in _SAVED_IN_LOG for one in run.outcomes)


def runs_lost_with(draft: Draft, current: CurrentRun) -> tuple[int, ...]:
    """The lost runs, with the runs that cannot save any more now that a member of the current run was lost.

    If no member has reported that the current run has begun, the previous run may still be at work. If the lost member
    was in both, the previous run is lost as well, and no member may wait for it.
    """
    status, plan = draft.status, current.plan
    lost = add_lost_run(status.lost, current.run)
    if not plan.takes_over or plan.joins is None or status.opened >= current.run:
        return lost
    came = {member.name for member in plan.members if member.rank in plan.joins}
    broken = any(one.name not in came for one in current.outcomes) and not reports_save(plan.takes_over, current)
    return add_lost_run(lost, plan.takes_over) if broken else lost


def add_lost_run(lost: tuple[int, ...], run: int) -> tuple[int, ...]:
    """The newest 32 lost runs, with this one."""
    return tuple(sorted({*lost, run}))[-32:]


def one_more(draft: Draft, old: Replacements | None, cause: str, nodes: Iterable[str] = ()) -> Replacements:
    """The series of replacements with one more; an edit of the spec begins another series.

    `nodes`: the nodes of those that failed on their own.
    """
    generation = draft.snapshot.generation
    goes_on = old and (old.generation == generation or draft.now < later(old.last_time, ROW_SECONDS))
    known, count = (old.nodes, old.count + 1) if old and goes_on else ((), 1)
    failed = dict.fromkeys([*(node for node in known if node not in nodes), *nodes])
    return Replacements(
        count=count,
        last_time=draft.now,
        generation=generation,
        cause=cause[:CAUSE_LENGTH],
        nodes=tuple(failed)[-NODES_KEPT:],
    )


def listed(pods: Iterable[PodView]) -> str:
    """Pods and their nodes, for a message."""
    return joined([f"{pod.name} (node {pod.node})" if pod.node else pod.name for pod in pods])


def joined(words: list[str]) -> str:
    """The first of these words, and how many more there are."""
    more = [f"{len(words) - _NAMES_SHOWN} more"] if len(words) > _NAMES_SHOWN else []
    return ", ".join(words[:_NAMES_SHOWN] + more)
