"""Plans a run once all its members are Ready, and tells each member its ranks until its pod shows them."""

from __future__ import annotations

from typing import Final

from perdure.contract import WAIT_MARGIN_SECONDS, Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Assigned, RunPlan
from perdure_operator.decide.assignments import train
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import ended, listed, next_run, node_of, over, own
from perdure_operator.decide.signals import leaving
from perdure_operator.decide.startup_problems import not_ready, refused
from perdure_operator.state.decision import Assign
from perdure_operator.state.snapshot import PodView

FIRST_PORT: Final = 29500
PORTS: Final = 100
"""Two runs in a row never use the same port: the older one may still hold it."""


def promote(draft: Draft) -> Draft:
    """The plan is written once and never edited."""
    status = draft.status
    if status.plan is not None or draft.waiting or not status.members:
        return draft
    pods = own(draft.snapshot)
    missing = tuple(name for name in status.members if name not in pods or not _can_train(draft, pods[name]))
    if missing or refused(draft, status.members):
        return not_ready(draft, missing or status.members)
    plan = _plan(draft, [pods[name] for name in status.members])
    draft = draft.update(plan=plan, intent=None, run=plan.run)
    return draft.tell(Reason.RUN_PLANNED, f"run {plan.run}: {len(plan.members)} members, {plan.world} processes")


def assign(draft: Draft) -> Draft:
    """Role label and assignment change in one patch; whatever a crash left out is made up for here."""
    plan, intent = draft.status.plan, draft.status.intent
    if plan is None or (intent and intent.leave):
        return draft
    pods, unready = own(draft.snapshot), []
    for member in plan.members:
        pod = pods.get(member.name)
        if pod is None or pod.deleting or ended(draft.status, member.name):
            continue
        text = train(plan, member)
        if pod.assignment != text or pod.role != Role.MEMBER:
            draft = draft.act(Assign(name=pod.name, uid=pod.uid, role=Role.MEMBER, old=pod.assignment, new=text))
            draft = draft.wait(Reason.ASSIGNING, f"telling the members of run {plan.run} their ranks")
        elif not pod.ready:
            unready.append(pod)
    return _await_ready(draft, unready) if unready else draft


def _await_ready(draft: Draft, pods: list[PodView]) -> Draft:
    """A member that trains stays Ready unless its node goes away."""
    limit = draft.snapshot.spec.failure.lost_node_seconds
    ends = [later(u.since, limit) for u in draft.status.unready if u.node in {pod.node for pod in pods}]
    if ends:
        message = f"waiting for the nodes of {listed(pods)} to be Ready again; given up at {clock(min(ends))}"
        return draft.wait(Reason.NODE_UNREACHABLE, message)
    return draft.wait(Reason.STARTING_MEMBERS, f"not Ready: {listed(pods)}; waiting for the kubelet's next report")


def _can_train(draft: Draft, pod: PodView) -> bool:
    well = pod.ready and bool(pod.ip) and not pod.deleting and not over(pod)
    return well and not leaving(node_of(draft.snapshot, pod), pod)


def _plan(draft: Draft, pods: list[PodView]) -> RunPlan:
    status, spec = draft.status, draft.snapshot.spec
    run = max(status.intent.run, status.opened + 1) if status.intent else next_run(status)
    processes, seconds = spec.processes_per_replica, spec.disruption.exit_timeout_seconds
    members = tuple(
        Assigned(name=pod.name, uid=pod.uid, rank=index * processes, node=pod.node) for index, pod in enumerate(pods)
    )
    host = f"[{pods[0].ip}]" if ":" in pods[0].ip else pods[0].ip
    return RunPlan(
        run=run,
        world=len(pods) * processes,
        master=f"{host}:{FIRST_PORT + run % PORTS}",
        cause=status.intent.cause if status.intent else "",
        seconds=seconds,
        wait=seconds + WAIT_MARGIN_SECONDS if status.run else 0,
        lost=status.lost,
        members=members,
        assigned_time=draft.now,
    )
