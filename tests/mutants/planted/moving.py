"""Bugs in how one run follows another: standbys, seats, offers to hand over, and evidence of what became of them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MOVING: Final = (
    Mutant(
        "standbys that are not Ready in time are waited for",
        "perdure_operator.decide:give_up",
        "return fall_back(draft, current, found, held)",
        "return draft.because(held.message)",
        ("quota", "drain", "scheduler-paused"),
    ),
    Mutant(
        "standbys are given up before their time",
        "perdure_operator.decide:give_up",
        "if draft.now < until:\n        return draft.wake(until)",
        "if draft.now >= until:\n        return draft",
        ("quota", "drain", "scheduler-paused"),
    ),
    Mutant(
        "a member that is being deleted keeps its seat",
        "perdure_operator.decide:succession",
        "if pod.deleting or made_from_another(draft, pod)}",
        "if made_from_another(draft, pod)}",
        ("scaled-while-one-goes",),
    ),
    Mutant(
        "members of a node that goes away keep their seats",
        "perdure_operator.decide:succession",
        "unfit = {name for name in if_room if not if_room[name]}",
        "unfit = {name for name in if_room if if_room[name]}",
        ("drain",),
    ),
    Mutant(
        "a node that need not be left is left with one that must be",
        "perdure_operator.decide:succession",
        "if stands_still(draft) or waited_enough(draft) or ends_for_size(draft, current):",
        "if stands_still(draft) or ends_for_size(draft, current):",
        ("announcement",),
    ),
    Mutant(
        "a smaller run waits for room that it does not need",
        "perdure_operator.decide:succession",
        "if stands_still(draft) or waited_enough(draft) or ends_for_size(draft, current):",
        "if stands_still(draft) or waited_enough(draft):",
        ("announcement",),
    ),
    Mutant(
        "stayers get new ranks where the size does not change",
        "perdure_operator.decide:_seated",
        "if size < len(old):",
        "if len(joins) <= len(old):",
        ("drain",),
    ),
    Mutant(
        "joiners get their label before the budget counts them",
        "perdure_operator.decide:_wanted",
        "counted = labelled if in_place else {name",
        "counted = set() if in_place else {name",
        ("drain", "scale"),
    ),
    Mutant(
        "the parties of a hand-over look for its store at one that leaves",
        "perdure_operator.decide:live_plan",
        "(*roles.stays, *roles.leaves)[0].name], HANDOVER_PORT",
        "(*roles.leaves, *roles.stays)[0].name], HANDOVER_PORT",
        ("drain",),
    ),
    Mutant(
        "an attempt may take all the time that there is for the save",
        "perdure_operator.decide:live_plan",
        "limit=max(plan.seconds // 2, 1)",
        "limit=plan.seconds",
        ("partys-agent-hung", "party-frozen", "drain"),
    ),
    Mutant(
        "attempts to hand over are not counted",
        "perdure_operator.decide:_try_again",
        "attempts, broken = (upcoming.attempts + 1, upcoming.broken + bool(nodes))",
        "attempts, broken = (1, upcoming.broken + bool(nodes))",
        ("newcomers-killed",),
    ),
    Mutant(
        "a run that not all its members know of yet is asked to hand over",
        "perdure_operator.decide:_not_live",
        "run_named(pods[one.name].assignment) < current.run or not pods[one.name].ready",
        "not pods[one.name].ready",
        ("scale", "drain"),
    ),
    Mutant(
        "an attempt with an unknown end is not named as lost",
        "perdure_operator.decide:_try_again",
        "attempted_runs=add_lost_run(upcoming.attempted_runs, plan.run)",
        "attempted_runs=upcoming.attempted_runs",
        ("party-killed", "party-frozen", "deciding-put"),
    ),
    Mutant(
        "a newcomer that dies after it has joined is taken for one that never did",
        "perdure_operator.decide:_goes_on",
        "known = draft.status.opened >= plan.run or reports_save(current.run, current)",
        "known = reports_save(current.run, current)",
        ("party-killed", "kill-pod", "scale"),
    ),
    Mutant(
        "a hand-over without evidence is waited for for ever",
        "perdure_operator.decide:resolve_handover",
        "if draft.now >= known:",
        "if draft.now >= known and current.outcomes:",
        ("grown-and-left-alone",),
    ),
    Mutant(
        "during a hand-over nothing else makes a run end",
        "perdure_operator.decide:_move_on",
        "    if draft.now >= patience or _has_no_time(draft, plan, found):\n        return after\n",
        "",
        ("second-reason", "drain", "scale"),
    ),
    Mutant(
        "a member that knows of a failed attempt gets the older run again",
        "perdure_operator.decide:assign",
        "if run_named(pod.assignment) > plan.run:",
        "if run_named(pod.assignment) < 0:",
        ("newcomers-killed",),
    ),
    Mutant(
        "steps that were handed over to a run that died at once are not lost",
        "perdure_operator.decide:close_previous",
        "if exit_cause.reason is not Reason.HANDED_OVER or _went_astray(draft, previous):",
        "if exit_cause.reason is not Reason.HANDED_OVER:",
        ("party-killed", "kill-pod", "drain"),
    ),
    Mutant(
        "any report of the newer run counts as a live take-over",
        "perdure_operator.decide:_way",
        "taken_over = any((one.taken_over_by == plan.run for one in current.outcomes))",
        "taken_over = any((one.run == plan.run for one in current.outcomes))",
        ("party-killed", "second-reason", "drain"),
    ),
    Mutant(
        "stayers begin before the pause after a lost member is over",
        "perdure_operator.decide:limited",
        "not_before = _begins(draft, current, found, not_before)",
        "_begins(draft, current, found, not_before)",
        ("kill-pod", "code-failure"),
    ),
    Mutant(
        "reports of where a run has begun change no sum",
        "perdure_operator.decide:amend",
        "steps_lost=max(0, status.steps_lost + new.steps_lost - old.steps_lost)",
        "steps_lost=status.steps_lost",
        ("commit-damaged",),
    ),
)
