"""Why a member that was created is not Ready, in the words of the scheduler, the kubelet or the API server."""

from __future__ import annotations

import re
from typing import Final

from perdure.wire import Role
from perdure_operator.api.reasons import Reason
from perdure_operator.decide.draft import Draft, clock
from perdure_operator.decide.facts import given_up_at, joined, listed, own, refused, terminated
from perdure_operator.decide.placement import unusable_node
from perdure_operator.state.snapshot import PodView, RefusalKind

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
_NOT_STARTED: Final = frozenset({"StartError", "ContainerCannotRun", "CreateContainerError", "RunContainerError"})
_NO_AGENT: Final = re.compile(r'"(?:[^"\s]*/)?perdure"|\bperdure: (?:not found|no such file)')
_NOT_FOUND: Final = re.compile(r"not found|no such file", re.IGNORECASE)


def agent_missing(pod: PodView) -> bool:
    """Whether container 0 could not start because its image has no `perdure`."""
    if pod.waiting_container or pod.init_failed:
        return False
    ended = pod.terminated
    reason, message = (ended.reason, ended.message) if ended else (pod.waiting_reason, pod.waiting_message)
    return reason in _NOT_STARTED and bool(_NO_AGENT.search(message)) and bool(_NOT_FOUND.search(message))


def not_ready(draft: Draft, names: tuple[str, ...]) -> Draft:
    """Wait for these members with the most telling reason of all of them."""
    if found := what_keeps(draft, names):
        return draft.wait(*found)
    # The same words for each of them: a status that named who is missing still would be written once for each pod.
    members = draft.next_members or names
    whom = f"{members[0]} is Ready" if len(members) == 1 else f"all {len(members)} are Ready: {joined(list(members))}"
    return draft.wait(Reason.STARTING_MEMBERS, f"waiting until {whom}{_initializing(draft)}")


def _initializing(draft: Draft) -> str:
    """The first init container that is at work: it may be for hours."""
    pods = own(draft.snapshot)
    at_work = (pods[name] for name in draft.next_members if name in pods and pods[name].initializing)
    first = next(at_work, None)
    return f"; init container {first.initializing} of {listed([first])} is at work" if first else ""


def what_keeps(draft: Draft, names: tuple[str, ...]) -> tuple[Reason, str] | None:
    """The most telling reason why one of these is not Ready; None where they only take their time."""
    pods = own(draft.snapshot)
    here = [pods[name] for name in names if name in pods]
    for found in (_agent(here), _refusal(draft, names), _image(here), _container(here), beside(here)):
        if found:
            return found
    stuck = [pod for pod in here if pod.unschedulable]
    if not stuck:
        return None
    return Reason.UNSCHEDULABLE, f"no node for {listed(stuck)}: {stuck[0].unschedulable}{_held(draft)}"


def what_hides(draft: Draft, pods: list[PodView]) -> tuple[Reason, str] | None:
    """Why members that were Ready are not any more; None where none of them was."""
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
    words = f"Ready before, and not now, though their nodes are: {listed(were_warm)}; nobody tells whether they train"
    held = beside(were_warm)
    return Reason.MEMBER_NOT_READY, f"{words}: {held[1]}" if held else words


def _known_warm(draft: Draft) -> set[str]:
    """Members, by uid, that were Ready before: all of a run that has begun, and who has gone over from one."""
    current = draft.current
    if current is None:
        return set()
    joins = current.plan.joins if current.plan.takes_over else None
    stayed = (member for member in current.plan.members if joins is not None and member.rank not in joins)
    return {member.uid for member in (current.plan.members if current.warm else stayed)}


def _held(draft: Draft) -> str:
    """The scheduler sees only that the job's own pods are on a node; why nobody may train there it cannot tell."""
    pods = sorted(own(draft.snapshot).values(), key=lambda pod: pod.node)
    formers = [pod for pod in pods if pod.role == Role.FORMER and not terminated(pod)]
    causes = [why for pod in formers if (why := unusable_node(draft, pod))]
    if not causes:
        return ""
    return f"; pods of this job keep it off nodes where nobody new trains: {joined(list(dict.fromkeys(causes)))}"


def _agent(pods: list[PodView]) -> tuple[Reason, str] | None:
    for pod in pods:
        if agent_missing(pod):
            words = pod.terminated.message if pod.terminated else pod.waiting_message
            message = f"the image of container 0 of {pod.name} has no perdure: "
            return Reason.AGENT_MISSING, message + words
    return None


def _refusal(draft: Draft, names: tuple[str, ...]) -> tuple[Reason, str] | None:
    refusal = refused(draft, names)
    if refusal is None:
        return None
    what = "changing" if refusal.kind is RefusalKind.PATCH_REFUSED else "creating"
    return refusal_reason(refusal.message), f"{what} {refusal.pod} was refused: {refusal.message}"


def refusal_reason(message: str) -> Reason:
    """A quota answers 403 as an admission webhook does: only the words tell them apart."""
    return Reason.QUOTA_EXCEEDED if "exceeded quota" in message else Reason.POD_REFUSED


def _image(pods: list[PodView]) -> tuple[Reason, str] | None:
    return _stuck(pods, _IMAGE, Reason.IMAGE_PULL_FAILED)


def _container(pods: list[PodView]) -> tuple[Reason, str] | None:
    return _stuck(pods, _CONTAINER, Reason.CONTAINER_NOT_CREATED)


def beside(pods: list[PodView]) -> tuple[Reason, str] | None:
    """A container beside container 0 that ends or crashes: its pod is not Ready."""
    beside = (pod for pod in pods if pod.waiting_container and pod.waiting_reason)
    return next(((Reason.CONTAINER_ENDED, _waits(pod)) for pod in beside), None)


def _stuck(pods: list[PodView], reasons: frozenset[str], reason: Reason) -> tuple[Reason, str] | None:
    return next(((reason, _waits(pod)) for pod in pods if pod.waiting_reason in reasons), None)


def _waits(pod: PodView) -> str:
    which = f"container {pod.waiting_container} of " if pod.waiting_container else ""
    return f"{which}{listed([pod])} waits: {pod.waiting_reason}: {pod.waiting_message}"
