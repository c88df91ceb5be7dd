"""Bugs in keeping spares, and in taking them for members."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

STANDBY_POOL: Final = (
    Mutant(
        "a warm spare stays beside the run while a member's place is empty",
        "perdure_operator.decide:take_spares",
        "if not taken or taken == draft.next_members:",
        "if taken or taken == draft.next_members:",
    ),
    Mutant(
        "of two standbys the one that comes later is taken",
        "perdure_operator.decide:soonest",
        "key=lambda name: -how_far(draft, pods.get(name))",
        "key=lambda name: how_far(draft, pods.get(name))",
    ),
    Mutant(
        "a spare on a node that leaves takes the leaver's place",
        "perdure_operator.decide:take_spares",
        "there = [name for name in draft.spares if name in pods and (not why_unfit(draft, name, pods[name]))]",
        "there = [name for name in draft.spares if name in pods]",
    ),
    Mutant(
        "a job that waits without a run keeps its spares",
        "perdure_operator.decide:_most",
        "if draft.current is None and draft.blocked and (not _pauses(draft)):",
        "if draft.current is None and draft.blocked and _pauses(draft):",
    ),
    Mutant(
        "spares of a job that is suspended stay",
        "perdure_operator.decide:_most",
        "if elastic is None or snapshot.spec.suspend or snapshot.deleting:",
        "if elastic is None or snapshot.deleting:",
        ("suspended-until-empty",),
    ),
    Mutant(
        "spares are made while a failure has its pause",
        "perdure_operator.decide:_fill",
        "pauses = (begun, paused_until(draft), backoff_until(draft.status.failures))",
        "pauses = (begun, paused_until(draft))",
    ),
    Mutant(
        "a refused spare is created in each round",
        "perdure_operator.decide:_drop_unfit",
        "why_useless(draft, name, pods.get(name)) or _refused(draft, name)",
        "why_useless(draft, name, pods.get(name))",
        ("quota",),
    ),
    Mutant(
        "a spare on a sick node is recreated in a loop",
        "perdure_operator.decide:why_useless",
        "return node_to_leave(draft, pod)",
        "return unusable_node(draft, pod)",
        tests=("tests/unit/operator/decide/test_wishes.py",),
    ),
    Mutant(
        "a member on an avoided node cannot be planned with",
        "perdure_operator.decide:_keeps_from_training",
        "return None if trains or stands_still(draft) or waited_enough(draft) else signal",
        "return None if stands_still(draft) or waited_enough(draft) else signal",
        tests=("tests/unit/operator/decide/test_avoiding.py", "tests/unit/operator/decide/test_wishes.py"),
    ),
    Mutant(
        "a save is requested in each round",
        "perdure_operator.decide:ask_for_save",
        "new = [one for one in wanted if one not in kept and (room or is_users(one))]",
        "new = list(wanted)",
        tests=("tests/unit/operator/decide/test_saving.py",),
    ),
    Mutant(
        "the row of spares that were replaced never ends",
        "perdure_operator.decide:_one_more",
        "lately = old if old and draft.now < later(old.last_time, FORGOTTEN_SECONDS) else None",
        "lately = old",
    ),
    Mutant(
        "spares are made before the run has begun",
        "perdure_operator.decide:_fill",
        "if missing <= 0 or current is None or current.outcomes or (not current.warm):",
        "if missing <= 0 or current is None or current.outcomes:",
    ),
    Mutant(
        "the pod of a spare is deleted as an orphan",
        "perdure_operator.decide:_names_in_use",
        "set(draft.next_members) | set(draft.spares) | _of_previous(draft)",
        "set(draft.next_members) | _of_previous(draft)",
        ("drain",),
    ),
    Mutant(
        "a pod that a larger run did not wait for is deleted",
        "perdure_operator.decide:give_back",
        "return draft.set_aside((*draft.spares, *made))",
        "return draft.set_aside(draft.spares)",
    ),
    Mutant(
        "the first failure after a commit has a needless pause",
        "perdure_operator.decide:_goes_on_at_once",
        "return last.last_time is None or not last.consecutive or draft.now",
        "return last.last_time is None or draft.now",
    ),
    Mutant(
        "failures in a row have no pause",
        "perdure_operator.decide:_goes_on_at_once",
        "or draft.now >= later(last.last_time, CALM_SECONDS)",
        "or draft.now >= last.last_time",
    ),
    Mutant(
        "a failure of the script has no pause",
        "perdure_operator.decide:_goes_on_at_once",
        "if draft.snapshot.spec.elastic is None or exit_cause.reason is not Reason.INFRASTRUCTURE_FAILURE:",
        "if draft.snapshot.spec.elastic is None:",
    ),
)
