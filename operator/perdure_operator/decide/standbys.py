"""Names, replaces and creates the members of the next run.

A name is used once: a member that cannot be used is replaced by one with a new number, never revived.
"""

from __future__ import annotations

from typing import Final

from perdure.contract import ExitKind
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import MemberOutcome
from perdure_operator.decide.blame import Verdict, charge
from perdure_operator.decide.draft import Draft, finished_at
from perdure_operator.decide.endings import ending_of
from perdure_operator.decide.facts import base_name, dead, joined, member_number, node_of, over, own
from perdure_operator.decide.signals import CORDON, leaving, tolerates
from perdure_operator.decide.startup_problems import agent_missing
from perdure_operator.state.decision import CreatePod
from perdure_operator.state.snapshot import PodView

NAME_TAKEN: Final = "NameTaken"
"""A refusal after which the name is burnt: somebody else's pod has it."""

_COSTS_NOTHING: Final = frozenset({ExitKind.CHECKPOINTED, ExitKind.STOPPED, ExitKind.EXIT_TIMEOUT})


def replace_unfit(draft: Draft) -> Draft:
    """Before a run is planned, members that cannot train are dropped; those that ended by themselves cost a failure."""
    if draft.status.plan is not None or finished_at(draft.status):
        return draft
    pods = own(draft.snapshot)
    unfit = {name: why for name in draft.status.members if (why := _unfit(draft, name, pods.get(name)))}
    if not unfit:
        return draft
    dropped = [pods[name] for name in unfit if name in pods]
    failed = [ending_of(pod) for pod in dropped if _ended_by_itself(draft, pod)]
    words = joined([f"{name} {why}" for name, why in unfit.items()])
    draft = draft.tell(Reason.MEMBER_REPLACED, f"new members take the place of those that cannot train: {words}")
    draft = draft.update(members=tuple(name for name in draft.status.members if name not in unfit))
    return charge(draft, _judge(failed)) if failed else draft


def allocate(draft: Draft) -> Draft:
    """Numbers go to status before any pod exists, and never come back."""
    status, wanted = draft.status, draft.snapshot.spec.replicas
    if status.plan is not None or draft.waiting:
        return draft
    missing = range(wanted - len(status.members))
    first = max([status.next_member, *(member_number(pod.name) + 1 for pod in own(draft.snapshot).values())])
    new = tuple(f"{base_name(draft.snapshot)}-{first + index}" for index in missing)
    return draft.update(
        members=(*status.members, *new)[:wanted],
        next_member=first + len(new),
        start_time=status.start_time or draft.now,
    )


def create(draft: Draft) -> Draft:
    """A name without a pod here is new or was refused: what vanished has been replaced before."""
    if draft.status.plan is not None or draft.waiting:
        return draft
    pods = own(draft.snapshot)
    missing = [name for name in draft.status.members if name not in pods]
    draft = draft.act(*(CreatePod(name=name) for name in missing))
    return draft.because(f"creating {', '.join(missing)}") if missing else draft


def _unfit(draft: Draft, name: str, pod: PodView | None) -> str:
    """Why this name cannot be a member of the next run, "" where it can."""
    if pod is None:
        return "" if _was_refused(draft, name) else "was never created or is gone"
    if pod.gone:
        return "is gone"
    if pod.deleting:
        return "is being deleted"
    if pod.template_hash not in ("", draft.snapshot.template_hash):
        return "was made from an older template"
    if over(pod):
        return "" if agent_missing(pod) else f"ended: {ending_of(pod).error_name or ending_of(pod).outcome}"
    if dead(draft, pod):
        return f"is on node {pod.node}, which is unreachable"
    return "" if tolerates(pod, CORDON) else leaving(node_of(draft.snapshot, pod), pod)


def _was_refused(draft: Draft, name: str) -> bool:
    """Whether this process tried to create the allocated pods, in order, and was refused.

    Creation stops at the first refusal, so the names behind it have not been tried; those before it are there.
    Without a refusal somebody may have created the pod, and somebody deleted it: the name counts as used.
    """
    refusals = {refusal.pod: refusal for refusal in draft.snapshot.refusals}
    if name in refusals:
        return refusals[name].reason != NAME_TAKEN
    return any(other in refusals or base_name(draft.snapshot) in refusals for other in draft.status.members)


def _ended_by_itself(draft: Draft, pod: PodView) -> bool:
    if pod.deleting or not over(pod) or agent_missing(pod) or (pod.gone and pod.terminated is None):
        return False
    on_its_way = leaving(node_of(draft.snapshot, pod), pod)
    return not on_its_way and ending_of(pod).outcome not in _COSTS_NOTHING


def _judge(failed: list[MemberOutcome]) -> Verdict:
    """However many ended, it is one failure: of the code if one says so."""
    code = [ending for ending in failed if not ending.infrastructure and ending.outcome == ExitKind.FAILED]
    if code:
        return Verdict(Reason.CODE_FAILURE, code[0])
    return Verdict(Reason.INFRASTRUCTURE_FAILURE, failed[0])
