"""Whether a pod can be a member of a run: it is warm, it has not ended, and it may stay on its node. Questions only.

A NoSchedule taint keeps replacements off a node that is going away. Where none keeps this pod off (the node object is
being deleted without one, or the template tolerates it) a standby that cannot train stays there as a `former` until the
run is planned, and its replacements are created with an anti-affinity to formers of their job. A `hostname NotIn` would
do the same, but Karpenter makes no node for a pod that has one.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from perdure.wire import Role, Standby, write_assignment
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import (
    made_from_another,
    node_lost,
    node_of,
    own,
    refused,
    refused_change,
    stands_still,
    terminated,
    waited_enough,
)
from perdure_operator.decide.outcomes import end_of, outside_cause
from perdure_operator.decide.signals import CORDON, Signal, asked_for, avoided, signal_of_node, tolerates
from perdure_operator.state.decision import Assign
from perdure_operator.state.snapshot import NodeView, PodView, RefusalKind

IDLE_GRACE_SECONDS: Final = 5
HELD_MORE: Final = 2
"""If no member has to leave, at most this many more nodes are held than members are to leave."""

_STANDBY: Final = write_assignment(Standby())
_KEEPS_OFF: Final = frozenset({"NoSchedule", "NoExecute"})
_NOT_STARTED: Final = frozenset({"StartError", "ContainerCannotRun", "CreateContainerError", "RunContainerError"})
_NO_AGENT: Final = re.compile(r'"(?:[^"\s]*/)?perdure"|\bperdure: (?:not found|no such file)')
_NOT_FOUND: Final = re.compile(r"not found|no such file", re.IGNORECASE)


def idle(pod: PodView) -> bool:
    """Whether the pod never had a rank: it has nothing to save."""
    return pod.assignment == _STANDBY


def grace_of(pod: PodView) -> int | None:
    """The grace for a pod that is deleted: its own (None), or a short one if it is idle and so has nothing to save."""
    return IDLE_GRACE_SECONDS if idle(pod) else None


def can_train(draft: Draft, pod: PodView) -> bool:
    """Whether a run that takes over from one that trains may be planned with this pod: it has to be warm."""
    return pod.ready and can_start(draft, pod)


def can_start(draft: Draft, pod: PodView) -> bool:
    """Whether a run of new members alone may be planned with this pod, warm or not.

    No member trains that would wait for it, and its agent starts the trainer as soon as it is warm: that is sooner than
    by way of a probe, the kubelet, the operator and the kubelet again.
    """
    well = pod.phase == "Running" and bool(pod.ip) and not pod.deleting and not terminated(pod)
    return well and not _keeps_from_training(draft, pod)


def unusable_node(draft: Draft, pod: PodView) -> str:
    """Why no member can train on the pod's node, "" if one can."""
    if node_lost(draft, pod):
        return f"is on node {pod.node}, which is unreachable"
    signal = _keeps_from_training(draft, pod)
    return signal.cause if signal else ""


def node_to_leave(draft: Draft, pod: PodView) -> str:
    """Why no pod may stay on this pod's node, even without training; "" if one may."""
    signal = _keeps_from_training(draft, pod)
    return "" if signal and signal.if_room and not node_lost(draft, pod) else unusable_node(draft, pod)


def _keeps_from_training(draft: Draft, pod: PodView) -> Signal | None:
    """The signal that keeps the pod from training where it is, None if there is none.

    A node to leave only if there is room elsewhere is better than none, and good enough for a member that trains there.

    It is also good enough if no member trains, or none found room elsewhere in time.
    """
    signal = signal_of_node(draft.snapshot, node_of(draft.snapshot, pod), pod) or _avoided(draft, pod)
    if signal is None or not signal.if_room:
        return signal
    trains = draft.current and any(member.name == pod.name for member in draft.current.plan.members)
    return None if trains or stands_still(draft) or waited_enough(draft) else signal


def _avoided(draft: Draft, pod: PodView) -> Signal | None:
    """The signal to avoid the pod's node; ignored while members have to leave in time, as otherwise all would leave."""
    intent = draft.intent
    must_move = intent and intent.prepare and intent.ready_by
    return None if must_move else avoided(draft.snapshot, node_of(draft.snapshot, pod), pod)


def why_unfit(draft: Draft, name: str, pod: PodView | None) -> str:
    """Why this name cannot be a member of the next run, "" if it can."""
    return why_useless(draft, name, pod) or (unusable_node(draft, pod) if pod and not terminated(pod) else "")


