"""What living pods tell autoscalers of nodes follows the spec and their role, whoever changes any of it."""

from __future__ import annotations

from perdure_operator.api.marks import marked, marks
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import own, terminated
from perdure_operator.state.decision import Assign, DeletePod, Mark


def mark(draft: Draft) -> Draft:
    """Every pod that goes on living has the marks of the role that it has after this round."""
    mode = draft.snapshot.spec.disruption.autoscaler
    roles = {action.uid: action.role for action in draft.actions if isinstance(action, Assign)}
    going = {action.uid for action in draft.actions if isinstance(action, DeletePod)}
    for pod in own(draft.snapshot).values():
        if terminated(pod) or pod.deleting or pod.uid in going or not pod.assignment:
            continue
        wanted = marks(mode, roles.get(pod.uid, pod.role))
        if wanted != pod.marks and (wanted or marked(pod.marks)):
            why = f"disruption.autoscaler is {mode.value}" if mode else "disruption.autoscaler is not set"
            draft = draft.act(why, Mark(name=pod.name, uid=pod.uid, old=pod.marks, new=wanted))
    return draft
