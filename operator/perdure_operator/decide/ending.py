"""How members of a run ended, and how the run is closed once all of them have: what it cost, lost and left.

Outcomes go to status before the pods are deleted: status is the only memory of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from perdure.wire import Completion, ErrorKind, ErrorName, ExitKind
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import (
    Assigned,
    CurrentRun,
    Disruption,
    HistoryEntry,
    Intent,
    LiveRefused,
    MemberOutcome,
    PreviousRun,
    Takeover,
)
from perdure_operator.decide.blame import ExitCause, charge, describe, judge
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import (
    add_lost_run,
    asked_at,
    ended_in_log,
    one_more,
    order_of_death,
    outcome_of,
    own,
    reports_save,
    saved_in_log,
    template_of,
    terminated,
)
from perdure_operator.decide.history import amend, entry_of, highest, learn_from, never_begun
from perdure_operator.decide.outcomes import end_of, highest_opened, learn, learn_result, outcome_in, read_end
from perdure_operator.decide.plans import succeed
from perdure_operator.state.snapshot import PodView

_SAVED: Final = frozenset({Reason.HANDED_OVER, Reason.CHECKPOINTED, Reason.NOTHING_TO_SAVE, Reason.NODE_FAULT})
"""Ends whose cost is known in full."""
_BEFORE_A_STEP: Final = frozenset({Reason.NOTHING_TO_SAVE, Reason.NODE_FAULT, Reason.UNKNOWN_END})
_MEASURED: Final = frozenset({Reason.HANDED_OVER, Reason.CHECKPOINTED})
_EXPECTED: Final = _SAVED | {Reason.UNKNOWN_END}


@dataclass(frozen=True)
class Cost:
    """How far a run had come when it ended."""

    of: int
    """The run that its members reported on."""
    reached: int | None
    """The last step that any of them did; None if none reported it."""
    kept: int
    """The step of the newest commit that they, or earlier members, reported."""

    @property
    def unreported(self) -> bool:
        return self.reached is None

    @property
    def steps(self) -> int:
        """The steps that are in no commit, as far as it is known."""
        return 0 if self.reached is None else max(0, self.reached - self.kept)


def record_outcomes(draft: Draft) -> Draft:
    """Record one outcome for each member that has ended, is gone, or is on a node that was given up.

    Every pod's report about the log counts, even of a run that status does not know: status may have been restored.
    """
    draft, current = draft.update(opened=highest_opened(draft.status.opened, own(draft.snapshot))), draft.current
    if current is None:
        return draft
    draft, found = _new_outcomes(draft, current, current.plan.members)
    return draft.update_current(outcomes=_brief([*current.outcomes, *found]))


def record_leavers(draft: Draft) -> Draft:
    """Like `record_outcomes`, for leavers of the previous run."""
    previous = draft.status.previous
    if previous is None:
        return draft
    draft, found = _new_outcomes(draft, previous, previous.members)
    ended = {one.name for one in found}
    members = tuple(member for member in previous.members if member.name not in ended)
    outcomes = _brief([*previous.outcomes, *found])
    return draft.update(previous=previous.model_copy(update={"members": members, "outcomes": outcomes}))


def _new_outcomes(
    draft: Draft, run: CurrentRun | PreviousRun, members: tuple[Assigned, ...]
) -> tuple[Draft, list[MemberOutcome]]:
    pods, found = own(draft.snapshot), list[MemberOutcome]()
    for member in members:
        if known := outcome_of(run, member.name):
            draft = draft if known.outcome else _hear_at_last(draft, member, pods.get(member.name))
            continue
        outcome = _not_ahead(draft, read_end(draft, member, pods.get(member.name)))
        if outcome and isinstance(run, CurrentRun) and _came_in_vain(draft, run, member, outcome):
            outcome = outcome.model_copy(update={"infrastructure": True})
        if outcome:
            draft = learn(draft, outcome).because(f"{member.name} ended: {outcome.outcome or 'no outcome'}")
            found.append(outcome)
            draft = _learn_more(draft, pods.get(member.name))
    return draft, found


def _hear_at_last(draft: Draft, member: Assigned, pod: PodView | None) -> Draft:
    """Record what a member that was given up for silent reports when it has ended after all.

    Its end stays as it was counted: others have acted on it.
    """
    if pod is None or pod.uid != member.uid or not terminated(pod):
        return draft
    return _learn_more(learn(draft, end_of(pod)), pod)


def _not_ahead(draft: Draft, end: MemberOutcome | None) -> MemberOutcome | None:
    """The end, with a time that is over: a kubelet's clock may be minutes ahead."""
    ahead = end and end.time and end.time > draft.now
    return end.model_copy(update={"time": draft.now}) if end and ahead else end


