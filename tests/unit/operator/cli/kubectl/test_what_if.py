"""`kubectl perdure what-if drain` tells what holds evictions, until when, what is at risk, and what nobody knows."""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings

from perdure.wire import CommitRef, ExitKind, Outcome, write_outcome
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import Condition, LastSave, TrainingProgress
from perdure_operator.cli.kubectl import reading
from perdure_operator.cli.kubectl.forward import How
from perdure_operator.cli.kubectl.page import Table
from perdure_operator.cli.kubectl.screen import draw
from perdure_operator.cli.kubectl.what_if import (
    Drain,
    DrainOfJob,
    DrainSeen,
    Rules,
    Unseen,
    cadence,
    page,
    table_of_each,
    what_if,
)
from perdure_operator.cluster.protocol import PODS
from perdure_operator.state.snapshot import Budget, Snapshot
from tests.support.raw import NOW
from tests.support.stage import KEY, Stage
from tests.unit.operator.cli.kubectl.seen import moved, training
from tests.unit.operator.decide.test_total import SNAPSHOTS

RULES = Rules("the shipped ones alone", "1.2", "1.2")


def snapshot(stage: Stage) -> Snapshot:
    seen = asyncio.run(stage.observer.observe(KEY))
    assert seen is not None
    return seen


def asked(stage: Stage, *nodes: str, warm_ups: tuple[float, ...] = ()) -> DrainOfJob:
    (job,) = what_if([DrainSeen(snapshot(stage), warm_ups)], nodes, stage.now, RULES).jobs
    return job


def text(told: Drain) -> str:
    out = io.StringIO()
    draw(page(told), out)
    return " ".join(out.getvalue().split())


def test_evictions_are_refused_until_the_members_there_have_ended() -> None:
    stage = moved()
    told = asked(stage, "n3", warm_ups=(4.2, 5.0))
    assert told.members == (stage.names()[1],)
    assert told.evictions.refused
    assert told.evictions.first_after == 6.0  # the quiet second, and the longest time until a pod was Ready
    assert told.evictions.at_latest == stage.now + timedelta(seconds=1 + 30 + 600)
    assert asked(stage, "n3").evictions.first_after is None
    assert "how long they take to be Ready" in asked(stage, "n3").not_known


def test_a_member_that_is_not_ready_and_one_without_a_budget_are_evicted_at_once() -> None:
    stage = training()
    stage.cluster.change(PODS, "ns", stage.names()[1], _not_ready)
    assert not asked(stage, "n2").evictions.refused
    assert asked(stage, "n1").evictions.refused
    bare = snapshot(training()).model_copy(update={"budget": None})
    told = what_if([DrainSeen(bare)], ["n1"], NOW, RULES)
    (job,) = told.jobs
    assert not job.evictions.refused
    assert job.evictions.unprotected == job.members
    assert "with 120 s to save" in job.evictions.why
    assert job.at_risk.startswith("the steps since its last commit")
    assert "1 at once, unprotected" in text(told)
    assert job.with_room.how is not How.LIVE  # a member that has two minutes is not waited for


def test_new_members_that_take_longer_than_they_are_awaited_are_told_of() -> None:
    quick = what_if([DrainSeen(snapshot(moved()), (5.0,))], ["n3"], moved().now, RULES)
    slow = what_if([DrainSeen(snapshot(moved()), (31.0,))], ["n3"], moved().now, RULES)
    assert "its pods took up to 5s to be Ready Evictions" in text(quick)
    assert (
        "its pods took up to 31s to be Ready: the operator waits for new ones only until 31s after the cordon"
        in text(slow)
    )


def test_a_budget_that_leaves_room_for_one_eviction_admits_it() -> None:
    loose = snapshot(training())
    loose = loose.model_copy(update={"budget": Budget(min_available=1, uid="u")})
    (told,) = what_if([DrainSeen(loose)], ["n1"], NOW, RULES).jobs
    assert (told.evictions.refused, told.evictions.unprotected) == (False, told.members)
    (both,) = what_if([DrainSeen(loose)], ["n1", "n2"], NOW, RULES).jobs
    assert (both.evictions.refused, both.evictions.unprotected) == (True, both.members[:1])
    assert "the first 1 of 2 members there are evicted at once" in both.evictions.why


def test_pods_that_have_ended_hold_no_drain() -> None:
    stage = training()
    ended = write_outcome(Outcome(ExitKind.COMPLETED, 1, 1, 9, commit=CommitRef(seq=3, step=9), opened=1))
    stage.end_pod(stage.names()[1], ended)
    assert what_if([DrainSeen(snapshot(stage))], ["n2"], NOW, RULES).jobs == ()
    assert len(what_if([DrainSeen(snapshot(stage))], ["n1"], NOW, RULES).jobs) == 1


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(SNAPSHOTS)
def test_every_job_gets_an_answer_in_whatever_state_it_is(seen: Snapshot) -> None:
    told = what_if([DrainSeen(seen)], [node.name for node in seen.nodes], seen.now, RULES)
    assert Drain.model_validate_json(told.model_dump_json()) == told
    assert text(told)


