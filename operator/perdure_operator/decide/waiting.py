"""Why a member that the job waits for is not Ready yet, or is still there: in words for people.

The reason for a slow start comes from the scheduler, the kubelet or the API server. A member that has to end is still
there because its assignment cannot be changed, or because its node does not end it. Nothing is ever deleted by force: a
container whose end no kubelet has reported may still train.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from perdure.wire import Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Intent, PreviousRun
from perdure_operator.decide.assignments import run_named
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import (
    asked_at,
    given_up_at,
    joined,
    leavers,
    listed,
    node_lost,
    own,
    refused,
    refused_change,
    refused_deletions,
    terminated,
)
from perdure_operator.decide.placement import agent_missing, unusable_node
from perdure_operator.state.snapshot import PodView, RefusalKind

REFUSED_SECONDS: Final = 10
"""How long a refused request to leave is repeated; then the pod is deleted, as SIGTERM asks it as well."""
STUCK_SECONDS: Final = 30
"""How long after its grace a pod is stuck: a kubelet kills at the end of the grace and reports within seconds."""

_IMAGE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONTAINER: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"}
)


def not_ready(draft: Draft, names: tuple[str, ...]) -> Draft:
    """Wait for these members, and give the reason that explains most."""
    if found := what_keeps(draft, names):
        return draft.wait(*found)
    # The words name all members: if they named only the missing ones, status would be written once for each pod.
    members = draft.next_members or names
    whom = f"{members[0]} is Ready" if len(members) == 1 else f"all {len(members)} are Ready: {joined(list(members))}"
    return draft.wait(Reason.STARTING_MEMBERS, f"waiting until {whom}{_set_up(draft)}")


def _set_up(draft: Draft) -> str:
    """What a node is at work on for a new member, which may take long: an init container, or else an image."""
    pods = own(draft.snapshot)
    at_work = (pods[name] for name in draft.next_members if name in pods and pods[name].initializing)
    first = next(at_work, None)
    if first:
        return f"; init container {first.initializing} of {listed([first])} is still running"
    pulling = [pods[name] for name in draft.next_members if name in pods and pods[name].pulling]
    return f"; most likely an image is being pulled for {listed(pulling[:1])}" if pulling else ""


def what_keeps(draft: Draft, names: tuple[str, ...]) -> tuple[Reason, str] | None:
    """The reason that best explains why one of these is not Ready; None if they only take their time."""
    pods = own(draft.snapshot)
    here = [pods[name] for name in names if name in pods]
    for found in (_agent(here), _refusal(draft, names), _image(here), _container(here), broken_sidecar(here)):
        if found:
            return found
    stuck = [pod for pod in here if pod.unschedulable]
    if not stuck:
        return None
    return Reason.UNSCHEDULABLE, f"no node for {listed(stuck)}: {stuck[0].unschedulable}{_held(draft)}"


def why_ready_no_more(draft: Draft, pods: list[PodView]) -> tuple[Reason, str] | None:
    """Why members that were Ready are not any more; None if none of them was."""
    nodes = {pod.node for pod in pods}
    ends = [at for node in nodes if (at := given_up_at(draft, node))]
    if any(one.outage for one in draft.status.unready if one.node in nodes):
        until = (
            f"given up from {clock(min(ends))} on, one node after the other"
            if ends
            else "no time limit while no node is Ready"
        )
        message = f"most nodes are not Ready: {listed(pods)} may well be training, and none is given up yet; {until}"
        return Reason.MASS_OUTAGE, message
    if ends:
        message = f"waiting for the nodes of {listed(pods)} to be Ready again; given up at {clock(min(ends))}"
        return Reason.NODE_UNREACHABLE, message
    were_warm = [pod for pod in pods if pod.uid in _known_warm(draft)]
    if not were_warm:
        return None
    words = f"no longer Ready, although their nodes are: {listed(were_warm)}; it is not known whether they train"
    held = broken_sidecar(were_warm)
    return Reason.MEMBER_NOT_READY, f"{words}: {held[1]}" if held else words


def _known_warm(draft: Draft) -> set[str]:
    """Members, by uid, that were Ready before: all of a run that has begun, and those that stayed from the last run."""
    current = draft.current
    if current is None:
        return set()
    joins = current.plan.joins if current.plan.takes_over else None
    stayed = (member for member in current.plan.members if joins is not None and member.rank not in joins)
    return {member.uid for member in (current.plan.members if current.warm else stayed)}


def _held(draft: Draft) -> str:
    """Why pods of this job keep new members off nodes: the scheduler sees the pods, and not why no member may train."""
    pods = sorted(own(draft.snapshot).values(), key=lambda pod: pod.node)
    formers = [pod for pod in pods if pod.role == Role.FORMER and not terminated(pod)]
    causes = [why for pod in formers if (why := unusable_node(draft, pod))]
    if not causes:
        return ""
    return f"; pods of this job keep it off nodes where no member may start: {joined(list(dict.fromkeys(causes)))}"


def _agent(pods: list[PodView]) -> tuple[Reason, str] | None:
    for pod in pods:
        if agent_missing(pod):
            words = pod.terminated.message if pod.terminated else pod.waiting_message
            message = f"the image of the trainer in {pod.name} has no perdure: "
            return Reason.AGENT_MISSING, message + words
    return None


def _refusal(draft: Draft, names: tuple[str, ...]) -> tuple[Reason, str] | None:
    refusal = refused(draft, names)
    if refusal is None:
        return None
    what = "changing" if refusal.kind is RefusalKind.PATCH_REFUSED else "creating"
    return refusal_reason(refusal.message), f"{what} {refusal.pod} was refused: {refusal.message}"


def refusal_reason(message: str) -> Reason:
    """Whether a quota or admission refused: both answer 403, and only the words differ."""
    return Reason.QUOTA_EXCEEDED if "exceeded quota" in message else Reason.POD_REFUSED


def _image(pods: list[PodView]) -> tuple[Reason, str] | None:
    return _stuck(pods, _IMAGE, Reason.IMAGE_PULL_FAILED)


def _container(pods: list[PodView]) -> tuple[Reason, str] | None:
    return _stuck(pods, _CONTAINER, Reason.CONTAINER_NOT_CREATED)


def broken_sidecar(pods: list[PodView]) -> tuple[Reason, str] | None:
    """A container beside container 0 that ends or crashes: its pod is not Ready."""
    broken = (pod for pod in pods if pod.waiting_container and pod.waiting_reason)
    return next(((Reason.CONTAINER_ENDED, _waits(pod)) for pod in broken), None)


def _stuck(pods: list[PodView], reasons: frozenset[str], reason: Reason) -> tuple[Reason, str] | None:
    return next(((reason, _waits(pod)) for pod in pods if pod.waiting_reason in reasons), None)


def _waits(pod: PodView) -> str:
    which = f"container {pod.waiting_container} of " if pod.waiting_container else ""
    return f"{which}{listed([pod])} waits: {pod.waiting_reason}: {pod.waiting_message}"


def cannot_be_asked(draft: Draft, intent: Intent, pods: Iterable[PodView]) -> list[PodView]:
    """The pods whose request to leave was refused for so long that they are deleted instead."""
    if draft.now < patience_ends(intent, draft.now):
        return []
    return [pod for pod in pods if refused_change(draft, pod.name)]


def patience_ends(intent: Intent, otherwise: datetime) -> datetime:
    """Until when refused requests are repeated: it counts from the decision that members have to leave."""
    return later(asked_at(intent) or otherwise, REFUSED_SECONDS)


def await_refused(draft: Draft, pods: Iterable[PodView], what: str) -> Draft:
    """Wait for refused changes of these members, and name the refusal; unchanged if there is none."""
    refusals = [(pod, refusal) for pod in pods if (refusal := refused_change(draft, pod.name))]
    if not refusals:
        return draft
    words = f"{listed(pod for pod, _ in refusals)} cannot be {what}: {refusals[0][1].message}"
    return draft.wait(Reason.PATCH_REFUSED, words)


def await_deleted(draft: Draft, pods: list[PodView]) -> Draft:
    """Wait for deleted members. If one outlives its grace, only a person can say whether it is dead.

    On a node that is not Ready no kubelet could say that it has ended: that is the node's wait, and a member's no more.
    """
    ends = [end for pod in pods if (end := stuck_at(pod))]
    for end in ends:
        draft = draft.wake(end)
    late, dark = past_their_grace(draft, pods), {one.node for one in draft.status.unready}
    if stuck := [pod for pod in late if pod.node not in dark]:
        return draft.wait(Reason.MEMBER_STUCK, look_after(draft, stuck))
    if late and (hidden := why_ready_no_more(draft, late)):
        return draft.wait(*hidden)
    refusals = {one.pod: one for one in refused_deletions(draft)}
    if kept := [pod for pod in pods if pod.name in refusals]:
        words = f"their time is over, and {listed(kept)} cannot be deleted: {refusals[kept[0].name].message}"
        return draft.wait(Reason.DELETION_REFUSED, words)
    limit = "no time limit: known once the API server has taken the deletion"
    until = f"until {clock(max(ends))}" if ends else limit
    return draft.wait(Reason.DELETING_MEMBERS, f"deleted, for their time is over: {listed(pods)}; {until}")


def await_leavers(draft: Draft, previous: PreviousRun) -> Draft:
    """Wait for leavers of the previous run: no further run begins while one of them may still train."""
    pods, deadline = leavers(draft), previous.intent.deadline or draft.now
    if draft.now >= deadline:
        return await_deleted(draft, pods)
    message = f"waiting for the exit save of {listed(pods)}, of run {previous.run}, until {clock(deadline)}"
    return draft.wait(Reason.EXIT_SAVE, message, deadline)


def await_rescue_commits(draft: Draft) -> Draft:
    """Wait for deleted pods of no run that had a rank: their agents may commit the state that they leave.

    A run of new members alone has nothing else to begin with. The wait ends with the pod's grace.
    """
    last = [pod for pod in own(draft.snapshot).values() if _may_commit(draft, pod)]
    if not last:
        return draft
    until = max(pod.deletion_deadline or draft.now for pod in last)
    words = f"waiting for {listed(last)} to end until {clock(until)}: what they have may be in no commit yet"
    return draft.wait(Reason.EXIT_SAVE, words, until)


def _may_commit(draft: Draft, pod: PodView) -> bool:
    end = pod.deletion_deadline
    if pod.name in draft.next_members or terminated(pod) or node_lost(draft, pod):
        return False
    return end is not None and draft.now < end and run_named(pod.assignment) > 0


def stuck_at(pod: PodView) -> datetime | None:
    """From when on a deleted pod that still exists is stuck; None for one that is not deleted."""
    return later(pod.deletion_deadline, STUCK_SECONDS) if pod.deletion_deadline else None


def past_their_grace(draft: Draft, pods: Iterable[PodView]) -> list[PodView]:
    """The pods that still exist although their grace is long over."""
    return [pod for pod in pods if (end := stuck_at(pod)) and end <= draft.now]


def look_after(draft: Draft, stuck: list[PodView]) -> str:
    """What a person has to do, with commands for the first pod: what holds one most often holds all."""
    first, namespace = stuck[0], draft.snapshot.namespace
    look = f"kubectl describe pod -n {namespace} {first.name}; kubectl describe node {first.node or 'NODE'}"
    force = f"kubectl delete pod -n {namespace} {first.name} --grace-period=0 --force"
    return (
        f"deleted, and not ended {STUCK_SECONDS} s after the grace was over: {listed(stuck)}; it may still train, so "
        f"no run follows: look with {look}; only once its process is known to be dead: {force}"
    )
