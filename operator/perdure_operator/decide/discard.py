"""Deletes pods that belong to no run any more: of a closed run, dropped standbys, members on dead nodes.

A member that may still run loses its role first: it counts for nothing, neither for the budget nor for the job.
"""

from __future__ import annotations

from perdure.contract import Role
from perdure_operator.decide.assignments import farewell
from perdure_operator.decide.facts import ended, over, own
from perdure_operator.decide.turn import Turn
from perdure_operator.state.plan import Assign, DeletePod
from perdure_operator.state.snapshot import PodView


def discard(turn: Turn) -> Turn:
    """Pods of the current run stay until it is closed, so that a failed job keeps its logs."""
    for pod in own(turn.snapshot).values():
        written_off = ended(turn.status, pod.name) is not None and not over(pod)
        if pod.gone or (pod.name in turn.status.members and not written_off):
            continue
        if pod.role == Role.MEMBER and not over(pod):
            turn = turn.act(_strip(turn, pod))
        if not pod.deleting:
            turn = turn.act(DeletePod(name=pod.name, uid=pod.uid)).because(f"{pod.name} belongs to no run any more")
    return turn


def _strip(turn: Turn, pod: PodView) -> Assign:
    intent = turn.status.intent
    run, lost = (intent.run, intent.lost) if intent else (turn.status.run, turn.status.lost)
    return Assign(name=pod.name, uid=pod.uid, role=Role.FORMER, old=pod.assignment, new=farewell(run, lost))