def _came_in_vain(draft: Draft, run: CurrentRun, member: Assigned, end: MemberOutcome) -> bool:
    """Whether a newcomer failed before its first step, beside members in which the same script has trained.

    Then its node is at fault, and not the code. A script without a Session reports no steps, so the rule is not for it.
    """
    plan = run.plan
    if not plan.takes_over or not plan.joins or member.rank not in plan.joins or end.step:
        return False
    stay = any(one.rank not in plan.joins for one in plan.members)
    return stay and end.outcome == ExitKind.FAILED and draft.snapshot.spec.completion is Completion.LOG


def _learn_more(draft: Draft, pod: PodView | None) -> Draft:
    """Record the script's result; and if it cannot be handed over live, so that it is not asked again.

    A change of its template ends that.
    """
    said = outcome_in(pod) if pod else None
    draft = learn_result(learn_from(draft, said), said) if said else draft
    if pod is None or said is None or said.live is not False:
        return draft
    return draft.update(live_refused=LiveRefused(template=template_of(draft, pod), why=said.live_why))


def complete(draft: Draft) -> Draft:
    """A `completed` outcome of the newest started run completes the job, whatever intent is open.

    The log confirms it, so one is enough; if exit codes decide, every member has to have completed. The next run is
    dropped; pods stay for their logs.
    """
    if draft.status.finished_at:
        return draft
    newest = _newest_begun(draft)
    done = [one for one in _all_outcomes(draft) if one.outcome == ExitKind.COMPLETED and one.run >= newest]
    if not done or not (draft.snapshot.spec.completion is Completion.LOG or _all_done(draft.current)):
        return draft
    for outcome in done:
        draft = _learn_result_of(learn(draft, outcome), outcome)
    draft = _begun_at_last(draft, done[0].run)
    step = draft.status.step
    message = f"run {done[0].run} has reached its goal" + ("" if step is None else f" at step {step}")
    draft = draft.condition(ConditionType.SAVED, True, Reason.COMPLETED, message)
    return draft.update(completion_time=draft.now).finish(ConditionType.COMPLETED, Reason.COMPLETED, message)


def _learn_result_of(draft: Draft, one: MemberOutcome) -> Draft:
    """Record the member's result, even if the member was given up before it completed."""
    pod = own(draft.snapshot).get(one.name)
    said = outcome_in(pod) if pod and pod.uid == one.uid else None
    return learn_result(draft, said) if said else draft


def _begun_at_last(draft: Draft, run: int) -> Draft:
    """Let the offered run take over if it has completed: no member reported before that it had begun."""
    current, intent, upcoming = draft.current, draft.intent, draft.status.next
    if current is None or intent is None or upcoming is None or upcoming.plan is None or upcoming.plan.run != run:
        return draft
    draft, pods = succeed(draft, current, upcoming.plan, intent), own(draft.snapshot)
    members = (one for one in upcoming.plan.members if one.name in pods and pods[one.name].uid == one.uid)
    return reduce(learn_from, (end for one in members if (end := outcome_in(pods[one.name]))), draft)


def _newest_begun(draft: Draft) -> int:
    """The current run, or the run whose pods it goes on in while it is not known to have begun.

    A pod that was in no run has run 0.
    """
    current = draft.current
    if current is None:
        return 1
    begun = not current.plan.takes_over or draft.status.opened >= current.run
    return current.run if begun else current.plan.takes_over


def close_run(draft: Draft) -> Draft:
    """Close the run once all its members have ended: status drops it in the write that counts it, so it counts once."""
    current = draft.current
    if current is None or any(not outcome_of(current, member.name) for member in current.plan.members):
        return draft
    cost = _measured_cost(draft, current)
    draft, exit_cause, message = _account_for(draft.update(current=None), current, cost)
    draft = _lose_the_one_before(draft, current)
    draft, reached = never_begun(draft, cost.of, current.run + 1)
    cost = replace(cost, reached=highest(cost.reached, reached))
    draft = _count(draft, cost)
    if upcoming := draft.status.next:
        known = {"steps_lost": cost.steps, "unreported": cost.unreported, "reached": cost.reached, "kept": cost.kept}
        lost = reduce(add_lost_run, upcoming.attempted_runs, draft.status.lost)  # no member can begin one any more
        draft = draft.update(next=upcoming.model_copy(update=known), lost=lost)
    draft = _keep_pace(draft, current, exit_cause, message)
    charged, previous = charge(draft, exit_cause, current), draft.status.previous
    if (
        previous is None
        or exit_cause.blamed is None
        or exit_cause.blamed.run != previous.run
        or not _cost(draft, charged)
    ):
        return charged
    return charged.update(previous=previous.model_copy(update={"counted": previous.run}))