def why_useless(draft: Draft, name: str, pod: PodView | None) -> str:
    """Why this name can be in no run, "" if it can. The node does not count: a run without progress may use nodes that
    need not be left."""
    if pod is None:
        return _why_burnt(draft, name)
    if pod.gone:
        cause = outside_cause(pod)
        return f"was deleted: {cause}" if cause else "was deleted"
    if pod.deleting:
        return "is being deleted"
    if made_from_another(draft, pod):
        return "was made from an older template"
    if not terminated(pod):
        return node_to_leave(draft, pod)
    if agent_missing(pod):
        return ""  # a replacement would have the same image: the job waits for a correction
    end = end_of(pod)
    where = f" in init container {pod.init_failed}" if pod.init_failed else ""
    return f"ended{where}: {end.error_name or end.outcome}"


def _why_burnt(draft: Draft, name: str) -> str:
    """Why a name without a pod cannot be used, "" if it can: it must never have been used."""
    snapshot = draft.snapshot
    if any(one.pod == name and one.kind is RefusalKind.NAME_TAKEN for one in snapshot.refusals):
        return "has the name of a pod that is not this job's"
    if name in snapshot.created:
        return "was created, or may have been, and is not there"
    return "" if name in snapshot.allotted else "may have been created by an operator before this one, and is not there"


def agent_missing(pod: PodView) -> bool:
    """Whether container 0 could not start because its image has no `perdure`."""
    if pod.waiting_container or pod.init_failed:
        return False
    ended = pod.terminated
    reason, message = (ended.reason, ended.message) if ended else (pod.waiting_reason, pod.waiting_message)
    return reason in _NOT_STARTED and bool(_NO_AGENT.search(message)) and bool(_NOT_FOUND.search(message))


def how_far(draft: Draft, pod: PodView | None) -> int:
    """How far a standby is on its way to a rank: the higher, the sooner it trains."""
    if pod is None:
        return 0
    if can_train(draft, pod):
        return 4
    if can_start(draft, pod):
        return 3
    return 2 if pod.node else 1


def placeholders(draft: Draft) -> frozenset[str]:
    """Names of idle pods that keep replacements off their nodes, one for each node.

    A replacement that is refused, for example by a quota, needs their room more: then there are none.
    """
    spec, upcoming = draft.snapshot.spec, draft.status.next
    if upcoming is None or spec.suspend or draft.snapshot.deleting:
        return frozenset()
    if refused(draft, upcoming.members):
        return frozenset()
    spare = [pod for pod in own(draft.snapshot).values() if pod.name not in upcoming.members and _holds(draft, pod)]
    by_node: dict[str, str] = {}
    for pod in sorted(spare, key=lambda pod: (pod.role != Role.FORMER, pod.name)):
        by_node.setdefault(pod.node, pod.name)
    return frozenset(islice(by_node.values(), _most_held(draft)))


def _most_held(draft: Draft) -> int | None:
    """How many nodes to hold at most, None for any number.

    It matters if no member has to leave and the wait has no end: if every node showed the same signal, the job would in
    time hold all of them.
    """
    intent = draft.intent
    if intent is None or not intent.prepare or intent.ready_by or intent.grow_by:
        return None
    return len(intent.nodes) + HELD_MORE


def stays_apart(draft: Draft) -> bool:
    """Whether a new member has to keep off the nodes of formers, including pods that become one in this round."""
    made = any(isinstance(action, Assign) and action.role == Role.FORMER for action in draft.actions)
    return made or any(pod.role == Role.FORMER and not terminated(pod) for pod in own(draft.snapshot).values())


def _holds(draft: Draft, pod: PodView) -> bool:
    """Whether this idle pod is needed to keep replacements off its node.

    It is not needed on a node that is not Ready, which Kubernetes taints, or on one that is gone, which takes no pods.
    """
    node = node_of(draft.snapshot, pod)
    if terminated(pod) or pod.deleting or not idle(pod) or node is None or not (node.exists and node.ready):
        return False
    if asked_for(draft.snapshot, pod):
        return False
    made = pod.role == Role.FORMER or refused_change(draft, pod.name) is None
    signal = (signal_of_node(draft.snapshot, node, pod) or _avoided(draft, pod)) if made else None
    return signal is not None and signal.node != "" and not _keeps_off(node, pod)


def _keeps_off(node: NodeView, pod: PodView) -> bool:
    taints = (*node.taints, CORDON) if node.cordoned else node.taints
    return any(taint.effect in _KEEPS_OFF and not tolerates(pod, taint) for taint in taints)
