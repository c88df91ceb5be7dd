"""The members of the next run: named, created, replaced where they cannot train, and planned once all are Ready.

A name is used once: a member that cannot be used is replaced by one with a new number, never revived. A run's plan is
written once and never edited.
"""

from __future__ import annotations

from typing import Final

from perdure.contract import WAIT_MARGIN_SECONDS, ExitKind, Role
from perdure_operator.api import names
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Assigned, CurrentRun, Floor, NextRun, RunPlan
from perdure_operator.decide.assignments import shutdown, train
from perdure_operator.decide.blame import charge, judge_standbys
from perdure_operator.decide.draft import Draft, clock, next_run
from perdure_operator.decide.facts import (
    given_up_at,
    joined,
    listed,
    node_lost,
    node_of,
    outcome_of,
    own,
    refused,
    terminated,
    wanted_size,
)
from perdure_operator.decide.outcomes import end_of
from perdure_operator.decide.signals import CORDON, signal_of_node, tolerates
from perdure_operator.decide.startup_problems import agent_missing, not_ready
from perdure_operator.state.decision import Assign, CreatePod, DeletePod
from perdure_operator.state.snapshot import PodView, RefusalKind

FIRST_PORT: Final = 29500
PORTS: Final = 100
"""Two runs in a row never use the same port: the older one may still hold it."""

_NO_NODE: Final = "no time limit: no node is Ready at all"
_COSTS_NOTHING: Final = frozenset({ExitKind.CHECKPOINTED, ExitKind.STOPPED, ExitKind.EXIT_TIMEOUT})


def replace_unfit(draft: Draft) -> Draft:
    """Before a run is planned, members that cannot train are dropped; those that ended by themselves cost a failure."""
    pods = own(draft.snapshot)
    unfit = {name: why for name in draft.next_members if (why := _unfit(draft, name, pods.get(name)))}
    if not unfit:
        return draft
    dropped = [pods[name] for name in unfit if name in pods]
    failed = [end_of(pod) for pod in dropped if _ended_by_itself(draft, pod)]
    words = joined([f"{name} {why}" for name, why in unfit.items()])
    draft = draft.tell(Reason.MEMBER_REPLACED, f"new members take the place of those that cannot train: {words}")
    draft = draft.allot(tuple(name for name in draft.next_members if name not in unfit))
    return charge(draft, judge_standbys(failed)) if failed else draft


def allocate(draft: Draft) -> Draft:
    """Numbers go to status before any pod exists, and never come back."""
    if draft.blocked:
        return draft
    snapshot, wanted, had = draft.snapshot, wanted_size(draft.snapshot).members, draft.next_members
    first = max([draft.status.next_member, *(names.member_number(name) + 1 for name in own(snapshot))])
    new = tuple(names.member(snapshot.name, snapshot.uid, first + index) for index in range(wanted - len(had)))
    draft = draft.allot((*had, *new)[:wanted])
    return draft.update(next_member=first + len(new), start_time=draft.status.start_time or draft.now)


def promote(draft: Draft) -> Draft:
    """Write the plan once every member is Ready; until then tell what the slowest one waits for."""
    members = draft.next_members
    if draft.blocked or not members:
        return draft
    pods = own(draft.snapshot)
    missing = tuple(name for name in members if name not in pods or not _can_train(draft, pods[name]))
    if missing or refused(draft, members):
        return not_ready(draft, missing or members)
    plan = _plan(draft, [pods[name] for name in members])
    draft = draft.update(current=CurrentRun(run=plan.run, plan=plan), next=None, run=plan.run)
    return draft.tell(Reason.RUN_PLANNED, f"run {plan.run}: {len(plan.members)} members, {plan.world} processes")


def create(draft: Draft) -> Draft:
    """A name without a pod here is new or was refused: what vanished has been replaced before."""
    if draft.current is not None or draft.blocked:
        return draft
    pods = own(draft.snapshot)
    missing = [name for name in draft.next_members if name not in pods]
    draft = draft.act("a member of the next run", *(CreatePod(name=name) for name in missing))
    return draft.because(f"creating {', '.join(missing)}") if missing else draft


def assign(draft: Draft) -> Draft:
    """Role label and assignment change in one patch; whatever a crash left out is made up for here."""
    current = draft.current
    if current is None or (current.intent and current.intent.leave):
        return draft
    pods, unready = own(draft.snapshot), []
    for member in current.plan.members:
        pod = pods.get(member.name)
        if pod is None or pod.deleting or outcome_of(current, member.name):
            continue
        text = train(current.plan, member)
        if pod.assignment != text or pod.role != Role.MEMBER:
            told = Assign(name=pod.name, uid=pod.uid, role=Role.MEMBER, old=pod.assignment, new=text)
            draft = draft.act(f"its rank in run {current.run}", told)
            draft = draft.wait(Reason.ASSIGNING, f"telling the members of run {current.run} their ranks")
        elif not pod.ready:
            unready.append(pod)
    return _await_ready(draft, unready) if unready else draft