def close_previous(draft: Draft) -> Draft:
    """Like `close_run`, for the previous run, once all its leavers have ended."""
    previous = draft.status.previous
    if previous is None or previous.members:
        return draft
    draft = draft.update(previous=None)
    if not previous.outcomes:
        return draft  # it had no leavers: the members that go on report how it ended
    cost = _measured_cost(draft, previous)
    draft, exit_cause, _ = _account_for(draft, previous, cost)
    if exit_cause.reason is not Reason.HANDED_OVER or _went_astray(draft, previous):
        draft = _count_for_the_newer(draft, previous, cost)
    lost_a_peer = exit_cause.blamed is not None and exit_cause.blamed.outcome == ExitKind.PEER_LOST
    if lost_a_peer and previous.intent.disruption is not Disruption.MEMBER_LOST:
        return draft  # the lost peer was no leaver: its death counts in the run that goes on
    charged = charge(draft, exit_cause, previous)
    return charged.update_current(counted=previous.run) if _cost(draft, charged) else charged


def _went_astray(draft: Draft, run: CurrentRun | PreviousRun) -> bool:
    """Whether it handed over to an offered run that never became the current one.

    Otherwise the newer run has begun with all its steps.
    """
    return any(one.taken_over_by and not entry_of(draft, one.taken_over_by) for one in run.outcomes)


def _cost(before: Draft, charged: Draft) -> bool:
    """Whether a failure was counted, and the job goes on."""
    return charged.status.failures != before.status.failures and not charged.status.finished_at


def _count_for_the_newer(draft: Draft, previous: PreviousRun, cost: Cost) -> Draft:
    """Count the previous run's lost steps for the newer run.

    Members that go on in their pods may have kept steps that are in no commit: it is known when the newer run ends.
    """
    entry = entry_of(draft, draft.current.run) if draft.current else _begun_since(draft, previous.run)
    if entry is None:
        return _count_for_the_next(draft, previous, cost)
    if entry.began is not None or entry.how is Takeover.LIVE:
        return draft  # its cost is known by now
    draft, reached = never_begun(draft, cost.of, entry.run)
    cost = replace(cost, reached=highest(entry.reached, reached, cost.reached))
    known = {"reached": cost.reached, "kept": cost.kept, "unreported": cost.unreported}
    in_pods = _goes_on_in_pods(draft, previous) if draft.current else entry.how is not Takeover.RECREATE
    return amend(draft, entry.run, **known, **{"steps_in_doubt" if in_pods else "steps_lost": cost.steps})


def _begun_since(draft: Draft, run: int) -> HistoryEntry | None:
    """The run that began after this one, as members reported, and ended before this one's last leaver."""
    later = (one for one in draft.status.history if one.run > run)
    return next((one for one in later if one.began is not None or one.run == draft.status.opened), None)


def _count_for_the_next(draft: Draft, previous: PreviousRun, cost: Cost) -> Draft:
    """Count the previous run's lost steps if the newer run ended before the last leaver.

    If the newer run was never opened, its members reported on the same run: that counts once, though a leaver may have
    done more steps, or saved since. If they reported nothing, the newer run may have begun: the steps are in doubt.
    """
    status, upcoming = draft.status, draft.status.next
    unreported = cost.unreported and (upcoming is None or upcoming.reached is None)
    if upcoming is None or unreported or status.opened > previous.run:
        more = {
            "steps_in_doubt": status.steps_in_doubt + cost.steps,
            "runs_unreported": status.runs_unreported + cost.unreported,
        }
        return draft.update(**more)
    cost = replace(cost, reached=highest(upcoming.reached, cost.reached), kept=status.step or 0)
    known = {"steps_lost": cost.steps, "unreported": False, "reached": cost.reached, "kept": cost.kept}
    total = max(0, status.steps_lost + cost.steps - upcoming.steps_lost)
    return draft.update(next=upcoming.model_copy(update=known), steps_lost=total)


def _count(draft: Draft, cost: Cost) -> Draft:
    status = draft.status
    return draft.update(
        steps_lost=status.steps_lost + cost.steps, runs_unreported=status.runs_unreported + cost.unreported
    )