def _not_ready(pod: dict[str, object]) -> None:
    status = pod["status"]
    assert isinstance(status, dict)
    status["conditions"] = [{"type": "Ready", "status": "False"}]


def test_a_second_budget_is_named_as_it_refuses_every_eviction() -> None:
    two = snapshot(training()).model_copy(update={"foreign_budgets": ("theirs",)})
    (told,) = what_if([DrainSeen(two)], ["n1"], NOW, RULES).jobs
    assert told.evictions.refused
    assert told.evictions.why.endswith("theirs")


def test_a_drain_that_never_ends_is_told_so() -> None:
    told = what_if([DrainSeen(snapshot(training(disruption={"signals": {"cordon": "Ignore"}})))], ["n1"], NOW, RULES)
    assert "without room that is never" in text(told)
    assert "its reaction to a cordoned node is Ignore" in text(told)


def test_steps_at_risk_are_those_since_the_last_commit() -> None:
    assert asked(moved(), "n3").at_risk.startswith("none; if a member dies meanwhile")
    assert "of step 450" in asked(moved(), "n3").at_risk
    seen = snapshot(moved())
    assert seen.status.current
    progress = TrainingProgress(
        run=seen.status.current.run, step=451, death_costs="at most 1 finished step", observed_at=seen.now
    )
    heard = seen.model_copy(update={"status": seen.status.model_copy(update={"progress": progress})})
    (told,) = what_if([DrainSeen(heard)], ["n3"], seen.now, RULES).jobs
    assert told.at_risk.startswith(
        "none; if a member dies before the move, at most 1 finished step, as rank 0 reports; in the middle of it, at "
        "most the steps since its last commit ("
    )
    assert "one every 50 steps" in asked(training(checkpoint=EVERY_FIFTY), "n1").at_risk
    assert "has not saved" in asked(training(completion="ExitCode"), "n1").at_risk
    assert cadence(CheckpointPolicy(uri="s3://b/c", every_epochs=2)) == "one every 2 epochs"
    assert cadence(CheckpointPolicy(uri="s3://b/c")) == "one every 300 seconds"


def reporting(stage: Stage, *, advances: str = "True", ago: float = 0.0, **fields: Any) -> Snapshot:
    """The job, as one of which rank 0 has reported so long ago: step 4510, a commit of step 4500, and such progress."""
    seen = snapshot(stage)
    assert seen.status.current
    heard = seen.now - timedelta(seconds=ago)
    progress = TrainingProgress(run=seen.status.current.run, step=4510, observed_at=heard, **fields)
    found = Condition(
        type="Progressing",
        status=advances,
        reason="NoProgress",
        message="rank 0 reports no new step since 12:00:00Z",
        last_transition_time=heard,
    )
    update = {
        "progress": progress,
        "last_save": LastSave(step=4500, time=heard, observed_at=heard),
        "conditions": (*seen.status.conditions, found),
    }
    return seen.model_copy(update={"status": seen.status.model_copy(update=update)})


def test_with_reports_the_last_commit_is_the_one_that_rank_0_reports() -> None:
    (told,) = what_if([DrainSeen(reporting(moved()))], ["n3"], moved().now, RULES).jobs
    assert "the last one known is of step 4500" in told.at_risk
    assert "of step 450;" not in told.at_risk


def test_whether_members_make_progress_is_known_where_they_report_it() -> None:
    unknown = "whether its members make progress"
    for advances, ago, known in (("True", 0, True), ("Unknown", 0, False), ("True", 600, False), ("False", 600, False)):
        seen = reporting(moved(), advances=advances, ago=ago)
        (told,) = what_if([DrainSeen(seen)], ["n3"], seen.now, RULES).jobs
        assert (unknown in told.not_known) is not known, (advances, ago)
        assert (told.with_room.how, told.hangs) == (How.LIVE, ""), (advances, ago)
    assert unknown in asked(moved(), "n3").not_known


def test_a_run_that_hangs_is_not_foretold_to_go_on_live() -> None:
    refuses = reporting(moved(), advances="False", live=False)
    assert what_if([DrainSeen(refuses)], ["n3"], refuses.now, RULES).jobs[0].with_room.how is How.HANGS
    seen = reporting(moved(), advances="False")
    drained = what_if([DrainSeen(seen, (5.0,))], ["n3"], seen.now, RULES)
    (told,) = drained.jobs
    assert (told.with_room.how, told.without_room.how) == (How.HANGS, How.RECREATE)
    assert told.evictions.first_after is None
    assert told.at_risk.startswith("at most the steps since its last commit")
    assert told.at_risk.endswith("of step 4500: members that hang do not save")
    assert "whether its members make progress" not in told.not_known
    page = text(drained)
    assert "Progress rank 0 reports no new step since 12:00:00Z" in page
    assert "With room hangs: the run changes its members between two steps" in page
    assert " live " not in page.partition("Job ")[0]


