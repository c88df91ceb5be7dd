"""Why a member that was created is not Ready, in the words of the scheduler, the kubelet or the API server."""

from __future__ import annotations

import re
from typing import Final

from perdure.contract import Role
from perdure_operator.api.reasons import Reason
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import joined, listed, own, refused, terminated
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
    ended = pod.terminated
    reason, message = (ended.reason, ended.message) if ended else (pod.waiting_reason, pod.waiting_message)
    return reason in _NOT_STARTED and bool(_NO_AGENT.search(message)) and bool(_NOT_FOUND.search(message))


def not_ready(draft: Draft, names: tuple[str, ...]) -> Draft:
    """Wait for these members with the most telling reason of all of them."""
    if found := what_keeps(draft, names):
        return draft.wait(*found)
    # The same words for each of them: a status that named who is missing still would be written once for each pod.
    members = draft.next_members
    whom = f"{members[0]} is Ready" if len(members) == 1 else f"all {len(members)} are Ready: {joined(list(members))}"
    return draft.wait(Reason.STARTING_MEMBERS, f"waiting until {whom}")


def what_keeps(draft: Draft, names: tuple[str, ...]) -> tuple[Reason, str] | None:
    """The most telling reason why one of these is not Ready; None where they only take their time."""
    pods = own(draft.snapshot)
    here = [pods[name] for name in names if name in pods]
    for found in (_agent(here), _refusal(draft, names), _image(here), _container(here)):
        if found:
            return found
    stuck = [pod for pod in here if pod.unschedulable]
    if not stuck:
        return None
    return Reason.UNSCHEDULABLE, f"no node for {listed(stuck)}: {stuck[0].unschedulable}{_held(draft)}"


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


def _stuck(pods: list[PodView], reasons: frozenset[str], reason: Reason) -> tuple[Reason, str] | None:
    for pod in pods:
        if pod.waiting_reason in reasons:
            return reason, f"{listed([pod])} waits: {pod.waiting_reason}: {pod.waiting_message}"
    return None
