"""The pods of members: named, created, given ranks and marks, and deleted when they belong to no run or the job ends.

A name is used once: a member that cannot be used is replaced by one with a new number, never revived.
"""

from __future__ import annotations

from datetime import datetime

from perdure.wire import ExitKind, Role
from perdure_operator.api.marks import holds_node, marked, marks
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.decide.assignments import run_given, run_joined, run_named, shutdown, train
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import (
    ENDINGS_SECONDS,
    LEFTOVER_MARGIN_SECONDS,
    add_lost_run,
    fallback,
    joined,
    leftover_seconds,
    lingers,
    made_from_another,
    outcome_of,
    own,
    refused,
    refused_change,
    terminated,
)
from perdure_operator.decide.outcomes import outcome_in
from perdure_operator.decide.placement import grace_of, idle, placeholders, stays_apart
from perdure_operator.decide.standby_pool import give_back, new_names, soonest, take_spares
from perdure_operator.decide.succession import joiner_classes, succession
from perdure_operator.decide.waiting import await_refused, why_ready_no_more
from perdure_operator.state.decision import Assign, CreatePod, DeleteBudget, DeleteJob, DeletePod, Mark
from perdure_operator.state.snapshot import PodView


def allocate(draft: Draft) -> Draft:
    """Name the next run's members in status before any pod exists, and release at once those not wanted any more."""
    draft = _release_surplus(draft)
    if draft.blocked:
        return draft
    draft = take_spares(draft)
    wanted, had = succession(draft).joins, draft.next_members
    draft, new = new_names(draft, wanted - len(had))
    return draft.allot((*had, *new)).update(start_time=draft.status.start_time or draft.now)


def allocate_ahead(draft: Draft) -> Draft:
    """While members leave, start those that follow them, if only the leavers keep the next run from beginning."""
    if _kept_back(draft):
        return _release_surplus(draft).but(blocked=True)
    return allocate(draft) if draft.intent and draft.intent.ahead else _release_surplus(draft)


def _kept_back(draft: Draft) -> bool:
    """Whether no further member is made before all have left.

    The job then looks into a log that lost commits, tries again what was refused and failed the round, and paces what
    had to be replaced. Another template may have another root, to which another job with members may have a claim.
    """
    upcoming, pods = draft.status.next, own(draft.snapshot).values()
    if draft.status.log_lost or (upcoming and upcoming.replacements) or refused(draft, draft.next_members):
        return True
    return any(made_from_another(draft, pod) for pod in pods if pod.name not in draft.next_members)


def _release_surplus(draft: Draft) -> Draft:
    """Release the members beyond the wanted number; keep those that can train soonest."""
    wanted, had = succession(draft).joins, draft.next_members
    if len(had) <= wanted:
        return draft
    kept = soonest(draft, had, wanted)
    draft = draft.allot(tuple(name for name in had if name in kept))
    return give_back(draft, tuple(name for name in had if name not in kept))


def create(draft: Draft) -> Draft:
    """Create a pod for each name without one. Such a name was never used: members that vanished are replaced before."""
    if draft.blocked:
        return draft
    pods = own(draft.snapshot)
    members = [name for name in draft.next_members if name not in pods]
    spares = [name for name in draft.spares if name not in pods]
    apart, template = stays_apart(draft), fallback(draft)
    kept = template.name if template else ""
    classes, elastic = joiner_classes(draft, members), draft.snapshot.spec.elastic
    series = draft.status.next.replacements if draft.status.next else None
    hung = draft.status.failures.hung_nodes
    avoid = tuple(dict.fromkeys((*hung, *(series.nodes if series else ()))))
    pod = CreatePod(name="", apart=apart, kept=kept, avoid=avoid)
    new = (pod.model_copy(update={"name": name, "priority_class": classes.get(name, "")}) for name in members)
    draft = draft.act("a member of the next run", *new)
    theirs = (elastic.joiner_priority_class_name if elastic else None) or ""
    spare = CreatePod(name="", apart=apart, away_from_members=True, avoid=hung, kept=kept, priority_class=theirs)
    others = (spare.model_copy(update={"name": name}) for name in spares)
    draft = draft.act("a spare", *others)  # after the members: they come first where a quota is short
    return draft.because(f"creating {', '.join((*members, *spares))}") if members or spares else draft


