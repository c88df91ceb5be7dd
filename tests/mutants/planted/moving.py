"""Bugs in how one run follows another: standbys, seats, offers to hand over, and evidence of what became of them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_DECIDE: Final = "operator/perdure_operator/decide/"
_BUDGET: Final = f"{_DECIDE}budget.py"
_ENDING: Final = f"{_DECIDE}ending.py"
_HANDING_OVER: Final = f"{_DECIDE}handing_over.py"
_HISTORY: Final = f"{_DECIDE}history.py"
_INTENTS: Final = f"{_DECIDE}intents.py"
_MEMBERS: Final = f"{_DECIDE}members.py"
_PLANS: Final = f"{_DECIDE}plans.py"
_PREPARING: Final = f"{_DECIDE}preparing.py"
_SUCCESSION: Final = f"{_DECIDE}succession.py"

MOVING: Final = (
    Mutant(
        "standbys that are not Ready in time are waited for",
        _PREPARING,
        "    return fall_back(draft, current, found, held)",
        "    return draft.because(held.message)",
        ("quota", "drain", "scheduler-paused"),
    ),
    Mutant(
        "standbys are given up before their time",
        _PREPARING,
        "    if draft.now < until:\n        return draft.wake(until)\n    held",
        "    if draft.now >= until:\n        return draft\n    held",
        ("quota", "drain", "scheduler-paused"),
    ),
    Mutant(
        "a member that is being deleted keeps its seat",
        _SUCCESSION,
        "if pod.deleting or made_from_another(draft, pod)}",
        "if made_from_another(draft, pod)}",
        ("scaled-while-one-goes",),
    ),
    Mutant(
        "members of a node that goes away keep their seats",
        _SUCCESSION,
        "unfit = {name for name in if_room if not if_room[name]}",
        "unfit = {name for name in if_room if if_room[name]}",
        ("drain",),
    ),
    Mutant(
        "a node that need not be left is left with one that must be",
        _SUCCESSION,
        "if stands_still(draft) or waited_enough(draft) or ends_for_size(draft, current):",
        "if stands_still(draft) or ends_for_size(draft, current):",
        ("announcement",),
    ),
    Mutant(
        "a smaller run waits for room that it does not need",
        _SUCCESSION,
        "if stands_still(draft) or waited_enough(draft) or ends_for_size(draft, current):",
        "if stands_still(draft) or waited_enough(draft):",
        ("announcement",),
    ),
    Mutant(
        "stayers get new ranks where the size does not change",
        _PLANS,
        "    if len(stays) + len(joins) != len(old):\n",
        "    if len(joins) <= len(old):\n",
        ("drain",),
    ),
    Mutant(
        "joiners get their label before the budget counts them",
        _BUDGET,
        "counted = labelled if in_place else {name",
        "counted = set() if in_place else {name",
        ("drain", "scale"),
    ),
    Mutant(
        "the parties of a hand-over look for its store at one that leaves",
        _PLANS,
        "(*roles.stays, *roles.leaves)[0].name], HANDOVER_PORT",
        "(*roles.leaves, *roles.stays)[0].name], HANDOVER_PORT",
        ("drain",),
    ),
    Mutant(
        "an attempt may take all the time that there is for the save",
        _PLANS,
        "limit=max(plan.seconds // 2, 1),",
        "limit=plan.seconds,",
        ("partys-agent-hung", "party-frozen", "drain"),
    ),
    Mutant(
        "attempts to hand over are not counted",
        _HANDING_OVER,
        "attempts, broken = upcoming.attempts + 1, upcoming.broken + bool(nodes)",
        "attempts, broken = 1, upcoming.broken + bool(nodes)",
        ("newcomers-killed",),
    ),
    Mutant(
        "a run that not all its members know of yet is asked to hand over",
        _PREPARING,
        "if any(run_told(pods[one.name].assignment) < current.run or not pods[one.name].ready for one in old):",
        "if any(not pods[one.name].ready for one in old):",
        ("scale", "drain"),
    ),
    Mutant(
        "an attempt with an unknown end is not named as lost",
        _HANDING_OVER,
        "attempted_runs=add_lost_run(upcoming.attempted_runs, plan.run),",
        "attempted_runs=upcoming.attempted_runs,",
        ("party-killed", "party-frozen", "deciding-put"),
    ),
    Mutant(
        "a newcomer that dies after it has joined is taken for one that never did",
        _HANDING_OVER,
        "told = draft.status.opened >= plan.run or reports_save(current.run, current)",
        "told = reports_save(current.run, current)",
        ("party-killed", "kill-pod", "scale"),
    ),
    Mutant(
        "a hand-over without evidence is waited for for ever",
        _HANDING_OVER,
        "    if draft.now >= known:\n        return succeed(draft, current, plan, intent)\n",
        "    if draft.now >= known and current.outcomes:\n        return succeed(draft, current, plan, intent)\n",
        ("grown-and-left-alone",),
    ),
    Mutant(
        "during a hand-over nothing else makes a run end",
        _HANDING_OVER,
        "    if draft.now >= patience or _has_no_time(draft, plan, found):\n        return after\n    held",
        "    held",
        ("second-reason", "drain", "scale"),
    ),
    Mutant(
        "a member that knows of a failed attempt gets the older run again",
        _MEMBERS,
        "if run_told(pod.assignment) > plan.run:",
        "if run_told(pod.assignment) < 0:",
        ("newcomers-killed",),
    ),
    Mutant(
        "steps that were handed over to a run that died at once are not lost",
        _ENDING,
        "if exit_cause.reason is not Reason.HANDED_OVER or _went_astray(draft, previous):",
        "if exit_cause.reason is not Reason.HANDED_OVER:",
        ("party-killed", "kill-pod", "drain"),
    ),
    Mutant(
        "any report of the newer run counts as a live take-over",
        _PLANS,
        "taken_over = any(one.taken_over_by == plan.run for one in current.outcomes)",
        "taken_over = any(one.run == plan.run for one in current.outcomes)",
        ("party-killed", "second-reason", "drain"),
    ),
    Mutant(
        "stayers begin before the pause after a lost member is over",
        _INTENTS,
        "        not_before = _begins(draft, current, found, not_before)\n",
        "        _begins(draft, current, found, not_before)\n",
        ("kill-pod", "code-failure"),
    ),
    Mutant(
        "reports of where a run has begun change no sum",
        _HISTORY,
        "steps_lost=max(0, status.steps_lost + new.steps_lost - old.steps_lost),",
        "steps_lost=status.steps_lost,",
        ("commit-damaged",),
    ),
)
