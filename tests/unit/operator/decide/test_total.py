"""`decide` answers every snapshot, always in the same way, and what it answers can be stored and sent."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import cache
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perdure.wire import (
    ASSIGNMENT_BYTES,
    OUTCOME_BYTES,
    ErrorKind,
    ExitKind,
    Failure,
    Outcome,
    Train,
    write_assignment,
    write_outcome,
)
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import (
    CheckpointPolicy,
    DisruptionPolicy,
    Elastic,
    FailurePolicy,
    JobReaction,
    TrainingJobSpec,
)
from perdure_operator.api.status import (
    Assigned,
    Condition,
    CurrentRun,
    Disruption,
    Failures,
    Intent,
    MemberOutcome,
    NextRun,
    Phase,
    Replacements,
    RunPlan,
    TrainingJobStatus,
    Unready,
    Vacating,
)
from perdure_operator.decide import decide
from perdure_operator.state.decision import Assign, CheckTemplate, Decision
from perdure_operator.state.snapshot import (
    Budget,
    Device,
    EvictionView,
    NodeView,
    PodCondition,
    PodView,
    Refusal,
    RefusalKind,
    Snapshot,
    Taint,
    TemplateCheck,
    TemplateVerdict,
    Terminated,
    Toleration,
)
from tests.support.jobs import START, UID, Job, job, written

STATUS_BYTES = 256 * 1024
"""etcd takes 1.5 MiB for the whole object, and every change of it goes to every watcher."""

# few names and numbers, so that they meet
NAMES = st.sampled_from([f"digits-ab12-{n}" for n in range(4)] + ["digits-ab12-x", "odd", "digits-ab12-99999999999"])
NODES = st.sampled_from(["", "n1", "n2", "n3"])
RUNS = st.sampled_from([0, 1, 2, 3, 2**52])
SECONDS = st.sampled_from([0, 1, 15, 600, 2**62])
TIMES = st.sampled_from([-3600, -60, -5, -1, 0, 1, 30, 3600]).map(lambda s: START + timedelta(seconds=s))
TEXT = st.sampled_from(["", "x", "node n1 is cordoned", "ü" * 300, "\ud800".encode(errors="replace").decode()])
ERRORS = [
    '{"v":1,"outcome":"failed","run":1,"rank":0,"error":{"kind":"exception","name":"\\ud800","tail":"a\\nb"}}',
    '{"v":1,"outcome":"fenced","run":1,"rank":0,"opened":2,"error":{"kind":"new","name":"RootTakenOver"}}',
    '{"v":1,"outcome":"failed","run":1,"rank":0,"seconds":{"a":1' + "0" * 400 + "}}",
    '{"v":2,"outcome":"failed"}',
    "[" * 4000,
    "",
]
OUTCOMES = [
    write_outcome(Outcome(ended, run=run, rank=0, step=7, opened=run)) for ended in ExitKind for run in (0, 1, 2)
]


def _some(values: st.SearchStrategy[Any], at_most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=at_most).map(tuple)


def _fields(model: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: model(**given))


def _with(model: type[Any], required: dict[str, st.SearchStrategy[Any]], **fields: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=fields).map(lambda given: model(**given))


BOOLS = st.booleans()
ASSIGNMENTS = st.sampled_from(
    ["", "junk", '{"v":1,"standby":true}', write_assignment(Train(run=1, rank=0, world=2, master="10.0.0.1:29501"))]
)
TAINTS = _with(
    Taint,
    {
        "key": st.sampled_from(["karpenter.sh/disrupted", "node.kubernetes.io/not-ready", "k"]),
        "effect": st.sampled_from(["NoSchedule", "NoExecute"]),
    },
)
TOLERATIONS = _fields(
    Toleration,
    key=st.sampled_from(["", "k"]),
    operator=st.sampled_from(["Equal", "Exists"]),
    toleration_seconds=st.sampled_from([None, 0, 300]),
)
PODS = _with(
    PodView,
    {"name": NAMES, "uid": st.sampled_from(["u1", "u2"])},
    owner_uid=st.sampled_from([UID, UID, UID, "", "other"]),
    role=st.sampled_from(["", "standby", "member", "former"]),
    labelled=BOOLS,
    assignment=ASSIGNMENTS,
    node=NODES,
    ip=st.sampled_from(["", "10.0.0.1", "fd00::1"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    ready=BOOLS,
    deleting=BOOLS,
    deletion_deadline=st.none() | TIMES,
    waiting_reason=st.sampled_from(["", "ErrImagePull", "RunContainerError", "CreateContainerConfigError"]),
    waiting_message=st.sampled_from(["", 'exec: "perdure": not found']),
    waiting_container=st.sampled_from(["", "fetch"]),
    initializing=st.sampled_from(["", "fetch"]),
    init_failed=st.sampled_from(["", "fetch"]),
    terminated=st.none()
    | _with(
        Terminated,
        {"exit_code": st.sampled_from([0, 1, 137])},
        reason=st.sampled_from(["", "OOMKilled", "StartError"]),
        message=st.sampled_from(OUTCOMES + ERRORS) | st.text(max_size=20),
    ),
    unschedulable=TEXT,
    reason=st.sampled_from(["", "Evicted", "OutOfcpu"]),
    message=TEXT,
    conditions=_some(
        _with(
            PodCondition,
            {"type": st.just("DisruptionTarget"), "status": st.sampled_from(["True", "False"])},
            reason=st.sampled_from(["", "PreemptionByScheduler"]),
        ),
        1,
    ),
    devices=_some(st.just(Device(resource="nvidia.com/gpu", id="GPU-0", health="Unhealthy")), 1),
    tolerations=_some(TOLERATIONS, 1),
    template_hash=st.sampled_from(["", "t1", "t2"]),
    gone=BOOLS,
)
NODE_VIEWS = _with(
    NodeView,
    {"name": NODES},
    exists=BOOLS,
    cordoned=BOOLS,
    deleting=BOOLS,
    ready=BOOLS,
    taints=_some(TAINTS),
    claim_ends=st.none() | TIMES,
)
MEMBERS = _with(Assigned, {"name": NAMES, "uid": st.sampled_from(["u1", "u2"]), "rank": st.integers(0, 3)})
PLANS = _with(
    RunPlan,
    {
        "run": st.sampled_from([1, 2, 2**52]),
        "world": st.sampled_from([4, 2**31]),
        "master": st.just("10.0.0.1:29501"),
        "seconds": SECONDS,
        "wait": SECONDS,
        "members": _some(MEMBERS, 4),
    },
    cause=TEXT,
    lost=_some(st.integers(2**50, 2**53), 40),
)
INTENTS = _with(
    Intent,
    {
        "disruption": st.sampled_from(Disruption),
        "cause": TEXT,
        "since": TIMES,
        "leave": BOOLS,
    },
    nodes=_some(NODES),
    newest=st.none() | TIMES,
    seconds=SECONDS,
    lost=_some(RUNS),
    deadline=st.none() | TIMES,
)
OUTCOME_VALUES = _with(
    MemberOutcome,
    {"name": NAMES, "uid": st.just("u1"), "outcome": st.sampled_from(["", "new", *ExitKind])},
    run=RUNS,
    step=st.integers(0, 30),
    commit_seq=st.none() | st.integers(1, 9),
    commit_step=st.none() | st.integers(0, 30),
    infrastructure=BOOLS,
    error_tail=TEXT,
)
CONDITIONS = _with(
    Condition,
    {
        "type": st.sampled_from([*ConditionType, "Other"]),
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "reason": st.sampled_from([*Reason, "Other"]),
        "message": TEXT,
        "last_transition_time": TIMES,
    },
)
CURRENT = st.builds(
    lambda plan, outcomes, intent: CurrentRun(run=plan.run, plan=plan, outcomes=outcomes, intent=intent),
    PLANS,
    _some(OUTCOME_VALUES, 4),
    st.none() | INTENTS,
)
NEXT = _with(
    NextRun,
    {"run": st.sampled_from([1, 2, 2**52])},
    members=_some(NAMES, 4),
    replacements=st.none()
    | _with(Replacements, {"last_time": TIMES}, count=st.sampled_from([0, 1, 5, 10**6]), generation=st.integers(0, 2)),
    disruption=st.none() | st.sampled_from(Disruption),
    cause=TEXT,
)
STATUSES = _fields(
    TrainingJobStatus,
    phase=st.sampled_from(Phase),
    run=RUNS,
    next_member=st.integers(0, 5),
    vacate=st.none() | st.builds(Vacating, below=st.integers(0, 5)),
    current=st.none() | CURRENT,
    next=st.none() | NEXT,
    lost=_some(RUNS, 40),
    opened=RUNS,
    step=st.none() | st.integers(0, 30),
    failures=_fields(
        Failures,
        code=st.integers(0, 5),
        infrastructure=st.integers(0, 5),
        last_time=st.none() | TIMES,
        consecutive=st.sampled_from([0, 1, 5, 10**6]),
    ),
    unready=_some(_with(Unready, {"node": NODES, "since": TIMES})),
    start_time=st.none() | TIMES,
    template_checked=st.sampled_from(["", "t1"]),
    conditions=st.lists(CONDITIONS, max_size=4, unique_by=lambda condition: condition.type).map(tuple),
)
WARY = {"device-unhealthy": JobReaction.FAULT, "karpenter": JobReaction.VACATE_IF_ROOM}
SPECS = _with(
    TrainingJobSpec,
    {"checkpoint": st.just(CheckpointPolicy(uri="s3://b/p"))},
    replicas=st.integers(0, 4),
    elastic=st.none()
    | _with(
        Elastic,
        {"min_replicas": st.integers(0, 3), "max_replicas": st.integers(0, 4)},
        sizes=st.none() | st.sampled_from([(), (1, 2, 4), (2, 4), (4, 2), (9,)]),
    ),
    processes_per_replica=st.integers(1, 2),
    disruption=SECONDS.map(lambda s: DisruptionPolicy(exit_timeout_seconds=s, signals=WARY if s == 15 else {})),
    failure=SECONDS.map(lambda s: FailurePolicy(lost_node_seconds=s, max_code_failures=min(s, 3))),
    suspend=BOOLS,
    active_deadline_seconds=st.none() | SECONDS,
    ttl_seconds_after_finished=st.none() | SECONDS,
)
EVICTIONS = _with(
    EvictionView,
    {
        "name": st.just("e"),
        "uid": st.sampled_from(["e1", "e2"]),
        "pod": st.sampled_from(["u1", "u2"]),
        "place": st.integers(0, 1),
        "state": st.sampled_from(["Active", "Active", "Inactive", "Interrupted", "Canceled", "Completed", "new"]),
    },
    over=BOOLS,
    requesters=_some(TEXT),
    withdrawn=BOOLS,
    started=st.none() | TIMES,
    heartbeat=st.none() | TIMES,
    expected=st.none() | TIMES,
    completed=st.none() | TIMES,
    message=TEXT,
    tried=st.none() | TIMES,
)
SNAPSHOTS = _with(
    Snapshot,
    {
        "now": TIMES,
        "namespace": st.just("default"),
        "name": st.just("digits"),
        "uid": st.just(UID),
        "generation": st.integers(1, 3),
        "spec": SPECS,
        "status": STATUSES,
        "pods": _some(PODS, 6),
        "pods_complete": st.just(True) | BOOLS,
        "nodes": _some(NODE_VIEWS, 4),
        "nodes_complete": st.just(True) | BOOLS,
    },
    deleting=st.just(False) | BOOLS,
    vacate=st.sampled_from(["", "true", "n1", "n2,digits-ab12-1", ",", "odd"]),
    save=st.sampled_from(["", "a", "b"]),
    evictions=_some(EVICTIONS, 2),
    budget=st.none() | _with(Budget, {"min_available": st.integers(0, 5), "uid": st.just("b")}),
    foreign_budgets=_some(TEXT, 1),
    same_uri=_some(TEXT, 1),
    foreign_pods=_some(TEXT, 2),
    allotted=_some(NAMES, 4),
    created=_some(NAMES, 2),
    template_hash=st.sampled_from(["", "t1", "t2"]),
    template_check=_fields(
        TemplateCheck,
        hash=st.sampled_from(["", "t1"]),
        verdict=st.sampled_from(TemplateVerdict),
        time=st.none() | TIMES,
    ),
    refusals=_some(_with(Refusal, {"pod": NAMES, "kind": st.sampled_from(RefusalKind), "message": TEXT})),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SNAPSHOTS)
def test_every_snapshot_gets_an_answer_and_always_the_same(snapshot: Snapshot) -> None:
    plan = decide(snapshot)
    assert plan == decide(Snapshot.model_validate_json(snapshot.model_dump_json()))
    assert Decision.model_validate_json(plan.model_dump_json()) == plan
    for status in (snapshot.status, plan.status or snapshot.status):
        assert TrainingJobStatus.model_validate_json(json.dumps(status.stored())) == status


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(SNAPSHOTS)
def test_no_answer_breaks_a_limit_of_the_api_server_or_the_contract(snapshot: Snapshot) -> None:
    plan = decide(snapshot)
    texts = [action.new for action in plan.actions if isinstance(action, Assign)]
    assert all(len(text.encode()) <= ASSIGNMENT_BYTES for text in texts)
    assert plan.requeue_after is None or plan.requeue_after > 0
    if plan.status:
        assert len(plan.status.conditions) <= 16
        assert len({condition.type for condition in plan.status.conditions}) == len(plan.status.conditions)


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(SNAPSHOTS)
def test_an_unfinished_job_that_does_not_run_says_why(snapshot: Snapshot) -> None:
    plan = decide(snapshot)
    status = plan.status or snapshot.status
    if status == TrainingJobStatus() and written(plan) == (CheckTemplate(),):  # the first word is what it says
        return
    if snapshot.deleting or not (snapshot.pods_complete and snapshot.nodes_complete):
        return
    running = next(condition for condition in status.conditions if condition.type == ConditionType.RUNNING)
    assert running.status == "True" or running.message


LAST_WORDS = st.builds(
    lambda ended, kind, name, tail: write_outcome(Outcome(ended, run=1, rank=0, error=Failure(kind, name, tail))),
    st.sampled_from([ExitKind.FAILED, ExitKind.PEER_LOST, ExitKind.FENCED]),
    st.sampled_from(ErrorKind),
    st.sampled_from(["ValueError", "N" * OUTCOME_BYTES]),
    st.sampled_from(["", "x" * OUTCOME_BYTES, "ü\n" * OUTCOME_BYTES]),
)
FOREIGN = '{"v":1,"outcome":"failed","run":1,"rank":0,"error":{"kind":"exception","name":"' + "N" * 3900 + '"}}'
"""Not every image has our agent: Kubernetes cuts a termination message at 4 KiB only."""


@cache
def _crowd() -> Job:
    return job().running(world=200)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(LAST_WORDS | st.just(FOREIGN), min_size=1, max_size=5))
@example([write_outcome(Outcome(ExitKind.FAILED, run=1, rank=0, error=Failure(ErrorKind.EXCEPTION, "E", "x" * 4000)))])
@example([FOREIGN])
def test_the_status_of_200_members_that_all_raise_stays_small(words: list[str]) -> None:
    ends = [Terminated(exit_code=1, message=words[number % len(words)]) for number in range(199)]
    pods = [pod.model_copy(update={"terminated": end}) for pod, end in zip(_crowd().snapshot.pods, ends, strict=False)]
    status = decide(_crowd().having(pods=(*pods, _crowd().snapshot.pods[-1])).snapshot).status
    assert status is not None
    assert status.current is not None
    assert len(status.current.outcomes) == 199
    assert len(status.model_dump_json(by_alias=True).encode()) < STATUS_BYTES


@settings(max_examples=10, deadline=None)
@given(SECONDS)
def test_an_intent_of_any_length_is_carried_out(seconds: int) -> None:
    """Status belongs to the operator, but any client with the right may have written it."""
    here = job().running(world=2).leaving("n1")
    assert here.now.current is not None
    assert here.intent is not None
    changed = here.intent.model_copy(update={"seconds": seconds})
    here = here.status(current=here.now.current.model_copy(update={"intent": changed}))
    assert here.settle().all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle().now.exit_seconds is not None