def _account_for(draft: Draft, run: CurrentRun | PreviousRun, cost: Cost) -> tuple[Draft, ExitCause, str]:
    """Record how the run ended, in status and for people; the caller charges it."""
    status, intent = draft.status, run.intent
    planned = intent is not None and intent.disruption is not Disruption.MEMBER_LOST
    exit_cause = judge(run.outcomes, planned=planned, late=planned and _is_late(draft, intent))
    if exit_cause.reason is Reason.NOTHING_TO_SAVE and intent and intent.disruption is Disruption.NODE_FAULT:
        exit_cause = replace(exit_cause, reason=Reason.NODE_FAULT)  # there was state, and it must not be saved
    exit_cause = replace(exit_cause, step=max([one.step for one in run.outcomes if one.run == run.run], default=0))
    handed_over = exit_cause.reason is Reason.HANDED_OVER and isinstance(run, PreviousRun)
    steps_lost = 0 if handed_over and not _went_astray(draft, run) else cost.steps
    declared = intent is not None and run.run in intent.lost
    # No member of the current run is left, so marking it lost is safe; otherwise the next run would wait for its save.
    recorded = saved_in_log(run) if isinstance(run, CurrentRun) else ended_in_log(run)
    unfinished = declared or not recorded
    draft = draft.update(lost=add_lost_run(status.lost, run.run) if unfinished else status.lost)
    if exit_cause.reason in _MEASURED and intent and intent.leave and (asked := asked_at(intent)):
        draft = draft.update(exit_seconds=round(max((draft.now - asked).total_seconds(), 0), 1))
    message = _account(draft, run, exit_cause, steps_lost)
    draft = draft.condition(
        ConditionType.SAVED, exit_cause.reason in _SAVED and not steps_lost, exit_cause.reason, message
    )
    return draft.tell(exit_cause.reason, message, warning=exit_cause.reason not in _EXPECTED), exit_cause, message


def _lose_the_one_before(draft: Draft, current: CurrentRun) -> Draft:
    """Declare the previous run lost, if the run that was to take over has no member left and never began."""
    status, before = draft.status, current.plan.takes_over
    leavers = status.previous is not None and status.previous.members
    if not before or leavers or status.opened >= current.run or reports_save(before, current):
        return draft
    return draft.update(lost=add_lost_run(status.lost, before))


def _keep_pace(draft: Draft, current: CurrentRun, exit_cause: ExitCause, message: str) -> Draft:
    """Count a run that ended before its first step as a replacement: its cause may end the next one at once, too."""
    upcoming = draft.status.next
    if upcoming is None or exit_cause.step or exit_cause.reason not in _BEFORE_A_STEP:
        return draft
    series = one_more(draft, current.replacements, message)
    return draft.update(next=upcoming.model_copy(update={"replacements": series}))


def _all_done(current: CurrentRun | None) -> bool:
    names = {one.name for one in current.outcomes if one.outcome == ExitKind.COMPLETED} if current else set()
    return current is not None and all(member.name in names for member in current.plan.members)


def _brief(outcomes: list[MemberOutcome]) -> tuple[MemberOutcome, ...]:
    """The outcomes with the words of only the first death of each kind: the others would only fill the status."""
    speakers: dict[tuple[str, bool], MemberOutcome] = {}
    for one in sorted(outcomes, key=order_of_death):
        speakers.setdefault((one.outcome, one.infrastructure), one)
    first = {id(one) for one in speakers.values()}
    return tuple(
        one if id(one) in first else one.model_copy(update={"error_tail": "", "unsaved_why": ""}) for one in outcomes
    )


def _all_outcomes(draft: Draft) -> list[MemberOutcome]:
    """The outcomes of all pods of the job, including pods that were given up before they completed."""
    known = draft.current.outcomes if draft.current else ()
    return [*known, *(end_of(pod) for pod in own(draft.snapshot).values() if terminated(pod))]


def _is_late(draft: Draft, intent: Intent | None) -> bool:
    return intent is not None and intent.deadline is not None and draft.now >= intent.deadline


def _measured_cost(draft: Draft, ended: CurrentRun | PreviousRun) -> Cost:
    """How far the newest run came that one of these members reports: their own run may never have begun."""
    evidence = _evidence(draft, ended)
    of = max((one.run for one in evidence if one.run), default=ended.run)
    mine = [one for one in evidence if one.run == of]
    commits = [(o.commit_seq, o.commit_step) for o in mine if o.commit_seq is not None and o.commit_step is not None]
    # Status may know a newer run's commit by now: it counts only if these members know of none.
    kept = max(commits)[1] if commits else draft.status.step or 0
    entry = entry_of(draft, of)
    never_began = bool(mine) and all(_has_not_begun(draft, one, Takeover.IN_PLACE, Takeover.RECREATE) for one in mine)
    lost_log = any(one.error_name == ErrorName.LOG_LOST for one in mine)  # a person decides what is given up, see gates
    if entry and entry.reached is not None and never_began and not lost_log:
        of = entry.run - 1  # where the run before stood is in the entry, and these members know nothing of it
    elif entry and entry.how is Takeover.IN_PLACE and never_began and not lost_log:
        return Cost(entry.run - 1, None, kept)  # no other member reported where it stood, and these trained beyond it
    return Cost(of, max((one.step for one in mine), default=None), kept)


