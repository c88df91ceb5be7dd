"""The members of the next run: named, created, and planned once all are up; and pods without a run, deleted.

A name is used once: a member that cannot be used is replaced by one with a new number, never revived. A run's plan is
written once and never edited.
"""

from __future__ import annotations

from perdure.wire import Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, Takeover
from perdure_operator.decide.assignments import run_given, run_told, shutdown, train
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import (
    add_lost_run,
    fallback,
    joined,
    made_from_another,
    outcome_of,
    own,
    refused,
    refused_change,
    terminated,
)
from perdure_operator.decide.history import begin
from perdure_operator.decide.placement import can_start, grace_of, placeholders, stays_apart
from perdure_operator.decide.plans import new_plan
from perdure_operator.decide.sizing import lasts, most_with
from perdure_operator.decide.standby_pool import give_back, new_names, soonest, take_spares
from perdure_operator.decide.succession import joiner_classes, succession
from perdure_operator.decide.waiting import await_leavers, await_rescue_commits, await_told, not_ready, what_hides
from perdure_operator.state.decision import Assign, CreatePod, DeletePod
from perdure_operator.state.snapshot import PodView


def allocate(draft: Draft) -> Draft:
    """Numbers go to status before any pod exists, and never come back; who is not wanted any more is let go at once."""
    draft = _let_go(draft)
    if draft.blocked:
        return draft
    draft = take_spares(draft)
    wanted, had = succession(draft).joins, draft.next_members
    draft, new = new_names(draft, wanted - len(had))
    return draft.allot((*had, *new)).update(start_time=draft.status.start_time or draft.now)


def allocate_ahead(draft: Draft) -> Draft:
    """While members leave, those who follow them start already, where nothing but these keeps them from it."""
    if _kept_back(draft):
        return _let_go(draft).but(blocked=True)
    return allocate(draft) if draft.intent and draft.intent.ahead else _let_go(draft)


def _kept_back(draft: Draft) -> bool:
    """Whether nobody else is made before all have left.

    A log that lost commits is looked into then; what was refused, and failed the round, is tried again then, and what
    had to be replaced is paced then. Another template may have another root, and whoever has members there a claim.
    """
    upcoming, pods = draft.status.next, own(draft.snapshot).values()
    if draft.status.log_lost or (upcoming and upcoming.replacements) or refused(draft, draft.next_members):
        return True
    return any(made_from_another(draft, pod) for pod in pods if pod.name not in draft.next_members)


def _let_go(draft: Draft) -> Draft:
    """Whoever can train soonest is kept."""
    wanted, had = succession(draft).joins, draft.next_members
    if len(had) <= wanted:
        return draft
    kept = soonest(draft, had, wanted)
    draft = draft.allot(tuple(name for name in had if name in kept))
    return give_back(draft, tuple(name for name in had if name not in kept))


def promote(draft: Draft) -> Draft:
    """Write the plan once every member is up; until then tell what the slowest one waits for."""
    members = draft.next_members
    if draft.blocked or not members:
        return draft
    pods = own(draft.snapshot)
    missing = tuple(name for name in members if name not in pods or not can_start(draft, pods[name]))
    if missing or refused(draft, members):
        return not_ready(draft, missing or members)
    if draft.status.previous:
        return await_leavers(draft, draft.status.previous)
    if (awaiting := await_rescue_commits(draft)) is not draft:
        return awaiting
    if _budget_is_of_another(draft, len(members)):
        return not_ready(draft, members)
    return _begin(draft, [pods[name] for name in members])


def promote_fewer(draft: Draft) -> Draft:
    """A job with `elastic` begins with those that are up, where they have been enough for a while, and grows."""
    pods = own(draft.snapshot)
    if draft.current or draft.blocked or draft.status.previous:
        return draft
    up = [name for name in draft.next_members if name in pods and can_start(draft, pods[name])]
    size = most_with(draft, len(up))
    if refused(draft, up[:size]) or _budget_is_of_another(draft, size):
        size = 0
    draft, due = lasts(draft, size)
    if not due:
        return draft
    if (awaiting := await_rescue_commits(draft)) is not draft:
        return awaiting
    others = tuple(name for name in draft.next_members if name not in up[:size])
    return _begin(give_back(draft.but(waiting=None), others), [pods[name] for name in up[:size]])


def _budget_is_of_another(draft: Draft, members: int) -> bool:
    """Whether the budget is still that of a smaller run whose end was seen in this very round; it is raised with it."""
    ended, budget = draft.snapshot.status.current is not None, draft.snapshot.budget
    return ended and budget is not None and not budget.altered and 0 <= budget.min_available < members


def _begin(draft: Draft, pods: list[PodView]) -> Draft:
    """The run of these pods, all of them new, is the one that is on."""
    plan = new_plan(draft, pods)
    row = draft.status.next.replacements if draft.status.next else None
    upcoming = draft.status.next
    begun = not draft.status.history or (upcoming and upcoming.disruption is Disruption.SUSPEND)
    how = Takeover.START if begun else Takeover.RECREATE
    draft = begin(draft, plan, None, how, upcoming.fallback_reason if upcoming else "")
    draft = draft.update(
        current=CurrentRun(run=plan.run, plan=plan, replacements=row),
        next=None,
        run=plan.run,
        lost=plan.lost,
        gang=None,
    )
    return draft.tell(Reason.RUN_PLANNED, f"run {plan.run}: {len(plan.members)} members, {plan.world} processes")


