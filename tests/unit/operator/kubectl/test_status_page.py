"""`kubectl perdure status` tells what the operator wrote, of each stage, and nothing internal."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import timedelta

import pytest

from perdure.wire import CommitRef, ExitKind, Outcome, write_outcome
from perdure_operator.cluster.protocol import JOBS
from perdure_operator.kubectl.job import JobSeen, summary
from perdure_operator.kubectl.page import Table
from perdure_operator.kubectl.screen import draw
from perdure_operator.kubectl.status_page import job_page, page_of_job, pod_state, table_of_jobs
from perdure_operator.state.snapshot import PodView, Terminated
from tests.support.raw import NOW, job
from tests.support.stage import KEY, Stage
from tests.unit.operator.kubectl.seen import cordoned, planned, read, seen, training


def shown(job: JobSeen) -> str:
    out = io.StringIO()
    draw(page_of_job(job_page(job), job.now), out)
    return out.getvalue()


def row(job: JobSeen) -> dict[str, str]:
    """The job's row in the table, by its heads."""
    (table,) = table_of_jobs([summary(job)], job.now, namespaces=True)
    assert isinstance(table, Table)
    (cells,) = table.rows
    return dict(zip(table.heads, cells, strict=True))


def test_a_job_that_trains_waits_for_nothing() -> None:
    told = summary(seen(training()))
    assert (told.stage, told.members, told.wanted, told.run) == ("running", 2, 2, 1)
    assert (told.saved, told.waits_for, told.disrupted) == (None, None, None)


def test_a_job_that_moves_tells_why_what_it_waits_for_and_until_when() -> None:
    stage = cordoned()
    told, new = row(seen(stage)), stage.names()[-1]
    until = (stage.now + timedelta(seconds=30)).strftime("%H:%M:%SZ")
    assert told["DISRUPTED BY"] == "node n2 is cordoned"
    assert told["WAITS FOR"].endswith(f"waiting until {new} is Ready")
    assert (told["STAGE"], told["UNTIL"]) == ("preparing", until)


def test_members_have_the_ranks_of_the_newest_run_that_they_are_planned_for() -> None:
    told = job_page(seen(planned(processesPerReplica=2)))
    assert told.job.stage == "handing over"
    assert told.job.waits_for is not None
    assert told.job.waits_for.until is None  # evidence ends it, and no time
    assert [(one.role, one.run, one.ranks, one.node) for one in told.members] == [
        ("member", 2, "0-1", "n1"),
        ("leaving", 1, "2-3", "n2"),
        ("next", 2, "2-3", "n3"),
    ]


def test_a_move_that_is_over_is_told_with_its_pause_what_it_cost_and_why_it_was_no_better() -> None:
    told = job_page(seen(planned(completion="ExitCode")))
    (table,) = [part for part in page_of_job(told, NOW) if isinstance(part, Table) and part.title == "Last moves"]
    last = dict(zip(table.heads, table.rows[-1], strict=True))
    assert (last["HOW"], last["BECAUSE"], last["LOST"]) == ("in place", "node n2 is cordoned", "0")
    assert last["WHY NOT BETTER"] == "with completion ExitCode its script has no Session"


def test_a_step_is_told_with_the_time_of_its_report() -> None:
    stage = planned()
    commit = CommitRef(seq=9, step=450)
    stage.end_pod(stage.names()[1], write_outcome(Outcome(ExitKind.CHECKPOINTED, 1, 1, 450, commit=commit, opened=1)))
    assert row(seen(stage))["STEP"] == "-"  # the operator has not seen it yet
    stage.settle()
    stage.now += timedelta(seconds=300)
    told = seen(stage)
    assert (row(told)["STEP"], row(told)["SAVED"]) == ("450", "5m ago")
    assert "step 450, reported 5m ago" in shown(told)


def test_a_job_that_nobody_has_looked_at_and_one_that_cannot_be_read_say_so() -> None:
    stage = Stage()
    stage.apply()
    raw = asyncio.run(stage.cluster.get(JOBS, *KEY))
    told = summary(read(stage, raw))
    assert (told.stage, told.wanted) == ("between", 2)
    assert told.waits_for is not None
    assert "is one running" in told.waits_for.message
    broken = summary(read(stage, raw | {"spec": {**raw["spec"], "replicas": "many"}}))
    assert broken.stage == "unreadable"
    assert broken.waits_for is not None
    assert broken.waits_for.message.startswith("field replicas: ")


def test_nothing_internal_and_no_token_is_shown() -> None:
    stage = planned()
    assignment = stage.pods()[0]["metadata"]["annotations"]["perdure.dev/assignment"]
    told = seen(stage)
    everything = shown(told) + job_page(told).model_dump_json(by_alias=True)
    assert json.loads(assignment)["handover"]["token"] not in everything
    assert stage.pods()[0]["metadata"]["uid"] not in everything
    assert "10.0.0." in assignment
    assert "10.0.0." not in everything


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"ready": True, "phase": "Running"}, "Ready"),
        ({"phase": "Running"}, "Running, not Ready"),
        ({"unschedulable": "0/3 nodes are available"}, "Pending: 0/3 nodes are available"),
        (
            {"waiting_reason": "ErrImagePull", "waiting_message": "not found"},
            "Pending: ErrImagePull: not found",
        ),
        ({"waiting_reason": "CrashLoopBackOff"}, "Pending: CrashLoopBackOff"),
        ({"initializing": "mesh"}, "Pending: init container mesh is running"),
        ({"pulling": True}, "Pending: its image is being pulled"),
        ({"deleting": True, "deletion_deadline": NOW}, "Terminating, until 03:04:05Z"),
        ({"terminated": Terminated(exit_code=137, reason="OOMKilled")}, "OOMKilled, exit status 137"),
        ({"terminated": Terminated(exit_code=1), "reason": "Evicted"}, "Evicted: ended, exit status 1"),
        ({"gone": True}, "gone"),
    ],
)
def test_a_pods_state_is_what_its_kubelet_or_the_scheduler_reports(changes: dict[str, object], state: str) -> None:
    pod = PodView.model_validate({"name": "digits-3f2a-0", "uid": "u"} | changes)
    assert pod_state(pod, NOW) == state


def test_a_suspended_job_is_called_so() -> None:
    stage = Stage()
    stage.apply(job(suspend=True))
    stage.start()
    stage.wait(1)
    assert summary(seen(stage)).stage == "Suspended"