def assign(draft: Draft) -> Draft:
    """Give members their ranks: role label and assignment change in one patch, also for those that a crash left out."""
    current, plan = draft.current, draft.newest_plan
    if current is None or plan is None or (current.intent and current.intent.leave):
        return draft
    pods, without_rank, unready = own(draft.snapshot), list[PodView](), list[PodView]()
    on = {member.uid for member in current.plan.members}
    for member in plan.members:
        pod = pods.get(member.name)
        if pod is None or pod.deleting or terminated(pod) or outcome_of(current, member.name):
            continue
        text = train(plan, member, current.saves if plan is current.plan else 0)
        if run_named(pod.assignment) > plan.run:  # of an attempt that failed: no member goes back
            text = pod.assignment
        if pod.assignment != text or pod.role != Role.MEMBER:
            assignment = Assign(name=pod.name, uid=pod.uid, role=Role.MEMBER, old=pod.assignment, new=text)
            knows = run_given(pod.assignment) == plan.run and pod.role == Role.MEMBER and current.saves
            draft = draft.act("asked to save and train on" if knows else f"its rank in run {plan.run}", assignment)
            without_rank += [] if knows else [pod]
        elif not pod.ready and pod.uid in on:  # an offered run does not wait until its newcomers are
            unready.append(pod)
    if without_rank:
        draft = await_refused(draft, without_rank, f"given its rank in run {plan.run}")
        draft = draft.wait(Reason.ASSIGNING, f"telling the members of run {plan.run} their ranks")
    if unready:
        return _await_ready(draft, unready)
    return draft if without_rank or current.outcomes or current.warm else draft.update_current(warm=True)


def _await_ready(draft: Draft, pods: list[PodView]) -> Draft:
    """Wait until these members are Ready. A member that trains most often stays Ready unless its node goes away."""
    if found := why_ready_no_more(draft, pods):
        return draft.wait(*found)
    # The same words for all of them, as before they have their ranks.
    plan = draft.newest_plan
    names = joined([member.name for member in plan.members]) if plan else ""
    words = f"all have their ranks and start as soon as they are warm; waiting until all are Ready: {names}"
    return draft.wait(Reason.STARTING_MEMBERS, words)


def relabel(draft: Draft) -> Draft:
    """Put back labels that were removed: without them a pod is neither watched nor protected."""
    kept = _names_in_use(draft)
    for pod in own(draft.snapshot).values():
        if pod.labelled or pod.gone or pod.deleting or pod.name not in kept:
            continue
        role, why = pod.role or Role.STANDBY, "a label that the operator had given it was removed"
        action = Assign(name=pod.name, uid=pod.uid, role=role, old=pod.assignment, new=pod.assignment)
        draft = draft.act(why, action).tell(Reason.LABEL_RESTORED, f"{pod.name}: {why}; it is restored", warning=True)
    return draft


def mark(draft: Draft) -> Draft:
    """Put the marks for node autoscalers on every pod that lives on: they follow the spec and the pod's new role."""
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


def discard(draft: Draft) -> Draft:
    """Delete pods that belong to no run any more: those of a closed run, dropped standbys, members on lost nodes.

    Pods of the current run stay until it is closed, so that a failed job keeps its logs. A member that may still run
    loses its role first: then neither the budget nor the job counts it. An idle pod that keeps its replacements off a
    node that is going away stays until their run is planned.
    """
    kept, holding = _names_in_use(draft), placeholders(draft)
    for pod in own(draft.snapshot).values():
        written_off = _has_ended(draft, pod) and not terminated(pod)
        if pod.gone or (pod.name in kept and not written_off):
            continue
        if pod.name in holding:
            draft = _keep_as_former(draft, pod)
            continue
        why = f"node {pod.node} was given up" if written_off else "it belongs to no run any more"
        if pod.role == Role.MEMBER and not terminated(pod):
            # The deletion depends on this patch. A refused one is tried again later, also on a pod that is deleting.
            refusal = refused_change(draft, pod.name)
            draft = draft.wake(refusal.until or draft.now) if refusal else draft.act(why, _strip(draft, pod))
        if not pod.deleting:
            draft = draft.act(why, DeletePod(name=pod.name, uid=pod.uid, grace=grace_of(pod)))
            draft = draft.because(f"{pod.name} is deleted: {why}")
    return draft


def _names_in_use(draft: Draft) -> set[str]:
    planned = {member.name for member in draft.current.plan.members} if draft.current else set()
    return planned | set(draft.next_members) | set(draft.spares) | _of_previous(draft)


def _of_previous(draft: Draft) -> set[str]:
    previous = draft.status.previous
    if previous is None:
        return set()
    return {member.name for member in previous.members} | {outcome.name for outcome in previous.outcomes}


def _has_ended(draft: Draft, pod: PodView) -> bool:
    runs = (draft.current, draft.status.previous)
    return any(outcome_of(run, pod.name) is not None for run in runs)


def _keep_as_former(draft: Draft, pod: PodView) -> Draft:
    if pod.role == Role.FORMER:
        return draft
    why = f"its replacements are kept off node {pod.node}"
    action = Assign(name=pod.name, uid=pod.uid, role=Role.FORMER, old=pod.assignment, new=pod.assignment)
    return draft.act(why, action).because(f"{pod.name} stays until the next run is planned: {why}")


