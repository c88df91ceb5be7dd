"""What status shows to people: conditions, phase, counts. The operator decides nothing from these."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure.wire import LABEL_JOB, LABEL_ROLE, Role
from perdure_operator.api import names
from perdure_operator.api.default_signals import VACATE_ANNOTATION
from perdure_operator.api.reasons import REASONS, ConditionType, Reason
from perdure_operator.api.status import CurrentRun, Disruption, Intent, Phase
from perdure_operator.decide.disruptions import describe_flapping
from perdure_operator.decide.draft import Draft, Waiting, clock, later
from perdure_operator.decide.facts import (
    joined,
    leftover_seconds,
    leftovers,
    own,
    refused_change,
    refused_deletions,
    terminated,
)
from perdure_operator.decide.failing_members import spares_the_run
from perdure_operator.decide.health import describe_health, describe_training, is_training, keep_progress
from perdure_operator.decide.history import failed_to_take_over
from perdure_operator.decide.placement import can_train, unusable_node
from perdure_operator.decide.sizing import grows_later, size_of, wanted_size, warn_of_priority, why_so_many
from perdure_operator.decide.standby_pool import paused_until
from perdure_operator.decide.succession import succession
from perdure_operator.decide.waiting import what_keeps
from perdure_operator.state.snapshot import Refusal

_WARNINGS: Final = frozenset(
    {
        Reason.TEMPLATE_INVALID,
        Reason.QUOTA_EXCEEDED,
        Reason.POD_REFUSED,
        Reason.SHARED_ROOT,
        Reason.IMAGE_PULL_FAILED,
        Reason.AGENT_MISSING,
        Reason.CONTAINER_NOT_CREATED,
        Reason.CONTAINER_ENDED,
        Reason.REPLACING_MEMBERS,
        Reason.PATCH_REFUSED,
        Reason.DELETION_REFUSED,
        Reason.MEMBER_STUCK,
        Reason.UNSCHEDULABLE,
    }
)
"""Reasons that a person should act on."""
_ENDING: Final = {
    Disruption.SIZE_CHANGE: Phase.RESCALING,
    Disruption.MEMBER_LOST: Phase.RECOVERING,
    Disruption.NODE_FAULT: Phase.RECOVERING,
    Disruption.RUN_LOST: Phase.RECOVERING,
}
"""The phase of a job whose run ends for this reason."""


def summarise(draft: Draft) -> Draft:
    """Describe what the policies have decided; runs last."""
    members = own(draft.snapshot)
    planned = [member.name for member in draft.newest_plan.members] if draft.newest_plan else []
    alive = sum(name in members and not terminated(members[name]) for name in planned)
    draft = keep_progress(draft)
    draft = _running(draft)
    draft = describe_health(draft)
    draft = _disrupted(draft)
    draft = _handing_over(draft)
    draft = _protected(draft)
    draft = _sized(draft)
    draft = _understood(draft)
    draft = _deletable(draft)
    draft = _suspended(draft)
    return draft.update(
        phase=_phase(draft),
        replicas=len(leftovers(draft)) if draft.status.finished_at else alive,
        selector=_selector(draft),
        observed_generation=draft.snapshot.generation,
    )


def _running(draft: Draft) -> Draft:
    status = draft.status
    if status.finished_at:
        reason = Reason.COMPLETED if status.holds(ConditionType.COMPLETED) else Reason.FAILED
        message = f"the job is finished{_going_on(draft, status.finished_at)}"
        return draft.condition(ConditionType.RUNNING, False, reason, message)
    if _all_assigned(draft) and status.current:
        why, message = _disruption(draft), _assigned(draft, status.current)
        if why is None:
            reason = Reason.TRAINING if is_training(draft) else Reason.ASSIGNED
            return draft.condition(ConditionType.RUNNING, True, reason, message)
        if status.current.outcomes and draft.standbys_wait and _offers(draft):
            message = f"{message}; {_awaited(draft.standbys_wait)}"  # the offered run may train, or no run
            return draft.condition(ConditionType.RUNNING, None, why[0], message)
        return draft.condition(ConditionType.RUNNING, True, why[0], f"{message}; {why[1]}")
    waiting = draft.waiting or Waiting(Reason.STARTING_MEMBERS, "waiting for the next look at the cluster")
    message = _awaited(waiting)
    if waiting.reason in _WARNINGS:
        draft = draft.warn_once(ConditionType.RUNNING, waiting.reason, message)
    return draft.condition(ConditionType.RUNNING, False, waiting.reason, message)


def _going_on(draft: Draft, since: datetime) -> str:
    """Which scripts go on after completion, as they hold their devices."""
    left = [pod.name for pod in leftovers(draft) if not pod.deleting]
    if not left or not draft.status.holds(ConditionType.COMPLETED):
        return ""
    until = clock(later(since, leftover_seconds(draft)))
    scripts = "1 script still runs" if len(left) == 1 else f"{len(left)} scripts still run"
    return f"; {scripts}, until {until} at the latest: {joined(left)}"


def _awaited(waiting: Waiting) -> str:
    """What the job waits for and why, in the policy's words; then what ends the wait; then what a person can do."""
    known = REASONS[waiting.reason]
    limit = f"no time limit: {known.ends}" if known.ends else ""
    return "; ".join(part for part in (waiting.message, limit, f"to do: {_begun(known.remedy)}") if part)


