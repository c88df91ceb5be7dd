"""Raw objects become facts, even if fields are absent or null."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.wire import LABEL_JOB
from perdure_operator.api import names
from perdure_operator.api.names import LABEL_UID
from perdure_operator.cluster.protocol import JOBS, Json
from perdure_operator.cluster.read import parse, records
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.state.snapshot import NodeView, Taint, Terminated
from tests.support.raw import job


def pod(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u", **metadata}, "spec": spec, "status": status}


def test_a_pod_that_says_nothing_is_pending() -> None:
    seen = parse.pod(pod())
    assert (seen.phase, seen.ready, seen.node, seen.terminated, seen.owner_uid) == ("Pending", False, "", None, "")


TRAINER = {"name": "trainer", "volumeMounts": [{"name": "data"}, {"name": names.ASSIGNMENT_VOLUME}]}
PROXY = {"name": "istio-proxy", "volumeMounts": [{"name": "token"}]}


@pytest.mark.parametrize("containers", [[TRAINER, PROXY], [PROXY, TRAINER], [PROXY, PROXY | {"name": "b"}, TRAINER]])
@pytest.mark.parametrize("ordered", [1, -1])
def test_the_trainer_is_found_by_its_mount_wherever_admission_and_the_kubelet_have_put_it(
    containers: list[dict[str, Any]], ordered: int
) -> None:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "{}"}}
    statuses = [{"name": "istio-proxy", "state": {"running": {}}}, {"name": "trainer", "state": ended}]
    seen = parse.pod(pod({"containers": containers}, {"containerStatuses": statuses[::ordered]}))
    assert seen.terminated == Terminated(exit_code=1, reason="Error", message="{}")
    assert seen.others_run


def test_the_trainers_root_is_the_members() -> None:
    told = TRAINER | {"env": [{"name": "PERDURE_ROOT", "value": "s3://bucket/a"}]}
    assert parse.pod(pod({"containers": [PROXY, told]})).root == "s3://bucket/a "


def test_the_end_of_its_only_container_leaves_nothing_running_in_a_pod_that_is_not_over_yet() -> None:
    status = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": {"terminated": {"exitCode": 0}}}]}
    assert not parse.pod(pod({"containers": [{"name": "trainer"}]}, status)).others_run


def test_a_container_that_has_ended_beside_container_0_runs_no_more() -> None:
    ended = {"terminated": {"exitCode": 0}}
    status = {"containerStatuses": [{"name": "a-sidecar", "state": ended}, {"name": "trainer", "state": ended}]}
    assert not parse.pod(pod({"containers": [{"name": "trainer"}, {"name": "a-sidecar"}]}, status)).others_run


def test_a_waiting_container_tells_why() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    status = {"containerStatuses": [{"name": "t", "state": waiting}]}
    seen = parse.pod(pod({"containers": [{"name": "t"}]}, status))
    assert (seen.waiting_reason, seen.waiting_message) == ("ErrImagePull", "no such image")


def _told(name: str, last: dict[str, Any] | None = None, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "lastState": {"terminated": last} if last else {}}


SPEC = {
    "initContainers": [{"name": "fetch"}, {"name": "logs", "restartPolicy": "Always"}, {"name": "check"}],
    "containers": [PROXY, TRAINER],
}
INITIALIZING = [_told(name, waiting={"reason": "PodInitializing"}) for name in ("trainer", "istio-proxy")]
RUNNING = [_told(name, running={}) for name in ("istio-proxy", "trainer")]
NO_IMAGE = {"reason": "ImagePullBackOff", "message": "no such tag"}
BACKS_OFF = {"reason": "CrashLoopBackOff", "message": "back-off 20s"}
DONE, ENDED = {"exitCode": 0, "reason": "Completed"}, {"exitCode": 3, "reason": "Error", "message": "no bucket"}


@pytest.mark.parametrize(
    ("init", "containers", "stuck"),
    [
        ([_told("fetch", waiting=NO_IMAGE)], INITIALIZING, ("fetch", "ImagePullBackOff", "no such tag")),
        (
            [_told("logs", ENDED, waiting=BACKS_OFF), _told("fetch", terminated=DONE)],
            INITIALIZING,
            ("logs", "CrashLoopBackOff", "back-off 20s; it ended with exit code 3: no bucket"),
        ),
        (
            [_told("logs", waiting=NO_IMAGE), _told("fetch", waiting=NO_IMAGE | {"message": "first"})],
            INITIALIZING,
            ("fetch", "ImagePullBackOff", "first"),
        ),
        (
            [],
            [_told("istio-proxy", waiting=NO_IMAGE), _told("trainer", waiting={"reason": "RunContainerError"})],
            ("", "RunContainerError", ""),
        ),
        (
            [],
            [_told("trainer", running={}), _told("istio-proxy", waiting=NO_IMAGE)],
            ("istio-proxy", "ImagePullBackOff", "no such tag"),
        ),
        (
            [],
            [_told("trainer", running={}), _told("istio-proxy", terminated=ENDED)],
            ("istio-proxy", "Error", "it ended with exit code 3: no bucket"),
        ),
        ([], [_told("trainer", terminated=DONE), _told("istio-proxy", terminated=ENDED)], ("", "", "")),
        ([_told("fetch", running={})], INITIALIZING, ("", "", "")),
        ([_told("fetch", terminated=DONE), _told("logs", running={})], RUNNING, ("", "", "")),
        ([], None, ("", "", "")),
    ],
)
def test_the_first_container_that_keeps_a_pod_is_named(
    init: list[dict[str, Any]], containers: list[dict[str, Any]] | None, stuck: tuple[str, str, str]
) -> None:
    """The kubelet tells of them in an order of its own."""
    seen = parse.pod(pod(SPEC, {"initContainerStatuses": init, "containerStatuses": containers}))
    assert (seen.waiting_container, seen.waiting_reason, seen.waiting_message) == stuck


@pytest.mark.parametrize(
    ("init", "at_work"),
    [
        ([_told("fetch", running={})], "fetch"),
        ([_told("fetch", terminated=DONE), _told("logs", running={}), _told("check", running={})], "check"),
        ([_told("fetch", terminated=DONE), _told("logs", running={})], ""),
    ],
)
def test_the_init_container_at_work_is_named_and_no_sidecar(init: list[dict[str, Any]], at_work: str) -> None:
    assert parse.pod(pod(SPEC, {"initContainerStatuses": init})).initializing == at_work


CREATING = [{"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}]
SET_UP = [{"type": "PodReadyToStartContainers", "status": "True"}]


@pytest.mark.parametrize(
    ("status", "pulls"),
    [
        ({"conditions": SET_UP, "containerStatuses": CREATING}, True),
        ({"conditions": SET_UP, "containerStatuses": INITIALIZING, "initContainerStatuses": []}, True),
        ({"conditions": SET_UP, "containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}, False),
        ({"conditions": [SET_UP[0] | {"status": "False"}], "containerStatuses": CREATING}, False),
        ({"containerStatuses": CREATING}, False),
        ({"conditions": SET_UP}, False),
        (
            {
                "conditions": SET_UP,
                "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "ErrImagePull"}}}],
            },
            False,
        ),
        (
            {
                "conditions": SET_UP,
                "containerStatuses": INITIALIZING,
                "initContainerStatuses": [_told("fetch", running={})],
            },
            False,
        ),
    ],
    ids=["creating", "before init", "running", "no network", "silent", "no status", "cannot be pulled", "init at work"],
)
def test_a_pod_that_has_its_network_and_no_container_yet_is_pulling(status: dict[str, Any], pulls: bool) -> None:
    assert parse.pod(pod(SPEC, status)).pulling == pulls


def test_the_end_of_an_init_container_is_the_pods_once_that_has_failed() -> None:
    init = [
        _told("logs", terminated={"exitCode": 137}),
        _told("fetch", terminated=DONE),
        _told("check", terminated=ENDED),
    ]
    status = {"phase": "Pending", "initContainerStatuses": init, "containerStatuses": INITIALIZING}
    assert (parse.pod(pod(SPEC, status)).terminated, parse.pod(pod(SPEC, status)).init_failed) == (None, "")
    seen = parse.pod(pod(SPEC, status | {"phase": "Failed"}))
    assert seen.terminated == Terminated(exit_code=3, reason="Error", message="no bucket")
    assert seen.init_failed == "check"
    assert not seen.others_run


def test_what_an_init_container_has_done_is_not_the_end_of_a_trainer_that_ran() -> None:
    init, ran = [_told("check", terminated=ENDED)], [_told("trainer", terminated={"exitCode": 0})]
    seen = parse.pod(pod(SPEC, {"phase": "Failed", "initContainerStatuses": init, "containerStatuses": ran}))
    assert (seen.init_failed, seen.terminated) == ("", Terminated(exit_code=0))


def test_only_a_controller_owns_a_pod() -> None:
    assert parse.pod(pod(ownerReferences=[{"uid": "x"}])).owner_uid == ""
    assert parse.pod(pod(ownerReferences=[{"uid": "x"}, {"uid": "y", "controller": True}])).owner_uid == "y"


@pytest.mark.parametrize("changed", [LABEL_JOB, LABEL_UID])
def test_a_pod_without_a_label_of_its_job_is_distinguished(changed: str) -> None:
    owner = {"kind": "TrainingJob", "name": "digits", "uid": "u", "controller": True}
    metadata: Json = {"name": "p", "uid": "1", "labels": names.labels("digits", "u"), "ownerReferences": [owner]}
    raw: Json = {"metadata": metadata}
    assert parse.pod(raw).labelled
    metadata["labels"] = {**names.labels("digits", "u"), changed: "other"}
    assert not parse.pod(raw).labelled


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"reason": "Evicted", "message": "low on memory"}, ("Evicted", "low on memory")),
        ({"reason": "OutOfcpu"}, ("OutOfcpu", "")),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, ("DisruptionTarget", "")),
        (
            {
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "m"}
                ]
            },
            ("DeletionByPodGC", "m"),
        ),
        (
            {"reason": "Evicted", "conditions": [{"type": "DisruptionTarget", "status": "True", "message": "m"}]},
            ("Evicted", ""),
        ),
        ({"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "DeletionByPodGC"}]}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_why_kubernetes_ends_or_refuses_a_pod_is_seen_in_either_place(
    status: dict[str, Any], why: tuple[str, str]
) -> None:
    seen = parse.pod(pod(status=status))
    assert (seen.reason, seen.message) == why


@pytest.mark.parametrize("status", ["True", "False"])
def test_since_when_a_pod_is_ready_or_is_not(status: str) -> None:
    told = {"type": "Ready", "status": status, "lastTransitionTime": "2026-08-01T12:00:00Z"}
    seen = parse.pod(pod(status={"conditions": [told]}))
    at = datetime(2026, 8, 1, 12, tzinfo=UTC)
    assert (seen.ready_since, seen.unready_since) == ((at, None) if status == "True" else (None, at))


@pytest.mark.parametrize(
    ("created", "started", "finished", "by_the_server"),
    [
        ("12:10:00", "12:10:05", "12:20:00", "12:20:00"),
        ("12:10:00", "12:00:00", "12:20:00", "12:30:00"),
        (None, "12:00:00", "12:20:00", "12:20:00"),
        ("12:10:00", None, "12:20:00", "12:20:00"),
    ],
)
def test_a_kubelets_clock_that_is_behind_is_known_by_containers_that_start_before_their_pod_is_created(
    created: str | None, started: str | None, finished: str, by_the_server: str
) -> None:
    def stamp(clock: str | None) -> str | None:
        return f"2026-08-01T{clock}Z" if clock else None

    state = {"exitCode": 1, "startedAt": stamp(started), "finishedAt": stamp(finished)}
    told = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(finished)}
    status = {"containerStatuses": [{"name": "trainer", "state": {"terminated": state}}], "conditions": [told]}
    raw = pod({"containers": [{"name": "trainer"}]}, status, creationTimestamp=stamp(created))
    seen = parse.pod(raw)
    assert seen.terminated is not None
    assert seen.terminated.finished_at == seen.unready_since == datetime.fromisoformat(str(stamp(by_the_server)))


def test_the_schedulers_message_counts_only_while_it_says_no() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    assert parse.pod(pod(status={"conditions": [condition]})).unschedulable == "0/3 nodes"
    assert parse.pod(pod(status={"conditions": [condition | {"status": "True"}]})).unschedulable == ""


def test_a_node_tells_cordon_taints_and_health() -> None:
    raw = {
        "metadata": {"name": "n1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute", "value": None}]},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    }
    taint = Taint(key="k", effect="NoExecute")
    assert parse.node(raw) == NodeView(name="n1", cordoned=True, deleting=True, ready=False, taints=(taint,))


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_a_selector_matches_as_in_kubernetes(selector: dict[str, Any] | None, matches: bool) -> None:
    assert parse.selects(selector, {"a": "1"}) is matches


@pytest.mark.parametrize("spec", [None, {}, {"checkpoint": None}, {"checkpoint": []}, {"checkpoint": {"uri": None}}])
def test_a_strangers_job_that_cannot_be_read_is_kept_with_what_is_wrong(spec: Any) -> None:
    job = records.read(JOBS, {"metadata": {"name": "j", "uid": "u"}, "spec": spec})
    assert isinstance(job, JobRecord)
    assert job.root is None
    assert (job.fault == "") is (job.spec is not None)


def test_a_word_of_a_newer_crd_is_left_out_as_a_field_is() -> None:
    body = job()["spec"]
    spec, unknown = parse.spec(body | {"completion": "Oracle", "failure": {"later": 1}})
    assert (spec, unknown) == (parse.spec(body)[0], ("completion", "failure.later"))


def test_of_a_pods_annotations_those_for_autoscalers_are_read() -> None:
    marks = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        "perdure.dev/autoscaler": "Never",
    }
    assert parse.pod(pod(annotations={**marks, "team": "a"})).marks == marks
    assert parse.pod(pod(annotations=None)).marks == {}


def test_a_pods_priority_is_what_admission_made_of_it() -> None:
    seen = parse.pod(pod({"priority": -5, "priorityClassName": "low", "preemptionPolicy": "Never"}))
    assert (seen.priority, seen.priority_class, seen.preemption_policy) == (-5, "low", "Never")
    seen = parse.pod(pod({"priority": None}))
    assert (seen.priority, seen.priority_class, seen.preemption_policy) == (0, "", "")
