"""Why a member that has to end is still there: nobody lets it be told, or its node does not end it.

Nothing is ever deleted by force: a container that nobody has seen end may still train.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Intent, PreviousRun
from perdure_operator.decide.assignments import run_told
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import leavers, listed, node_lost, own, refused_change, terminated
from perdure_operator.state.snapshot import PodView

LATE_MARGIN_SECONDS: Final = 30
"""What members get on top of their time to save before they are deleted."""
REFUSED_SECONDS: Final = 10
"""So long a refused request to leave is repeated; then the pod is deleted, for SIGTERM asks it as well."""
STUCK_SECONDS: Final = 30
"""A kubelet kills at the end of the grace and tells within seconds: a pod that is there after so long is stuck."""


def cannot_be_asked(draft: Draft, intent: Intent, pods: Iterable[PodView]) -> list[PodView]:
    """Those that admission has not let be told for so long that they are to be deleted instead."""
    if draft.now < patience_ends(intent, draft.now):
        return []
    return [pod for pod in pods if refused_change(draft, pod.name)]


def patience_ends(intent: Intent, otherwise: datetime) -> datetime:
    """Until when refused requests are repeated: it counts from the decision that members have to leave."""
    return later(asked_at(intent) or otherwise, REFUSED_SECONDS)


def asked_at(intent: Intent) -> datetime | None:
    """When members were first asked to leave, None where they were not."""
    return later(intent.deadline, -intent.seconds - LATE_MARGIN_SECONDS) if intent.deadline else None


def await_told(draft: Draft, pods: Iterable[PodView], what: str) -> Draft:
    """Name who refuses to let these members be told; nothing where nobody does."""
    refusals = [(pod, refusal) for pod in pods if (refusal := refused_change(draft, pod.name))]
    if not refusals:
        return draft
    words = f"{listed(pod for pod, _ in refusals)} cannot be told {what}: {refusals[0][1].message}"
    return draft.wait(Reason.PATCH_REFUSED, words)


def await_deleted(draft: Draft, pods: list[PodView]) -> Draft:
    """Wait for deleted members; of one that outlives its grace only a person can say whether it is dead."""
    ends = [end for pod in pods if (end := stuck_at(pod))]
    for end in ends:
        draft = draft.wake(end)
    if stuck := outlived(draft, pods):
        return draft.wait(Reason.MEMBER_STUCK, look_after(draft, stuck))
    limit = "no time limit: known once the API server has taken the deletion"
    until = f"until {clock(max(ends))}" if ends else limit
    return draft.wait(Reason.DELETING_MEMBERS, f"deleted, for their time is over: {listed(pods)}; {until}")


def await_leavers(draft: Draft, previous: PreviousRun) -> Draft:
    """Wait for those who do not go on with the run that is on: a run whose leaver may still train has no successor."""
    pods, deadline = leavers(draft), previous.intent.deadline or draft.now
    if draft.now >= deadline:
        return await_deleted(draft, pods)
    message = f"waiting for the exit save of {listed(pods)}, of run {previous.run}, until {clock(deadline)}"
    return draft.wait(Reason.EXIT_SAVE, message, deadline)


def await_rescue_commits(draft: Draft) -> Draft:
    """Wait for deleted pods of no run that were told a rank: of what they may have left an agent makes a commit.

    A run of new members alone has nothing else to begin with. Nobody waits longer than the pod's grace.
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
    return end is not None and draft.now < end and run_told(pod.assignment) > 0


def stuck_at(pod: PodView) -> datetime | None:
    """When a deleted pod is stuck, if it is there still; None for one that is not deleted."""
    return later(pod.deletion_deadline, STUCK_SECONDS) if pod.deletion_deadline else None


def outlived(draft: Draft, pods: Iterable[PodView]) -> list[PodView]:
    """Those that are there although their grace is long over."""
    return [pod for pod in pods if (end := stuck_at(pod)) and end <= draft.now]


def look_after(draft: Draft, stuck: list[PodView]) -> str:
    """What a person has to do; the first one's commands, for what holds one most often holds all."""
    first, namespace = stuck[0], draft.snapshot.namespace
    look = f"kubectl describe pod -n {namespace} {first.name}; kubectl describe node {first.node or 'NODE'}"
    force = f"kubectl delete pod -n {namespace} {first.name} --grace-period=0 --force"
    return (
        f"deleted, and not ended {STUCK_SECONDS} s after the grace was over: {listed(stuck)}; it may still train, so "
        f"no run follows: look with {look}; only once its process is known to be dead: {force}"
    )