def _begun(sentence: str) -> str:
    """The sentence as a part of another one."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _assigned(draft: Draft, current: CurrentRun) -> str:
    """What is known about the current run."""
    plan, ended = current.plan, {one.name for one in current.outcomes}
    names, size = [member.name for member in plan.members], len(plan.members)
    first = next((name for name in names if name not in ended), "".join(names[:1]))
    parts = [f"run {plan.run}: {size} members have their ranks, {plan.world} processes in all"]
    if ended:
        parts = [f"run {plan.run}: {len(ended)} of {size} members have ended: {joined(sorted(ended))}"]
    if current.unconfirmed:
        parts.append(_taken_over(draft, current))
    parts += describe_training(draft, first)
    if draft.snapshot.deleting:
        parts.append("the job is being deleted: no run follows this one")
    return "; ".join(parts)


def _taken_over(draft: Draft, current: CurrentRun) -> str:
    before = current.plan.takes_over
    if failed_to_take_over(draft, current.run):
        return f"it has never taken over from run {before}, as a member reports"
    return f"no member has reported yet whether it has taken over from run {before}"


def _selector(draft: Draft) -> str:
    """The selector of this job's members: no standbys, no pods given up, none of an earlier job of this name."""
    labels = {LABEL_JOB: draft.snapshot.name, names.LABEL_UID: draft.snapshot.uid, LABEL_ROLE: Role.MEMBER.value}
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _all_assigned(draft: Draft) -> bool:
    """Whether the current run's members have their ranks, and no request other than a live hand-over."""
    if draft.current is None or (draft.intent and draft.intent.leave):
        return False
    return draft.waiting is None or (draft.waiting.reason is Reason.ASSIGNING and _offers(draft))


def _offers(draft: Draft) -> bool:
    following = draft.status.next
    return bool(following and following.plan and following.plan.takes_over)


def _disruption(draft: Draft) -> tuple[Reason, str] | None:
    """Why the current run has to end or change, or why the last one did: the reason, and the words."""
    why = draft.intent or draft.status.next
    return (Reason(why.disruption), why.cause) if why and why.disruption else None


def _disrupted(draft: Draft) -> Draft:
    why = _disruption(draft)
    if why is None:
        return draft.condition(ConditionType.DISRUPTED, False, Reason.UNDISTURBED, "nothing asks the run to end")
    return draft.condition(ConditionType.DISRUPTED, True, why[0], _move(draft, why[1]))


def _handing_over(draft: Draft) -> Draft:
    """The live hand-over that is offered now. A job that never had any does not have the condition."""
    upcoming, kind = draft.status.next, ConditionType.HANDING_OVER
    if upcoming and upcoming.plan and upcoming.plan.handover:
        words = f"run {upcoming.plan.run} is offered to the members of run {upcoming.plan.handover.run}"
        return draft.condition(kind, True, Reason.HANDOVER_OFFERED, words)
    if draft.current is None:
        return draft.without(kind)
    if draft.status.find(kind) is None:
        return draft
    return draft.condition(kind, False, Reason.NO_HANDOVER, "no run is offered to the members")


