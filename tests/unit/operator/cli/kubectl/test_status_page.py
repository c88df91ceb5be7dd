"""`kubectl perdure status` tells what the operator wrote, of each stage, and nothing internal."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import CommitRef, ExitKind, Outcome, write_outcome
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import (
    Condition,
    HistoryEntry,
    LastSave,
    MoveAct,
    OpenAccount,
    Phase,
    SecondsSpent,
    Straggler,
    TimeAccount,
    TrainingProgress,
)
from perdure_operator.cli.kubectl.job import JobSeen, SavedStep, _until, saved_step, summary
from perdure_operator.cli.kubectl.page import Table
from perdure_operator.cli.kubectl.screen import draw
from perdure_operator.cli.kubectl.status_page import (
    _by_rank,
    _conditions,
    job_page,
    page_of_job,
    pod_state,
    table_of_jobs,
)
from perdure_operator.cluster.protocol import JOBS
from perdure_operator.state.snapshot import PodView, Terminated
from tests.support.raw import NOW, job
from tests.support.stage import KEY, Stage
from tests.unit.operator.cli.kubectl.seen import cordoned, planned, read, seen, training


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
    roles = [one.role for one in job_page(seen(stage)).members]
    assert roles == ["member", "has to leave", "next"]
    assert (told["STAGE"], told["UNTIL"]) == ("preparing", f"{until}, in 30s")
    assert until not in told["WAITS FOR"]


def test_members_have_the_ranks_of_the_newest_run_that_they_are_planned_for() -> None:
    told = job_page(seen(planned(processesPerReplica=2)))
    assert told.job.stage == "handing over"
    assert told.job.waits_for is not None
    assert told.job.waits_for.until is None  # evidence ends it, and no time
    assert [(one.role, one.run, one.ranks, one.node) for one in told.members] == [
        ("member", 2, "0-1", "n1"),
        ("next", 2, "2-3", "n3"),
        ("leaving", 1, "2-3", "n2"),
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
    assert (row(seen(stage))["STEP"], row(seen(stage))["SAVED"]) == ("unknown", "unknown")  # nobody has seen it yet
    assert "unknown: no member has reported a commit yet" in shown(seen(stage))
    stage.settle()
    stage.now += timedelta(seconds=300)
    told = seen(stage)
    assert row(told)["SAVED"] == "450, 5m ago"
    assert "step 450, 5m ago; newer commits are reported when members end" in shown(told)


def test_a_commit_is_as_old_as_the_first_run_that_knew_it() -> None:
    entries = tuple(HistoryEntry(run=run, size=2, kept=450, reached=460, time=NOW + timedelta(run)) for run in range(3))
    status = seen(training()).status.model_copy(update={"step": 450, "history": entries})
    assert saved_step(status) == SavedStep(step=450, time=NOW)
    reached = (HistoryEntry(run=1, size=2, kept=400, reached=450, time=NOW),)
    assert saved_step(status.model_copy(update={"history": reached})) == SavedStep(step=450)


def test_what_rank_0_reports_while_it_trains_is_shown_as_long_as_it_is_new() -> None:
    stage = training()
    told, now = seen(stage), stage.now
    progress = TrainingProgress(run=1, step=1204, death_costs="at most 1 finished step", observed_at=now)
    save = LastSave(step=1200, time=now - timedelta(seconds=60), observed_at=now)
    status = told.status.model_copy(update={"step": 450, "progress": progress, "last_save": save})
    reporting = replace(told, record=replace(told.record, status=status))
    assert (row(reporting)["STEP"], row(reporting)["SAVED"]) == ("1204", "1200, 60s ago")
    assert "1204, as its rank 0 reports" in shown(reporting)
    assert "newer commits" not in shown(reporting)
    assert "A death costs  at most 1 finished step, as its rank 0 reports" in shown(reporting)
    silent = replace(reporting, now=now + timedelta(seconds=181))
    assert row(silent)["STEP"] == "unknown"
    assert "A death costs" not in shown(silent)


def test_what_a_death_cost_an_earlier_run_is_not_shown() -> None:
    told = seen(training())
    progress = TrainingProgress(run=0, step=9, death_costs="no finished step", observed_at=told.now)
    status = told.status.model_copy(update={"progress": progress})
    assert "A death costs" not in shown(replace(told, record=replace(told.record, status=status)))


def test_whether_members_can_change_live_and_how_long_a_save_takes_is_shown_as_rank_0_reports_it() -> None:
    told = seen(training())

    def page(after: float = 0.0, **fields: Any) -> str:
        status = told.status.model_copy(
            update={"progress": TrainingProgress(run=1, step=9, observed_at=told.now, **fields)}
        )
        record = replace(told.record, status=status)
        return " ".join(shown(replace(told, record=record, now=told.now + timedelta(seconds=after))).split())

    refuses: dict[str, Any] = {
        "live": False,
        "live_why": "a DeviceMesh of the script's own",
        "required_grace_seconds": 13,
    }
    assert "Moves live no: a DeviceMesh of the script's own, as its rank 0 reports" in page(**refuses)
    assert "A save takes about 13s, as its rank 0 reports" in page(**refuses)
    assert "Moves live yes, as its rank 0 reports" in page(live=True)
    assert "Moves live no, as its rank 0 reports" in page(live=False)
    for page_of in (page(), page(181, **refuses)):
        assert "Moves live" not in page_of
        assert "A save takes" not in page_of


def test_the_scripts_values_are_shown_as_long_as_rank_0_is_heard() -> None:
    told = seen(training())
    progress = TrainingProgress(run=1, step=9, observed_at=told.now, values={"loss": 0.25, "accuracy": 0.93})
    told = replace(told, record=replace(told.record, status=told.status.model_copy(update={"progress": progress})))
    assert "Values accuracy 0.93, loss 0.25, as its rank 0 reports" in " ".join(shown(told).split())
    assert "Values" not in shown(replace(told, now=told.now + timedelta(seconds=181)))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"handover_act": MoveAct.CONNECTING}, "Hand-over it trains on, while old and new members connect"),
        ({"handover_act": MoveAct.MOVING}, "Hand-over its ranks stand, and their state goes to the new members"),
        ({"handover_act": MoveAct.VOTING}, "Hand-over its ranks stand and have voted: the log decides"),
        ({"data_wait_percent": 12}, "Waits for data 12 % of each step"),
        ({"batch": 512}, "Batch 512 samples in a step"),
        (
            {"batch": 512, "efficiency_percent": 89},
            "Batch 512 samples in a step, of which each wins 89 % of its best",
        ),
        ({"save_stall_seconds": 0.412}, "A save stops it for 0.41s"),
    ],
    ids=["connects", "moves", "votes", "waits for data", "batch", "efficiency", "save"],
)
def test_what_rank_0_is_at_is_shown_as_long_as_it_is_heard(fields: dict[str, Any], line: str) -> None:
    told = seen(training())
    progress = TrainingProgress(run=1, step=9, observed_at=told.now, **fields)
    told = replace(told, record=replace(told.record, status=told.status.model_copy(update={"progress": progress})))
    assert f"{line}, as its rank 0 reports" in " ".join(shown(told).split())
    assert line not in " ".join(shown(replace(told, now=told.now + timedelta(seconds=181))).split())


def test_a_member_that_holds_up_the_others_is_named_as_long_as_that_is_new() -> None:
    told = seen(training())
    one = Straggler(name="digits-1", node="n2", rank=1, own_percent=83, others_percent=45, since=told.now)

    def page(*, named: bool, after: float = 0.0) -> str:
        slow = one.model_copy(update={"named": named})
        progress = TrainingProgress(run=1, step=9, stragglers=(slow,), observed_at=told.now)
        status = told.status.model_copy(update={"progress": progress})
        record = replace(told.record, status=status)
        return shown(replace(told, record=record, now=told.now + timedelta(seconds=after)))

    assert "Straggler  rank 1 (digits-1 on n2) holds up the others since" in page(named=True)
    assert "Straggler" not in page(named=False)
    assert "Straggler" not in page(named=True, after=181)


def test_until_is_a_time_that_the_message_names_as_the_end() -> None:
    told = seen(cordoned())
    assert told.status.current is not None
    intent = told.status.current.intent
    assert intent is not None
    ready_by = intent.ready_by
    assert ready_by is not None
    assert _until(told.status, f"waits for new members until {ready_by:%H:%M:%SZ}") == ready_by
    assert _until(told.status, "no time limit: the run is not stopped while new members fail") is None


def test_a_time_that_nobody_has_acted_on_and_a_spec_that_nobody_has_read_ask_for_the_operator() -> None:
    stage = cordoned()
    late = replace(seen(stage), now=stage.now + timedelta(hours=1))
    assert row(late)["UNTIL"].endswith(", 59m ago")
    assert ", 59m ago: is an operator running?" in shown(late)
    newer = replace(late, record=replace(late.record, generation=late.record.generation + 1))
    assert row(newer)["WAITS FOR"] == "an operator has not looked at the newest spec yet: is one running?"


def test_a_job_of_which_only_the_spec_cannot_be_read_still_tells_its_status() -> None:
    stage = training()
    raw = asyncio.run(stage.cluster.get(JOBS, *KEY))
    told = read(stage, raw | {"spec": {**raw["spec"], "replicas": "many"}})
    assert (row(told)["STAGE"], row(told)["SIZE"]) == ("unreadable", "2/?")
    assert "run 1, 2 of an unknown number of members" in shown(told)


def test_a_job_whose_status_cannot_be_read_claims_nothing() -> None:
    stage = training()
    raw = asyncio.run(stage.cluster.get(JOBS, *KEY))
    told = read(stage, raw | {"status": {**raw["status"], "run": "many"}})
    assert (row(told)["SIZE"], row(told)["SAVED"]) == ("?/2", "unknown")
    assert "its status cannot be read, so nothing is known of its run" in shown(told)
    assert "no member has reported" not in shown(told)
    page = json.loads(job_page(told).model_dump_json(by_alias=True))["job"]
    assert (page["members"], page["run"], page["saved"]) == (None, None, None)


def test_a_job_that_has_failed_says_why_and_one_that_is_deleted_says_so() -> None:
    stage = training()
    told = seen(stage)
    failed = Condition(
        type=ConditionType.FAILED,
        status="True",
        reason="BackoffLimitExceeded",
        message="6 of 6",
        last_transition_time=NOW,
    )
    status = told.status.model_copy(update={"conditions": (failed,), "phase": Phase.FAILED, "completion_time": NOW})
    over = replace(told, record=replace(told.record, status=status))
    assert (row(over)["STAGE"], row(over)["WAITS FOR"]) == ("Failed", "6 of 6")
    assert "Because  6 of 6" in shown(over)
    assert "newer commits" not in shown(over)
    assert row(replace(told, record=replace(told.record, deleting=True)))["STAGE"] == "Deleting"


@pytest.mark.parametrize("kind", [ConditionType.PROGRESSING, ConditionType.STORAGE_REACHABLE, ConditionType.SIZED])
def test_a_run_that_stands_or_cannot_save_or_has_another_size_says_so(kind: ConditionType) -> None:
    told = seen(training())
    words = "2 members, 4 are wanted: new members are made at 03:14:15Z"
    condition = Condition(type=kind, status="False", reason="Why", message=words, last_transition_time=NOW)
    status = told.status.model_copy(update={"conditions": (*told.status.conditions, condition)})
    assert row(replace(told, record=replace(told.record, status=status)))["WAITS FOR"] == words


def test_a_member_without_a_pod_is_listed_as_gone_until_its_end_is_known() -> None:
    told = seen(training())
    assert told.pods is not None
    without = replace(told, pods=told.pods[1:])
    gone, here = job_page(without).members
    assert (gone.name, gone.role, gone.ranks, gone.node, gone.state) == (told.pods[0].name, "member", "0", "n1", "gone")
    assert here.state == "Ready"


def test_of_many_members_those_that_are_ready_are_counted_and_the_others_stand_in_the_order_of_ranks() -> None:
    told = job_page(seen(training()))
    first = told.members[0]
    many = [first.model_copy(update={"name": f"d-{rank}", "ranks": str(rank)}) for rank in range(40)]
    many[9] = many[9].model_copy(update={"state": "Running, not Ready"})
    page = page_of_job(told.model_copy(update={"members": tuple(many)}), NOW)
    (table,) = [part for part in page if isinstance(part, Table) and part.heads[0] == "POD"]
    assert [one[0] for one in table.rows] == ["d-9"]
    assert "39 members are Ready: --members lists them." in page
    every = page_of_job(told.model_copy(update={"members": tuple(many)}), NOW, every=True)
    (table,) = [part for part in every if isinstance(part, Table) and part.heads[0] == "POD"]
    assert len(table.rows) == 40
    many.reverse()
    assert [one.name for one in sorted(many, key=_by_rank)] == [f"d-{rank}" for rank in range(40)]


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
        ({"deleting": True, "deletion_deadline": NOW}, "Terminating, until 03:04:05Z, now"),
        (
            {"deleting": True, "deletion_deadline": NOW - timedelta(minutes=9)},
            "Terminating, until 02:55:05Z, 9m ago: is its kubelet running?",
        ),
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
    told = seen(stage)
    assert summary(told).stage == "Suspended"
    assert "CONDITION" not in shown(told)  # suspended is what somebody wants


@pytest.mark.parametrize("kind", ["Progressing", "StorageReachable", "CheckpointFresh", "Saved", "Protected"])
def test_a_condition_is_shown_unless_it_is_as_it_should_be(kind: str) -> None:
    for status, count in (("False", 1), ("Unknown", 1), ("True", 0)):
        one = Condition(type=kind, status=status, reason="Why", message="what to do", last_transition_time=NOW)
        assert len(_conditions([one]).rows) == count, status


@pytest.mark.parametrize("kind", ["HandingOver", "Failed"])
def test_a_condition_that_tells_of_trouble_is_shown_while_it_is_true(kind: str) -> None:
    for status, count in (("False", 0), ("True", 1)):
        one = Condition(type=kind, status=status, reason="Why", message="what to do", last_transition_time=NOW)
        assert len(_conditions([one]).rows) == count, status


def test_where_the_jobs_time_went_is_told_with_the_largest_losses_first() -> None:
    told = seen(training())

    def page(account: TimeAccount | None) -> str:
        status = told.status.model_copy(update={"time_account": account})
        return " ".join(shown(replace(told, record=replace(told.record, status=status))).split())

    spent = SecondsSpent(productive=1010.0, nodes=20.0, save=50.0, handover=30.0, hang=0.4)
    account = TimeAccount(spent=spent, open=OpenAccount(run=1, unsaved=100.0, unfinished=4.6))
    assert "Goodput 81.6 % of the time, 15m; lost: save 50s, hand-over 30s, nodes 20s; 105s not decided yet" in page(
        account
    )
    good = TimeAccount(spent=SecondsSpent(productive=60.0), open=OpenAccount(run=1))
    assert "Goodput 100.0 % of the time, 60s Now" in page(good)
    assert "Goodput" not in page(TimeAccount(spent=SecondsSpent(nodes=60.0)))
    assert "Goodput" not in page(None)
