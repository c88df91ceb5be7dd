"""Whether a standby can be a member of a next run, and which of two comes to it sooner. Questions only.

Called by the policies that replace standbys and by those that keep some beside the run.
"""

from __future__ import annotations

from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import made_from_another, terminated
from perdure_operator.decide.outcomes import end_of
from perdure_operator.decide.placement import can_start, can_train, node_to_leave, unusable_node
from perdure_operator.decide.startup_problems import agent_missing
from perdure_operator.state.snapshot import PodView, RefusalKind


def why_unfit(draft: Draft, name: str, pod: PodView | None) -> str:
    """Why this name cannot be a member of the next run, "" where it can."""
    return why_useless(draft, name, pod) or (unusable_node(draft, pod) if pod and not terminated(pod) else "")


def why_useless(draft: Draft, name: str, pod: PodView | None) -> str:
    """Why it can be a member of no run: where nobody trains a node that need not be left will do."""
    if pod is None:
        return _why_burnt(draft, name)
    if pod.gone:
        return "was evicted" if pod.evicted else "was deleted"
    if pod.deleting:
        return "is being deleted"
    if made_from_another(draft, pod):
        return "was made from an older template"
    if not terminated(pod):
        return node_to_leave(draft, pod)
    if agent_missing(pod):
        return ""  # a replacement would have the same image: it waits for a correction
    end = end_of(pod)
    where = f" in init container {pod.init_failed}" if pod.init_failed else ""
    return f"ended{where}: {end.error_name or end.outcome}"


def how_far(draft: Draft, pod: PodView | None) -> int:
    """How far a standby is on its way to a rank: the more, the sooner it trains."""
    if pod is None:
        return 0
    if can_train(draft, pod):
        return 4
    if can_start(draft, pod):
        return 3
    return 2 if pod.node else 1


def _why_burnt(draft: Draft, name: str) -> str:
    """A name without a pod is good only where nobody can have used it yet."""
    snapshot = draft.snapshot
    if any(one.pod == name and one.kind is RefusalKind.NAME_TAKEN for one in snapshot.refusals):
        return "has the name of a pod that is not this job's"
    if name in snapshot.created:
        return "was created, or may have been, and is not there"
    return "" if name in snapshot.allotted else "may have been created by an operator before this one, and is not there"