def _move(draft: Draft, cause: str) -> str:
    """How the move proceeds: what standbys wait for, or why none took over."""
    intent = draft.intent
    if intent is None:
        return cause
    if not intent.prepare and not intent.leave:
        flaps = describe_flapping(draft, intent.nodes) if intent.disruption is Disruption.NODE_LEAVING else ""
        return f"{cause}; {flaps} before members leave" if flaps else cause
    if intent.fallback_reason:
        return f"{cause}; {intent.fallback_reason}"
    if draft.status.next and draft.status.next.plan:
        offered = f"run {draft.status.next.plan.run} is offered to the members"
        words = (
            f"{cause}; {offered}: they hand over between two steps, or save where their script cannot go on as it is; "
            f"no member has reported yet whether they train, or wait for a store or a member that does not answer"
        )
        return f"{words}; {draft.standbys_wait.message}" if draft.standbys_wait else words
    if not intent.prepare or draft.standbys_wait is None:
        return cause
    limit = intent.ready_by or intent.grow_by
    if limit and spares_the_run(draft) and (draft.now >= limit or draft.snapshot.spec.elastic is None):
        limit = None
    until = f"until {clock(limit)}" if limit else _no_limit(draft, intent)
    held = draft.standbys_wait.message.removesuffix(f": {cause}")
    return f"{cause}; {_meanwhile(draft)} while new members start, {until}: {held}"


def _no_limit(draft: Draft, intent: Intent) -> str:
    """What ends a wait that has no time limit."""
    if intent.disruption is Disruption.SIZE_CHANGE and draft.current:
        have = size_of(draft.current.plan)
        elastic = draft.snapshot.spec.elastic
        again = f"{'the size' if elastic and elastic.shares else 'spec.replicas'} is {have.members} again"
        if have.each != wanted_size(draft.snapshot).each:
            processes = "1 process" if have.each == 1 else f"{have.each:g} processes"
            again = f"{have.members} members of {processes} are wanted again"
        return f"no time limit: no member has to leave; waiting ends when {again}"
    if spares_the_run(draft):
        leaver = next((one.name for one in succession(draft).leaves), "")
        delete = f"kubectl delete pod -n {draft.snapshot.namespace} {leaver}"
        return f"no time limit: the run is not stopped while new members fail; to make all save and leave: {delete}"
    return f"no time limit: no member has to leave, unless the node is annotated with {VACATE_ANNOTATION}=true"


def _meanwhile(draft: Draft) -> str:
    """What the members do meanwhile, as far as they have reported it."""
    upcoming = draft.status.next
    if draft.intent and draft.intent.disruption is Disruption.RUN_LOST:
        return "the run trains on, or waits for that save,"
    if not (upcoming and upcoming.attempted_runs):
        return "the run trains on"
    offered = joined([str(run) for run in upcoming.attempted_runs])
    return f"the run trains on, or waits for run {offered}, whose offer failed,"


def _protected(draft: Draft) -> Draft:
    if draft.status.finished_at:
        return draft if draft.snapshot.budget else draft.without(ConditionType.PROTECTED)
    foreign, strangers = draft.snapshot.foreign_budgets, draft.snapshot.foreign_pods
    if not foreign:
        if draft.current is None and (
            draft.snapshot.budget is None or draft.status.find(ConditionType.PROTECTED) is None
        ):
            return draft.without(ConditionType.PROTECTED)  # no member needs protection
        if draft.snapshot.budget is None:
            return draft.condition(ConditionType.PROTECTED, False, Reason.BUDGET_MISSING, "no PodDisruptionBudget yet")
        if refusal := _unrepaired(draft):
            return _not_all_protected(draft, refusal)
        if strangers:
            return _counts_strangers(draft, strangers)
        text = "evictions wait for the exit save"
        if _tolerates_everything(draft):
            return _unmoved_by_taints(draft, text)
        return draft.condition(ConditionType.PROTECTED, True, Reason.BUDGET_IN_PLACE, text)
    own = names.budget(draft.snapshot.name, draft.snapshot.uid)
    message = (
        f"PodDisruptionBudget {own} has the name of this job's budget and is not owned by the job: delete it"
        if own in foreign
        else f"PodDisruptionBudget {joined(list(foreign))} also matches the members: "
        "evictions fail until its selector is changed"
    )
    draft = draft.warn_once(ConditionType.PROTECTED, Reason.PDB_CONFLICT, message)
    return draft.condition(ConditionType.PROTECTED, False, Reason.PDB_CONFLICT, message)


