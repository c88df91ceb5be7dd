"""Each row of docs/on-call.md is a state that a test has produced."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
PAGE: Final = REPOSITORY / "docs" / "on-call.md"
SEEN: Final = {
    "`kubectl drain` repeats": "e2e/scenarios/test_handover.py::"
    "test_a_drained_member_is_replaced_while_everybody_trains",
    "cannot pull its image": "e2e/scenarios/test_handover_harmed.py::"
    "test_a_standby_whose_image_is_not_to_be_had_is_waited_for_while_everybody_trains",
    "fails again and again": "e2e/scenarios/test_trainer_at_fault.py::"
    "test_a_drain_whose_new_members_cannot_import_the_script_ends_no_training",
    "the time runs out: ExitTimeout": "e2e/scenarios/test_trainer_at_fault.py::"
    "test_a_hanging_trainer_holds_up_a_drain_no_longer_than_its_exit_timeout",
    "The store is down": "e2e/scenarios/test_storage_down.py::test_a_drain_waits_for_a_store_that_comes_back",
    "The operator's own node is drained": "e2e/scenarios/alone/test_operator_drained.py::"
    "test_the_drained_node_is_the_operators_too",
    "MemberWaitedFor": "tests/api/test_operator_reports.py::"
    "test_the_member_that_all_others_wait_for_is_named_with_its_node",
    "reason Straggler": "tests/api/test_operator_reports.py::"
    "test_a_member_that_holds_up_the_others_for_a_minute_is_named_with_its_node",
    "The error `NoProgress`": "e2e/scenarios/test_trainer_at_fault.py::"
    "test_a_rank_that_hangs_is_ended_by_its_agent_and_costs_no_finished_step",
    "since when no report came": "tests/api/test_operator_reports.py::"
    "test_once_no_member_has_reported_for_minutes_status_says_since_when_and_no_more",
    "TooManyCodeFailures": "e2e/scenarios/test_trainer_at_fault.py::"
    "test_a_rank_that_raises_fails_the_job_with_its_own_traceback",
    "StorageRefused": "tests/api/test_operator_process.py::"
    "test_a_job_whose_bucket_is_refused_waits_with_the_remedy_and_tries_again_by_itself",
    "PerdureJobWaits": "tests/api/test_operator_metrics.py::"
    "test_a_job_without_room_and_an_operator_that_does_not_lead_are_alerts",
    "smaller than `replicas`": "tests/api/test_operator_sizes.py::"
    "test_without_room_for_more_members_a_job_trains_with_those_it_has_and_grows_once_there_is",
    "`stepsLost` is 0": "e2e/scenarios/test_member_gone.py::test_a_killed_trainer_costs_no_finished_step",
    "A node went silent": "e2e/scenarios/test_nodes_gone.py::"
    "test_a_job_goes_on_without_a_node_that_has_gone_silent_and_loses_no_finished_step",
    "A node's fault": "e2e/scenarios/test_signals.py::"
    "test_what_a_faulty_node_has_computed_is_stored_nowhere_and_the_job_goes_on_from_its_last_commit",
    "above 0 after a kill": "tests/handover/test_mirrored.py::"
    "test_two_that_die_at_once_cost_the_steps_since_the_commit",
    "PerdureNoLeader": "tests/api/test_operator_metrics.py::"
    "test_a_job_without_room_and_an_operator_that_does_not_lead_are_alerts",
    "killed in the middle of a move": "e2e/scenarios/alone/test_operator_killed.py::"
    "test_a_leader_killed_in_the_middle_of_a_move",
    "`the certificates for reports are not kept now`": "tests/api/test_operator_reports.py::"
    "test_once_the_chart_is_applied_again_after_its_secret_was_deleted_members_learn_other_certificates",
    "After an upgrade": "e2e/scenarios/alone/test_operator_upgraded.py::"
    "test_an_operator_upgraded_and_rolled_back_disturbs_no_training",
}
"""What identifies a row, and the test that ends in it."""


def symptoms() -> list[str]:
    """The first column of each table."""
    rows = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    return [row for row in rows if row != "You see"]


def test_each_row_has_one_test_and_each_test_a_row() -> None:
    rows = symptoms()
    assert len(rows) == len(SEEN)
    for row in rows:
        assert sum(words in row for words in SEEN) == 1, row


def test_these_tests_exist() -> None:
    for seen in SEEN.values():
        file, _, name = seen.partition("::")
        tree = ast.parse((REPOSITORY / file).read_text())
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, seen