def _strip(draft: Draft, pod: PodView) -> Assign:
    """Take the member's role. Its assignment names a newer run without it, as its own run cannot go on without it."""
    status, current = draft.status, draft.current
    lost = draft.intent.lost if draft.intent and draft.intent.leave else status.lost
    lost = add_lost_run(lost, current.run) if current and outcome_of(current, pod.name) else lost
    text = shutdown(max(status.run, status.next.run if status.next else 0), lost)
    return Assign(name=pod.name, uid=pod.uid, role=Role.FORMER, old=pod.assignment, new=text)


def keep_finished(draft: Draft) -> Draft:
    """End what still runs of a finished job, delete its budget when no pod needs it, and the job after its TTL.

    Ended pods stay for `kubectl logs`.
    """
    since = draft.status.finished_at
    if since is None:
        return draft
    alive = [pod for pod in own(draft.snapshot).values() if not terminated(pod)]
    draft = _end_protection(_end_sidecars(_end_leftovers(draft, since)), since, alive)
    draft = _unmark(draft, since)
    ttl = draft.snapshot.spec.ttl_seconds_after_finished
    if ttl is None or draft.snapshot.deleting:
        return draft
    if draft.now < later(since, ttl):
        return draft.wake(later(since, ttl))
    if any(not pod.deleting for pod in alive):
        return draft.because("ttlSecondsAfterFinished is over, and the job stays as long as a member's script runs")
    return draft.act("ttlSecondsAfterFinished is over", DeleteJob(uid=draft.snapshot.uid))


def _end_leftovers(draft: Draft, since: datetime) -> Draft:
    """Delete pods that still run: at once after a failure, later after completion, as their scripts may go on.

    One that is asked to leave is given as long as for an exit save. One that was to join a run that never began has
    no script that could go on: it would wait for the others.
    """
    patience, begun = leftover_seconds(draft), _begun_at_most(draft)
    left = [pod for pod in own(draft.snapshot).values() if not terminated(pod) and not pod.deleting]
    late = draft.now >= later(since, patience)
    asked = {one.pod for one in draft.snapshot.evictions if not one.withdrawn}
    due = asked if draft.now >= _protected_until(draft, since) else set[str]()
    ended = [pod for pod in left if late or idle(pod) or pod.uid in due or run_joined(pod.assignment) > begun]
    draft = draft.act(
        "the job is finished", *(DeletePod(name=pod.name, uid=pod.uid, grace=grace_of(pod)) for pod in ended)
    )
    if late or not left:
        return draft
    return draft.wake(later(since, ENDINGS_SECONDS)).wake(_protected_until(draft, since)).wake(later(since, patience))


def _begun_at_most(draft: Draft) -> int:
    """No later run of the finished job has begun. History may name one that took over without evidence, and none begins
    after the run that completed."""
    newest = max((one.run for one in draft.status.history), default=0)
    ends = [outcome_in(pod) for pod in own(draft.snapshot).values()]
    completed = [end.run for end in ends if end and end.outcome is ExitKind.COMPLETED]
    return min(newest, max(completed, default=newest))


def _protected_until(draft: Draft, since: datetime) -> datetime:
    return later(since, draft.snapshot.spec.disruption.exit_timeout_seconds + LEFTOVER_MARGIN_SECONDS)


def _end_protection(draft: Draft, since: datetime, alive: list[PodView]) -> Draft:
    """Delete the budget once no pod runs, or a drain has waited as long for a script as it waits for an exit save."""
    budget = draft.snapshot.budget
    if budget is None:
        return draft
    protected = draft.now < _protected_until(draft, since) or not draft.status.holds(ConditionType.COMPLETED)
    if alive and protected:
        return draft
    return draft.act("no member has to be protected", DeleteBudget(uid=budget.uid))


def _unmark(draft: Draft, since: datetime) -> Draft:
    """Once the budget goes, take off the marks by which pods that still run keep autoscalers from their nodes."""
    if draft.now < _protected_until(draft, since):
        return draft
    going = {action.uid for action in draft.actions if isinstance(action, DeletePod)}
    for pod in own(draft.snapshot).values():
        if holds_node(pod.marks) and not terminated(pod) and not pod.deleting and pod.uid not in going:
            why = "no member has to be protected"
            draft = draft.act(why, Mark(name=pod.name, uid=pod.uid, old=pod.marks, new={}))
    return draft


def _end_sidecars(draft: Draft) -> Draft:
    """Delete pods in which only sidecars run: one that is no init container would keep the pod's devices forever."""
    kept = [pod for pod in own(draft.snapshot).values() if lingers(pod) and not pod.deleting]
    return draft.act("only sidecars still run", *(DeletePod(name=pod.name, uid=pod.uid) for pod in kept))