def test_a_script_that_reports_that_it_cannot_change_live_is_foretold_to_go_on_in_place_and_why() -> None:
    why = "a DeviceMesh of the script's own"
    foretold = (How.IN_PLACE, why)
    for stage, fields, expected in (
        (moved(), {"live": False, "live_why": why}, foretold),
        (moved(), {"live": True}, (How.LIVE, "")),
        (moved(), {}, (How.LIVE, "")),
        (training(), {"live": False, "live_why": why}, foretold),
    ):
        seen = reporting(stage, **fields)
        (told,) = what_if([DrainSeen(seen)], [seen.pods[-1].node], seen.now, RULES).jobs
        assert (told.with_room.how, told.with_room.why) == expected, fields
    old = reporting(moved(), live=False, live_why=why, ago=600)
    assert what_if([DrainSeen(old)], ["n3"], old.now, RULES).jobs[0].with_room.how is How.LIVE


def test_a_script_that_reports_that_it_can_change_live_leaves_no_doubt_of_it() -> None:
    seen = reporting(training(), live=True)
    (told,) = what_if([DrainSeen(seen)], ["n2"], seen.now, RULES).jobs
    assert told.with_room.how is How.LIVE
    assert not any("handed over live" in one for one in told.not_known)


def test_where_no_member_was_asked_to_leave_yet_a_save_takes_as_long_as_rank_0_reports() -> None:
    unasked: dict[str, Any] = {"required_grace_seconds": 13, "live": False, "live_why": "it refuses"}
    seen = reporting(training(), **unasked)
    assert seen.status.exit_seconds is None
    (told,) = what_if([DrainSeen(seen, (5.0,))], ["n2"], seen.now, RULES).jobs
    assert told.evictions.first_after == 1.0 + 5.0 + 13.0
    assert not any("take to save" in one for one in told.not_known)
    bare = seen.model_copy(update={"budget": None})
    (told,) = what_if([DrainSeen(bare)], ["n2"], seen.now, RULES).jobs
    assert told.at_risk.endswith("unless all have saved 120 s later, and a save takes about 13 s")


EVERY_FIFTY = {"uri": "s3://bucket/digits", "everySteps": 50}


def test_what_nobody_knows_before_is_said() -> None:
    first = asked(training(), "n2").not_known
    assert any("room for 1 new member" in one for one in first)
    assert any("handed over live" in one for one in first)
    assert not any("handed over live" in one for one in asked(moved(), "n3").not_known)
    assert any("take to save" in one for one in asked(training(completion="ExitCode"), "n1").not_known)


def test_a_job_that_cannot_be_read_is_named_and_nothing_is_said_of_it() -> None:
    told = what_if([Unseen("ns", "new", "field replicas: too new")], ["n1"], NOW, RULES)
    assert text(told).startswith("ns/new: cannot be read, so it is not judged: field replicas: too new")
    assert text(what_if([], ["n1", "n2"], NOW, RULES)) == "No training job has a pod on n1, n2."
    many = what_if([], [f"n{number}" for number in range(200)], NOW, Rules("", "", "", "team"))
    assert text(many) == "No training job in namespace team has a pod on these 200 nodes."


def test_a_page_says_whose_jobs_were_looked_at_and_by_which_rules() -> None:
    told = what_if([DrainSeen(snapshot(training()))], ["n1"], NOW, Rules("those of rows.yaml", "1.2", "1.2", "ns"))
    assert "If n1 were drained now: jobs in namespace ns" in text(told)
    assert "These are the decisions of Perdure 1.2. Rows of the table of signals: those of rows.yaml." in text(told)
    other = what_if([DrainSeen(snapshot(training()))], ["n1"], NOW, Rules("", "1.2", "1.3"))
    assert "Perdure 1.2; the operator's chart is of version 1.3, and another version may decide other" in text(other)
    unknown = what_if([DrainSeen(snapshot(training()))], ["n1"], NOW, Rules("", "1.2"))
    assert "Perdure 1.2; the operator's is not known, and another version may decide otherwise" in text(unknown)


def test_nodes_that_are_drained_one_by_one_have_a_row_each() -> None:
    seen = snapshot(training())
    drains = [what_if([DrainSeen(seen)], [node], NOW, RULES) for node in ("n1", "n2", "n3")]
    (table, idle, *_) = table_of_each(drains)
    assert isinstance(table, Table)
    assert [row[:4] for row in table.rows] == [("n1", "ns", "digits", "1"), ("n2", "ns", "digits", "1")]
    assert idle == "No training job has a pod on n3."


def test_a_pod_that_was_not_ready_in_between_tells_no_warm_up() -> None:
    stage = training()
    seen = snapshot(stage)
    assert seen.status.current is not None
    planned = seen.status.current.plan.assigned_time
    assert planned is not None
    raw = stage.pods()[0]
    raw["metadata"]["creationTimestamp"] = (planned - timedelta(seconds=9)).isoformat()
    for since, known in ((planned - timedelta(seconds=2), 7.0), (planned + timedelta(days=3), None)):
        raw["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": since.isoformat()}]
        assert reading.warm_up(raw, seen) == known
    assert asked(stage, "n2", warm_ups=(5.0, 86400.0)).warm_up is None