def _unrepaired(draft: Draft) -> Refusal | None:
    """Why the budget does not protect all members and is not put right; None if it does, or is being put right."""
    budget, name = draft.snapshot.budget, names.budget(draft.snapshot.name, draft.snapshot.uid)
    pods = own(draft.snapshot).values()
    members = sum(pod.role == Role.MEMBER and not terminated(pod) for pod in pods)
    if budget is None or (not budget.altered and budget.min_available >= members):
        return None
    return refused_change(draft, name)


def _not_all_protected(draft: Draft, refusal: Refusal) -> Draft:
    altered = draft.snapshot.budget.altered if draft.snapshot.budget else ""
    what = f"was changed ({altered})" if altered else "is too small"
    message = f"the job's PodDisruptionBudget {what}, and the operator's change of it is refused: {refusal.message}"
    draft = draft.warn_once(ConditionType.PROTECTED, Reason.BUDGET_REFUSED, message)
    return draft.condition(ConditionType.PROTECTED, False, Reason.BUDGET_REFUSED, message)


def _tolerates_everything(draft: Draft) -> bool:
    """Whether the template tolerates every taint."""
    tolerations = (draft.snapshot.spec.template.get("spec") or {}).get("tolerations") or []
    return any(one.get("operator") == "Exists" and not one.get("key") for one in tolerations)


def _unmoved_by_taints(draft: Draft, text: str) -> Draft:
    message = (
        f"{text}; but the template tolerates every taint: members stay under NoExecute, new ones may land on a node "
        "that is going away, and Karpenter takes a node from under them without an eviction: give the toleration keys"
    )
    draft = draft.warn_once(ConditionType.PROTECTED, Reason.CATCH_ALL_TOLERATION, message)
    return draft.condition(ConditionType.PROTECTED, True, Reason.CATCH_ALL_TOLERATION, message)


def _counts_strangers(draft: Draft, strangers: tuple[str, ...]) -> Draft:
    message = (
        f"minAvailable is raised by {len(strangers)} for pods that have this job's labels and are not its own: "
        f"{joined(list(strangers))}; remove the label {names.LABEL_UID} from them"
    )
    draft = draft.warn_once(ConditionType.PROTECTED, Reason.FOREIGN_PODS, message)
    return draft.condition(ConditionType.PROTECTED, True, Reason.FOREIGN_PODS, message)


def _sized(draft: Draft) -> Draft:
    """Show both numbers: the size that an autoscaler asks for, and the size that the job has."""
    spec, plan = draft.snapshot.spec, draft.newest_plan
    if plan is None:
        return draft.without(ConditionType.SIZED)  # no run, no size
    have, wanted = len(plan.members), wanted_size(draft.snapshot).members
    if spec.elastic is None and have >= wanted:
        known = draft.status.find(ConditionType.SIZED) is not None
        words = f"spec.elastic is not set: {spec.replicas} members are wanted, and no other number"
        return draft.condition(ConditionType.SIZED, True, Reason.FIXED_SIZE, words) if known else draft
    alive = [pod for pod in own(draft.snapshot).values() if not terminated(pod)]
    more = ""
    why = why_so_many(spec, draft.snapshot.status.scaling)
    if spec.elastic:
        warning, spares = warn_of_priority(spec.elastic, alive), _spares(draft, spec.elastic.spares)
        more = f"{spares}; {warning}" if warning else spares
    if have == wanted:
        words = f"{have} members: {why}{more}"
        return draft.condition(ConditionType.SIZED, True, Reason.WANTED_SIZE, words)
    words = f"{have} members, {wanted} are wanted: {why}{_how_it_grows(draft, have < wanted)}{more}"
    return draft.condition(ConditionType.SIZED, False, Reason.OTHER_SIZE, words)


def _how_it_grows(draft: Draft, grows: bool) -> str:
    """Until when the job waits for more members; it waits for none if the offered run has them all."""
    if not grows or _offers(draft):
        return ""
    if draft.intent and draft.intent.grow_by:
        return f"; the operator waits for new members until {clock(draft.intent.grow_by)}"
    return grows_later(draft)


