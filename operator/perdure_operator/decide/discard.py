"""Deletes pods that belong to no run any more: of a closed run, dropped standbys, members on dead nodes.

A member that may still run loses its role first: it counts for nothing, neither for the budget nor for the job.
"""

from __future__ import annotations

from perdure.contract import Role
from perdure_operator.decide.assignments import shutdown
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import ended, over, own
from perdure_operator.state.decision import Assign, DeletePod
from perdure_operator.state.snapshot import PodView


def discard(draft: Draft) -> Draft:
    """Pods of the current run stay until it is closed, so that a failed job keeps its logs."""
    for pod in own(draft.snapshot).values():
        written_off = ended(draft.status, pod.name) is not None and not over(pod)
        if pod.gone or (pod.name in draft.status.members and not written_off):
            continue
        if pod.role == Role.MEMBER and not over(pod):
            draft = draft.act(_strip(draft, pod))
        if not pod.deleting:
            draft = draft.act(DeletePod(name=pod.name, uid=pod.uid)).because(f"{pod.name} belongs to no run any more")
    return draft


def _strip(draft: Draft, pod: PodView) -> Assign:
    intent = draft.status.intent
    run, lost = (intent.run, intent.lost) if intent else (draft.status.run, draft.status.lost)
    return Assign(name=pod.name, uid=pod.uid, role=Role.FORMER, old=pod.assignment, new=shutdown(run, lost))
