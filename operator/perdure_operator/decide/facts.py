"""What policies ask a snapshot: which pods are the job's, which are over, which node is under one, who is awaited.

Questions only: nothing here decides or changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure_operator.api import names
from perdure_operator.api.status import MemberOutcome, RunPlan, TrainingJobStatus
from perdure_operator.decide.draft import Draft, later
from perdure_operator.state.snapshot import NodeView, PodView, Snapshot

_NAMES_SHOWN: Final = 8


def own(snapshot: Snapshot) -> dict[str, PodView]:
    """The job's own pods by name; a living one hides a gone one."""
    mine = [pod for pod in snapshot.pods if pod.owner_uid == snapshot.uid]
    return {pod.name: pod for pod in sorted(mine, key=lambda pod: (not pod.gone, pod.name, pod.uid))}


def set_free(snapshot: Snapshot) -> bool:
    """Whether a member of the run has lost its owner, as in `kubectl delete --cascade=orphan`: one after the other."""
    members = {member.uid for member in snapshot.status.plan.members} if snapshot.status.plan else set()
    return any(pod.uid in members and not pod.owner_uid and not pod.gone for pod in snapshot.pods)


def over(pod: PodView) -> bool:
    """A member is over when container 0 has terminated, whatever its sidecars do."""
    return pod.gone or pod.terminated is not None or pod.phase in ("Succeeded", "Failed")


def node_of(snapshot: Snapshot, pod: PodView) -> NodeView | None:
    """The node under a pod; None where there is none or it is not known."""
    return next((node for node in snapshot.nodes if node.name == pod.node), None)


def dead(draft: Draft, pod: PodView) -> bool:
    """Whether the pod's node has been unreachable for lostNodeSeconds."""
    limit = draft.snapshot.spec.failure.lost_node_seconds
    return any(
        unready.node == pod.node and later(unready.since, limit) <= draft.now for unready in draft.status.unready
    )


def base_name(snapshot: Snapshot) -> str:
    """What the names of all members begin with."""
    return names.base(snapshot.name, snapshot.uid)


def member_number(name: str) -> int:
    """The number in a member's name, -1 where there is none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1


def next_run(status: TrainingJobStatus) -> int:
    """A run number above every one that was used or seen in the log."""
    return max(status.run, status.opened) + 1


def ended(status: TrainingJobStatus, name: str) -> MemberOutcome | None:
    """How this member of the current run ended, None while it has not."""
    return next((ending for ending in status.endings if ending.name == name), None)


def awaited(draft: Draft, plan: RunPlan) -> list[PodView]:
    """Pods of the run that are not over yet, in rank order."""
    pods = own(draft.snapshot)
    return [pods[m.name] for m in plan.members if m.name in pods and not ended(draft.status, m.name)]


def listed(pods: Iterable[PodView]) -> str:
    """Pods and their nodes for a message."""
    return joined([f"{pod.name} (node {pod.node})" if pod.node else pod.name for pod in pods])


def joined(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = [f"{len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN else []
    return ", ".join(names[:_NAMES_SHOWN] + more)