def _spares(draft: Draft, asked: int) -> str:
    """How many spares are warm, and why the others are not."""
    if not asked:
        return ""
    pods = own(draft.snapshot)
    warm = [name for name in draft.spares if name in pods and can_train(draft, pods[name])]
    words = f"; {min(len(warm), asked)} of {asked} spares are warm"
    if len(warm) >= asked:
        return words
    series = draft.status.spares.replacements if draft.status.spares else None
    if series and (until := paused_until(draft)):
        return f"{words}, others are made at {clock(until)}: {series.cause}"
    if held := what_keeps(draft, draft.spares):
        return f"{words}: {held[1]}"
    if draft.intent and len(draft.spares) < asked:
        return f"{words}, others are made when this change is over"
    there = [pods[name] for name in draft.spares if name in pods and not terminated(pods[name])]
    idle = [f"{pod.name}: {why}" for pod in there if (why := unusable_node(draft, pod))]
    return f"{words}: {idle[0]}" if idle else words


def _understood(draft: Draft) -> Draft:
    """Name fields that the operator does not know and ignores: if it refused the job, its nodes' drains would hang."""
    unknown = draft.snapshot.unknown_fields
    old = draft.status.find(ConditionType.SPEC_UNDERSTOOD)
    if unknown:
        message = (
            f"this operator ignores {joined(list(unknown))}: it does not know them, or cannot read them; "
            + _advice(unknown)
        )
        if old is None or old.message != message:
            draft = draft.tell(Reason.UNKNOWN_FIELDS, message, warning=True)
        return draft.condition(ConditionType.SPEC_UNDERSTOOD, False, Reason.UNKNOWN_FIELDS, message)
    if old is None:
        return draft
    text = "every field of the spec is known"
    return draft.condition(ConditionType.SPEC_UNDERSTOOD, True, Reason.ALL_FIELDS_KNOWN, text)


def _deletable(draft: Draft) -> Draft:
    """Name the objects that the API server refuses to delete. The run may continue meanwhile."""
    refusals = refused_deletions(draft)
    if not refusals:
        return draft.without(ConditionType.DELETIONS_ALLOWED)
    for one in refusals:
        draft = draft.wake(one.until) if one.until else draft
    message = _awaited(
        Waiting(
            Reason.DELETION_REFUSED,
            f"the API server refuses to delete {joined([one.pod for one in refusals])}: {refusals[0].message}",
        )
    )
    if draft.waiting is None or draft.waiting.reason is not Reason.DELETION_REFUSED:
        draft = draft.warn_once(ConditionType.DELETIONS_ALLOWED, Reason.DELETION_REFUSED, message)
    return draft.condition(ConditionType.DELETIONS_ALLOWED, False, Reason.DELETION_REFUSED, message)


def _advice(unknown: tuple[str, ...]) -> str:
    """What to do: the annotation is no field of the CRD, and a name in it is only misspelt or gone."""
    places = sum(one.startswith(f"{VACATE_ANNOTATION}=") for one in unknown)
    fields = ["install the operator that belongs to the CRD, or remove them"] if places < len(unknown) else []
    vacate = [f"name nodes or pods of this job in {VACATE_ANNOTATION}; the other names in it count"] if places else []
    return "; ".join([*fields, *vacate])


def _suspended(draft: Draft) -> Draft:
    if draft.waiting and draft.waiting.reason is Reason.SUSPENDED:
        return draft.condition(ConditionType.SUSPENDED, True, Reason.SUSPENDED, draft.waiting.message)
    if draft.status.holds(ConditionType.SUSPENDED):
        return draft.condition(ConditionType.SUSPENDED, False, Reason.RESUMED, "spec.suspend is false")
    return draft


def _phase(draft: Draft) -> Phase:
    status = draft.status
    if status.finished_at:
        return Phase.COMPLETED if status.holds(ConditionType.COMPLETED) else Phase.FAILED
    if status.current is None:
        if draft.waiting and draft.waiting.reason is Reason.SUSPENDED:
            return Phase.SUSPENDED
        return Phase.STARTING if draft.next_members else Phase.PENDING
    if draft.intent and draft.intent.leave:
        return _ENDING.get(draft.intent.disruption, Phase.VACATING)
    if _all_assigned(draft):
        return Phase.RUNNING
    reason = draft.waiting.reason if draft.waiting else None
    grows = draft.intent is None or draft.intent.disruption is Disruption.SIZE_CHANGE
    begins = reason is Reason.ASSIGNING or (reason is Reason.STARTING_MEMBERS and grows)
    return Phase.STARTING if begins else Phase.RECOVERING