def _evidence(draft: Draft, ended: CurrentRun | PreviousRun) -> list[MemberOutcome]:
    """The outcomes that show which step a run reached.

    A member of a run that was to take over live, and is not known to have begun, tells nothing. One of a run in place
    tells only that it has not begun: that counts if no other member tells more. What is about a newer run than this one
    is not believed, unless members were offered that run: a container may write anything. Without a step in it, a
    member says nothing about the run before.
    """
    offered = (*draft.status.lost, *(draft.status.next.attempted_runs if draft.status.next else ()))
    evidence = [one for one in ended.outcomes if one.outcome and (one.run <= ended.run or one.run in offered)]
    evidence = [one for one in evidence if one.run <= max(ended.run, draft.status.opened) or one.step]
    evidence = [one for one in evidence if not _has_not_begun(draft, one, Takeover.UNKNOWN, Takeover.NEVER)]
    return [one for one in evidence if not _has_not_begun(draft, one, Takeover.IN_PLACE)] or evidence


def _has_not_begun(draft: Draft, one: MemberOutcome, *ways: Takeover) -> bool:
    """Whether its run was to take over in one of these ways, and is not known to have begun.

    That the member did no step then says nothing about the previous run.
    """
    entry = entry_of(draft, one.run)
    return entry is not None and entry.how in ways and not one.step and one.run > draft.status.opened


def _account(draft: Draft, current: CurrentRun | PreviousRun, exit_cause: ExitCause, steps_lost: int) -> str:
    """How the run ended, in one sentence and the blamed member's words."""
    where = _where(current, draft.status.step)
    cost = f"{steps_lost} steps lost since the last commit" if steps_lost else "no step known to be lost"
    if exit_cause.reason in _SAVED:
        cost = f"{steps_lost} steps lost"
    elif steps_lost and (run := _goes_on_in_pods(draft, current)):
        cost = f"{steps_lost} steps are in no commit; whether members that stay have them is known when run {run} ends"
    cost += _unsaved(current)
    words = describe(exit_cause.blamed)
    if exit_cause.reason is Reason.NODE_FAULT and current.intent:
        words = f"nothing was saved: {current.intent.cause}"
    secret = draft.snapshot.spec.checkpoint.s3.credentials_secret if draft.snapshot.spec.checkpoint.s3 else ""
    if secret and exit_cause.blamed and exit_cause.blamed.error_kind == ErrorKind.STORAGE:
        words += f"\nThe keys for {draft.snapshot.spec.checkpoint.uri} come from the Secret {secret}"
    return f"run {current.run} ended{where}: {cost}" + (f"; {words}" if words else "")


def _unsaved(current: CurrentRun | PreviousRun) -> str:
    """The checkpoints that had failed by the end of the run: people learn of them only now."""
    mine = [one for one in current.outcomes if one.run == current.run and one.unsaved]
    if not mine:
        return ""
    most, why = max(one.unsaved for one in mine), next((one.unsaved_why for one in mine if one.unsaved_why), "")
    checkpoints = "its last checkpoint had failed" if most == 1 else f"its last {most} checkpoints had failed"
    return f"; {checkpoints}" + (f": {why}" if why else "")


def _goes_on_in_pods(draft: Draft, ended: CurrentRun | PreviousRun) -> int:
    """The run that goes on in pods of the ended one, where an image of its last step may lie; 0 if there is none."""
    newest = draft.current
    if newest is None or newest.plan.takes_over != ended.run:
        return 0
    stays = any(member.rank not in (newest.plan.joins or ()) for member in newest.plan.members)
    return newest.run if stays else 0


def _where(current: CurrentRun | PreviousRun, committed: int | None) -> str:
    """At which step of the training the run ended, for a message; members that did no step report 0."""
    reached = max([one.step for one in current.outcomes if one.run == current.run] + [0])
    if reached:
        return f" at step {reached}"
    known = "no commit is known" if committed is None else f"the last commit known is of step {committed}"
    return f", and no member reported a step; {known}"