def discard(draft: Draft) -> Draft:
    """Delete pods that belong to no run any more: of a closed run, dropped standbys, members on lost nodes.

    Pods of the current run stay until it is closed, so that a failed job keeps its logs. A member that may still run
    loses its role first: it counts for nothing, neither for the budget nor for the job.
    """
    kept = _names_in_use(draft)
    for pod in own(draft.snapshot).values():
        written_off = outcome_of(draft.current, pod.name) is not None and not terminated(pod)
        if pod.gone or (pod.name in kept and not written_off):
            continue
        why = f"node {pod.node} was given up" if written_off else "it belongs to no run any more"
        if pod.role == Role.MEMBER and not terminated(pod):
            draft = draft.act(why, _strip(draft, pod))
        if not pod.deleting:
            draft = draft.act(why, DeletePod(name=pod.name, uid=pod.uid)).because(f"{pod.name} is deleted: {why}")
    return draft


def _names_in_use(draft: Draft) -> set[str]:
    planned = {member.name for member in draft.current.plan.members} if draft.current else set()
    return planned | set(draft.next_members)


def _strip(draft: Draft, pod: PodView) -> Assign:
    lost = draft.intent.lost if draft.intent else draft.status.lost
    text = shutdown(draft.status.run, lost)
    return Assign(name=pod.name, uid=pod.uid, role=Role.FORMER, old=pod.assignment, new=text)


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
    if terminated(pod):
        return "" if agent_missing(pod) else f"ended: {end_of(pod).error_name or end_of(pod).outcome}"
    if node_lost(draft, pod):
        return f"is on node {pod.node}, which is unreachable"
    signal = signal_of_node(node_of(draft.snapshot, pod), pod)
    return signal.cause if signal and not tolerates(pod, CORDON) else ""


def _was_refused(draft: Draft, name: str) -> bool:
    """Whether this process tried to create the allocated pods, in order, and was refused.

    Creation stops at the first refusal, so the names behind it have not been tried; those before it are there.
    Without a refusal somebody may have created the pod, and somebody deleted it: the name counts as used.
    """
    refusals = {refusal.pod: refusal for refusal in draft.snapshot.refusals}
    if name in refusals:
        return refusals[name].kind is not RefusalKind.NAME_TAKEN
    budget = names.budget(draft.snapshot.name, draft.snapshot.uid)
    return any(other in refusals or budget in refusals for other in draft.next_members)


def _ended_by_itself(draft: Draft, pod: PodView) -> bool:
    if pod.deleting or not terminated(pod) or agent_missing(pod) or (pod.gone and pod.terminated is None):
        return False
    on_its_way = signal_of_node(node_of(draft.snapshot, pod), pod)
    return not on_its_way and end_of(pod).outcome not in _COSTS_NOTHING


def _can_train(draft: Draft, pod: PodView) -> bool:
    well = pod.ready and bool(pod.ip) and not pod.deleting and not terminated(pod)
    return well and not signal_of_node(node_of(draft.snapshot, pod), pod)


def _plan(draft: Draft, pods: list[PodView]) -> RunPlan:
    status, spec = draft.status, draft.snapshot.spec
    upcoming = status.next or NextRun(run=next_run(status))
    run = max(upcoming.run, status.opened + 1)
    processes, seconds = spec.processes_per_replica, spec.disruption.exit_timeout_seconds
    members = tuple(
        Assigned(name=pod.name, uid=pod.uid, rank=index * processes, node=pod.node) for index, pod in enumerate(pods)
    )
    host = f"[{pods[0].ip}]" if ":" in pods[0].ip else pods[0].ip
    return RunPlan(
        run=run,
        world=len(pods) * processes,
        master=f"{host}:{FIRST_PORT + run % PORTS}",
        cause=upcoming.cause,
        seconds=seconds,
        wait=seconds + WAIT_MARGIN_SECONDS if status.run else 0,
        lost=status.lost,
        floor=_floor(draft),
        members=members,
        assigned_time=draft.now,
    )


def _floor(draft: Draft) -> Floor | None:
    """None where nothing is known to be committed, or the user goes on from whatever is left."""
    status = draft.status
    if not status.commit_seq or status.step is None or draft.snapshot.spec.checkpoint.resume_anyway:
        return None
    return Floor(seq=status.commit_seq, step=status.step)


def _await_ready(draft: Draft, pods: list[PodView]) -> Draft:
    """A member that trains stays Ready unless its node goes away."""
    nodes = {pod.node for pod in pods}
    ends = [at for node in nodes if (at := given_up_at(draft, node))]
    if any(one.outage for one in draft.status.unready if one.node in nodes):
        until = f"given up one node after the other, the first at {clock(min(ends))}" if ends else _NO_NODE
        message = f"most nodes are not Ready: {listed(pods)} may well be training, and none is given up yet; {until}"
        return draft.wait(Reason.MASS_OUTAGE, message)
    if ends:
        message = f"waiting for the nodes of {listed(pods)} to be Ready again; given up at {clock(min(ends))}"
        return draft.wait(Reason.NODE_UNREACHABLE, message)
    return draft.wait(
        Reason.STARTING_MEMBERS, f"these members train and are not Ready, which their kubelets report: {listed(pods)}"
    )
