"""The operator without kopf around a cluster in memory: from an applied job over a drained node to the next run."""

from __future__ import annotations

from perdure.wire import (
    ANNOTATION_ASSIGNMENT,
    LABEL_ROLE,
    CommitRef,
    ExitKind,
    Leave,
    Outcome,
    Standby,
    Train,
    read_assignment,
    write_outcome,
)
from perdure_operator.api.status import Phase
from perdure_operator.cluster.protocol import JOBS, PODS
from tests.support.stage import KEY, Stage


def saved(run: int, rank: int, step: int) -> str:
    return write_outcome(
        Outcome(ExitKind.CHECKPOINTED, run=run, rank=rank, step=step, commit=CommitRef(3, step), opened=run)
    )


def training() -> Stage:
    stage = Stage()
    for node in ("n1", "n2", "n3"):
        stage.node(node)
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    return stage


def test_the_budget_is_there_before_the_first_pod() -> None:
    stage = Stage()
    stage.apply()
    stage.start()
    writes = stage.cluster.writes[1:]  # the first is the user's
    created = [write.split()[1] for write in writes if write.startswith("create")]
    assert created == ["poddisruptionbudgets", "pods", "pods"]
    assert writes[0] == "status trainingjobs digits"


def test_ready_members_get_their_ranks() -> None:
    stage = training()
    status = stage.status()
    assert status.current is not None
    assert status.phase is Phase.RUNNING
    for rank, pod in enumerate(stage.pods()):
        assignment = read_assignment(pod["metadata"]["annotations"][ANNOTATION_ASSIGNMENT])
        assert isinstance(assignment, Train)
        assert (assignment.run, assignment.rank, assignment.world) == (1, rank, 2)
        assert pod["metadata"]["labels"][LABEL_ROLE] == "member"


def test_a_cordoned_node_is_vacated_and_the_job_goes_on_elsewhere() -> None:
    stage = training()
    first = stage.names()
    stage.cordon("n1")
    stage.settle()
    stage.wait(1.0)
    told = {
        pod["metadata"]["name"]: read_assignment(pod["metadata"]["annotations"][ANNOTATION_ASSIGNMENT])
        for pod in stage.pods()
    }
    assert {name for name, given in told.items() if isinstance(given, Leave)} == set(first)
    assert {name for name, given in told.items() if isinstance(given, Standby)} == set(told) - set(first)
    for rank, name in enumerate(first):
        stage.end_pod(name, saved(1, rank, 7))
    stage.settle()
    second = stage.names()
    assert len(second) == 2
    assert not set(first) & set(second)
    stage.run_pods(["n2", "n3"])
    stage.settle()
    status = stage.status()
    assert status.current is not None
    assert (status.current.run, status.step, status.steps_lost) == (2, 7, 0)
    assert status.failures.code == status.failures.infrastructure == 0


def test_an_outcome_is_counted_even_if_the_pod_is_gone_before_anybody_looked() -> None:
    stage = training()
    first = stage.names()
    stage.cordon("n1")
    stage.settle()
    stage.wait(1.0)
    for rank, name in enumerate(first):
        stage.end_pod(name, saved(1, rank, 9))
        stage.cluster.remove(PODS, "ns", name)  # an autoscaler is quick
    stage.settle()
    assert stage.status().step == 9
    assert stage.status().failures.infrastructure == 0


def test_members_made_before_a_change_of_the_spec_are_replaced_before_a_run_and_never_in_one() -> None:
    def keep(number: int) -> None:
        change = {"keep": number}
        stage.cluster.change(JOBS, *KEY, lambda raw: raw["spec"]["checkpoint"].update(change))
        stage.settle()

    def kept() -> set[str]:
        return {
            one["value"]
            for pod in stage.pods()
            for one in pod["spec"]["containers"][0]["env"]
            if one["name"] == "PERDURE_KEEP"
        }

    stage = Stage()
    stage.apply()
    stage.start()
    keep(5)
    assert kept() == {"5"}
    for node in ("n1", "n2"):
        stage.node(node)
    stage.run_pods(["n1", "n2"])
    stage.settle()
    running = stage.names(), stage.status().current
    keep(6)
    assert (stage.names(), stage.status().current) == running
    assert kept() == {"5"}


def test_a_deleted_job_is_forgotten() -> None:
    stage = training()
    stage.cluster.remove(JOBS, *KEY)
    stage.settle()
    assert stage.cache.job(KEY) is None
    assert stage.queue._schedule.next_at() is None
