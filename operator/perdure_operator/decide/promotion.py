"""Plans a run once all its members are Ready, and tells each member its ranks until its pod shows them."""

from __future__ import annotations

from typing import Final

from perdure.contract import WAIT_MARGIN_SECONDS, Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Assigned, RunPlan
from perdure_operator.decide.assignments import train
from perdure_operator.decide.facts import ended, listed, next_run, node_of, over, own
from perdure_operator.decide.signals import leaving
from perdure_operator.decide.troubles import not_ready, refused
from perdure_operator.decide.turn import Turn, clock, later
from perdure_operator.state.plan import Assign
from perdure_operator.state.snapshot import PodView

FIRST_PORT: Final = 29500
PORTS: Final = 100
"""Two runs in a row never use the same port: the older one may still hold it."""


def promote(turn: Turn) -> Turn:
    """The plan is written once and never edited."""
    status = turn.status
    if status.plan is not None or turn.waiting or not status.members:
        return turn
    pods = own(turn.snapshot)
    missing = tuple(name for name in status.members if name not in pods or not _can_train(turn, pods[name]))
    if missing or refused(turn, status.members):
        return not_ready(turn, missing or status.members)
    plan = _plan(turn, [pods[name] for name in status.members])
    turn = turn.update(plan=plan, intent=None, run=plan.run)
    return turn.tell(Reason.RUN_PLANNED, f"run {plan.run}: {len(plan.members)} members, {plan.world} processes")


def assign(turn: Turn) -> Turn:
    """Role label and assignment change in one patch; whatever a crash left out is made up for here."""
    plan, intent = turn.status.plan, turn.status.intent
    if plan is None or (intent and intent.leave):
        return turn
    pods, unready = own(turn.snapshot), []
    for member in plan.members:
        pod = pods.get(member.name)
        if pod is None or pod.deleting or ended(turn.status, member.name):
            continue
        text = train(plan, member)
        if pod.assignment != text or pod.role != Role.MEMBER:
            turn = turn.act(Assign(name=pod.name, uid=pod.uid, role=Role.MEMBER, old=pod.assignment, new=text))
            turn = turn.wait(Reason.ASSIGNING, f"telling the members of run {plan.run} their ranks")
        elif not pod.ready:
            unready.append(pod)
    return _await_ready(turn, unready) if unready else turn


def _await_ready(turn: Turn, pods: list[PodView]) -> Turn:
    """A member that trains stays Ready unless its node goes away."""
    limit = turn.snapshot.spec.failure.lost_node_seconds
    ends = [later(u.since, limit) for u in turn.status.unready if u.node in {pod.node for pod in pods}]
    if ends:
        message = f"waiting for the nodes of {listed(pods)} to be Ready again; given up at {clock(min(ends))}"
        return turn.wait(Reason.NODE_UNREACHABLE, message)
    return turn.wait(Reason.STARTING_MEMBERS, f"not Ready: {listed(pods)}; waiting for the kubelet's next report")


def _can_train(turn: Turn, pod: PodView) -> bool:
    well = pod.ready and bool(pod.ip) and not pod.deleting and not over(pod)
    return well and not leaving(node_of(turn.snapshot, pod), pod)


def _plan(turn: Turn, pods: list[PodView]) -> RunPlan:
    status, spec = turn.status, turn.snapshot.spec
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
        assigned_time=turn.now,
    )