def create(draft: Draft) -> Draft:
    """A name without a pod here has never been used: what vanished has been replaced before."""
    if draft.blocked:
        return draft
    pods = own(draft.snapshot)
    members = [name for name in draft.next_members if name not in pods]
    spares = [name for name in draft.spares if name not in pods]
    apart, template = stays_apart(draft), fallback(draft)
    kept = template.name if template else ""
    classes, elastic = joiner_classes(draft, members), draft.snapshot.spec.elastic
    row = draft.status.next.replacements if draft.status.next else None
    pod = CreatePod(name="", apart=apart, kept=kept, avoid=row.nodes if row else ())
    new = (pod.model_copy(update={"name": name, "priority_class": classes.get(name, "")}) for name in members)
    draft = draft.act("a member of the next run", *new)
    theirs = (elastic.joiner_priority_class_name if elastic else None) or ""
    beside = (CreatePod(name=name, apart=apart, beside=True, kept=kept, priority_class=theirs) for name in spares)
    draft = draft.act("a spare", *beside)  # after the members: a quota has room for those first
    return draft.because(f"creating {', '.join((*members, *spares))}") if members or spares else draft


def assign(draft: Draft) -> Draft:
    """Role label and assignment change in one patch; whatever a crash left out is made up for here."""
    current, plan = draft.current, draft.newest_plan
    if current is None or plan is None or (current.intent and current.intent.leave):
        return draft
    pods, untold, unready = own(draft.snapshot), list[PodView](), list[PodView]()
    on = {member.uid for member in current.plan.members}
    for member in plan.members:
        pod = pods.get(member.name)
        if pod is None or pod.deleting or terminated(pod) or outcome_of(current, member.name):
            continue
        text = train(plan, member, current.saves if plan is current.plan else 0)
        if run_told(pod.assignment) > plan.run:  # of an attempt that did not come about: nobody goes back
            text = pod.assignment
        if pod.assignment != text or pod.role != Role.MEMBER:
            told = Assign(name=pod.name, uid=pod.uid, role=Role.MEMBER, old=pod.assignment, new=text)
            knows = run_given(pod.assignment) == plan.run and pod.role == Role.MEMBER and current.saves
            draft = draft.act("asked to save and train on" if knows else f"its rank in run {plan.run}", told)
            untold += [] if knows else [pod]
        elif not pod.ready and pod.uid in on:  # whether a newcomer is, the run that is offered to it does not wait for
            unready.append(pod)
    if untold:
        draft = await_told(draft, untold, f"its rank in run {plan.run}")
        draft = draft.wait(Reason.ASSIGNING, f"telling the members of run {plan.run} their ranks")
    if unready:
        return _await_ready(draft, unready)
    return draft if untold or current.outcomes or current.warm else draft.update_current(warm=True)


def relabel(draft: Draft) -> Draft:
    """Without its labels a pod is neither watched nor protected: whoever has removed one, it comes back."""
    kept = _names_in_use(draft)
    for pod in own(draft.snapshot).values():
        if pod.labelled or pod.gone or pod.deleting or pod.name not in kept:
            continue
        role, why = pod.role or Role.STANDBY, "somebody has removed a label that the operator has given it"
        action = Assign(name=pod.name, uid=pod.uid, role=role, old=pod.assignment, new=pod.assignment)
        draft = draft.act(why, action).tell(Reason.LABEL_RESTORED, f"{pod.name}: {why}; it is put back", warning=True)
    return draft


def discard(draft: Draft) -> Draft:
    """Delete pods that belong to no run any more: of a closed run, dropped standbys, members on lost nodes.

    Pods of the current run stay until it is closed, so that a failed job keeps its logs. A member that may still run
    loses its role first: it counts for nothing, neither for the budget nor for the job. An idle pod that keeps its
    replacements off a node that is going away stays until their run is planned.
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
            # The deletion rests on it: refused, it is left out until then, and tried again beside a pod that is going.
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
    """Its run cannot go on without it: what it is told names a run above, in which it has no part."""
    status, current = draft.status, draft.current
    lost = draft.intent.lost if draft.intent and draft.intent.leave else status.lost
    lost = add_lost_run(lost, current.run) if current and outcome_of(current, pod.name) else lost
    text = shutdown(max(status.run, status.next.run if status.next else 0), lost)
    return Assign(name=pod.name, uid=pod.uid, role=Role.FORMER, old=pod.assignment, new=text)


def _await_ready(draft: Draft, pods: list[PodView]) -> Draft:
    """A member that trains most often stays Ready unless its node goes away."""
    if found := what_hides(draft, pods):
        return draft.wait(*found)
    # The same words for each of them, as before they have their ranks.
    plan = draft.newest_plan
    names = joined([member.name for member in plan.members]) if plan else ""
    words = f"all have their ranks and start as soon as they are warm; waiting until all are Ready: {names}"
    return draft.wait(Reason.STARTING_MEMBERS, words)
