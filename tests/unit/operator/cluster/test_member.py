"""The pods the operator creates keep the pod contract and the user's template."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.store.clients import ClientOptions, origin_options
from perdure.store.credentials import keys_in_folder
from perdure.wire import (
    ANNOTATION_ASSIGNMENT,
    ANNOTATION_REPORT,
    ASSIGNMENT_FILE,
    CHANNEL_FILE,
    LABEL_JOB,
    LABEL_ROLE,
    REPORT_TOKEN_FILE,
    TERMINATION_LOG,
    Role,
    Standby,
    read_assignment,
    read_resume_from,
)
from perdure.wire.settings import read_settings
from perdure_operator.api.names import ANNOTATION_TEMPLATE, LABEL_UID
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cluster import member
from tests.simulation.objects import matches
from tests.support.raw import UID, job, snapshot, template

NAME = "digits-3f2a-0"
REPOSITORY = Path(__file__).resolve().parents[4]
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def of_spec(**spec: Any) -> dict[str, Any]:
    raw = job(**spec)["spec"]
    return member.pod(snapshot(spec=TrainingJobSpec.model_validate(raw)), NAME)


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in pod["spec"]["containers"][0]["env"]}


def published_policies() -> list[dict[str, Any]]:
    """Every NetworkPolicy in the pages, whose jobs are called digits."""
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in YAML.findall(page.read_text())]
    found = [one for block in blocks if "kind: NetworkPolicy" in block for one in yaml.safe_load_all(block)]
    return [one for one in found if one["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("selector", ["policy", "ingress", "egress"])
def test_published_policies_select_members_in_every_role_and_no_pod_of_users(selector: str) -> None:
    labels = of_spec()["metadata"]["labels"]
    assert published_policies()
    for policy in published_policies():
        spec = policy["spec"]
        peers = [peer for rule in spec.get(selector, ()) for one in ("from", "to") for peer in rule.get(one, ())]
        for one in [spec] if selector == "policy" else peers:
            for role in Role:
                assert matches(one["podSelector"], {**labels, LABEL_ROLE: role.value}), (policy, role)
            for less in ({LABEL_JOB}, {LABEL_JOB, LABEL_ROLE}, {LABEL_JOB, LABEL_UID}):
                assert not matches(one["podSelector"], {key: labels[key] for key in less}), (policy, less)
            assert not matches(one["podSelector"], {**labels, LABEL_JOB: "another"})
        assert selector == "policy" or peers


def test_a_member_is_created_as_a_standby_that_its_job_owns() -> None:
    metadata = of_spec()["metadata"]
    assert metadata["name"] == NAME
    assert metadata["labels"][LABEL_JOB] == "digits"
    assert metadata["labels"][LABEL_ROLE] == "standby"
    assert read_assignment(metadata["annotations"][ANNOTATION_ASSIGNMENT]) == Standby()
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, False)


def test_the_agent_stands_in_front_of_the_users_command() -> None:
    trainer = of_spec()["spec"]["containers"][0]
    assert trainer["command"] == ["perdure", "run", "--", "python", "train.py"]
    assert "args" not in trainer
    assert trainer["startupProbe"]["exec"]["command"] == ["perdure", "warm"]
    assert trainer["terminationMessagePath"] == TERMINATION_LOG
    assert trainer["terminationMessagePolicy"] == "File"


def test_a_pod_that_is_deleted_tells_its_agent_so_before_any_signal() -> None:
    assert of_spec()["spec"]["containers"][0]["lifecycle"] == {"preStop": {"exec": {"command": ["perdure", "stop"]}}}


def test_a_hook_of_the_users_stays() -> None:
    mine = {"postStart": {"sleep": {"seconds": 1}}, "preStop": {"sleep": {"seconds": 2}}}
    container = template()["spec"]["containers"][0] | {"lifecycle": mine}
    spec = of_spec(template={"spec": {"containers": [container]}})["spec"]
    assert spec["containers"][0]["lifecycle"] == mine


def test_a_member_keeps_off_formers_only_where_it_has_to() -> None:
    others = {"labelSelector": {}, "topologyKey": "rack"}
    given = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [others]}, "nodeAffinity": {}}
    raw = template()
    raw["spec"]["affinity"] = given
    seen = snapshot(spec=TrainingJobSpec.model_validate(job(template=raw)["spec"]))
    assert member.pod(seen, NAME)["spec"]["affinity"] == given
    affinity = member.pod(seen, NAME, apart=True)["spec"]["affinity"]
    assert affinity["nodeAffinity"] == {}
    first, mine = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert first == others
    assert mine["topologyKey"] == "kubernetes.io/hostname"
    assert mine["labelSelector"]["matchLabels"] == {LABEL_JOB: "digits", LABEL_UID: UID, LABEL_ROLE: "former"}


def test_a_spare_keeps_off_members_where_it_can() -> None:
    others = {"weight": 1, "podAffinityTerm": {"labelSelector": {}, "topologyKey": "rack"}}
    given = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [others]}, "nodeAffinity": {}}
    raw = template()
    raw["spec"]["affinity"] = given
    seen = snapshot(spec=TrainingJobSpec.model_validate(job(template=raw)["spec"]))
    affinity = member.pod(seen, NAME, away_from_members=True)["spec"]["affinity"]
    assert affinity["nodeAffinity"] == {}
    assert set(affinity["podAntiAffinity"]) == {"preferredDuringSchedulingIgnoredDuringExecution"}
    first, mine = affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first == others
    assert mine["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    labels = mine["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert labels == {LABEL_JOB: "digits", LABEL_UID: UID, LABEL_ROLE: "member"}


def test_one_whose_forerunners_failed_goes_rather_elsewhere_and_not_by_hostname() -> None:
    """Karpenter makes no node for a pod that asks for another hostname."""
    raw = template()
    others = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    raw["spec"]["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [others]}}
    seen = snapshot(spec=TrainingJobSpec.model_validate(job(template=raw)["spec"]))
    affinity = member.pod(seen, NAME, avoid=("n7", "n8"))["spec"]["affinity"]
    first, mine = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first == others
    assert mine["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": ["n7"]},
        {"key": "metadata.name", "operator": "NotIn", "values": ["n8"]},
    ]


def test_the_assignment_is_a_downward_api_file() -> None:
    spec = of_spec()["spec"]
    (volume,) = spec["volumes"]
    (item,) = volume["downwardAPI"]["items"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{ANNOTATION_ASSIGNMENT}']"
    assert mount["name"] == volume["name"]
    assert f"{mount['mountPath']}/{item['path']}" == ASSIGNMENT_FILE


def test_a_member_never_restarts_holds_no_token_and_has_time_to_save() -> None:
    spec = of_spec()["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] == 120
    assert not [volume for volume in spec["volumes"] if "emptyDir" in volume]  # kubectl drain refuses such nodes


def test_a_field_that_is_null_counts_as_absent() -> None:
    own = template(args=None, env=None, volumeMounts=None)
    own["spec"] |= {"terminationGracePeriodSeconds": None, "volumes": None, "topologySpreadConstraints": None}
    own["metadata"] = None
    pod = of_spec(template=own)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 120
    assert env(pod)["PERDURE_GRACE_SECONDS"] == "120"
    assert len(pod["spec"]["topologySpreadConstraints"]) == 1
    assert pod["spec"]["containers"][0]["command"][-2:] == ["--", "python"]


def test_members_are_spread_softly_unless_the_template_says_how() -> None:
    (spread,) = of_spec()["spec"]["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"]["matchLabels"] == {LABEL_JOB: "digits", LABEL_UID: UID}
    own = template()
    own["spec"]["topologySpreadConstraints"] = []
    assert of_spec(template=own)["spec"]["topologySpreadConstraints"] == []


def test_every_other_field_of_the_template_stays() -> None:
    own = template(resources={"limits": {"cpu": "1"}}, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    own["metadata"] = {"labels": {"team": "a", LABEL_ROLE: "member"}, "annotations": {"note": "x"}}
    own["spec"] |= {
        "terminationGracePeriodSeconds": 7,
        "nodeSelector": {"gpu": "yes"},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}],
    }
    own["spec"]["containers"].append({"name": "sidecar", "image": "s"})
    pod = of_spec(template=own)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"][LABEL_ROLE] == "standby"
    assert pod["metadata"]["annotations"]["note"] == "x"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 7
    assert env(pod)["PERDURE_GRACE_SECONDS"] == "7"
    assert pod["spec"]["nodeSelector"] == {"gpu": "yes"}
    assert pod["spec"]["volumes"][0]["name"] == "data"
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["name"] == "data"
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}}
    assert pod["spec"]["containers"][1] == {"name": "sidecar", "image": "s"}


def test_building_a_pod_does_not_touch_the_template() -> None:
    seen = snapshot()
    before = seen.model_dump_json()
    member.pod(seen, NAME)
    assert seen.model_dump_json() == before


def test_the_environment_tells_the_contract_and_what_is_set() -> None:
    checkpoint = {
        "uri": "s3://b/p",
        "everySteps": 10,
        "keepEverySteps": 1000,
        "mirror": {"everySteps": 2},
        "s3": {"endpoint": "http://s3", "pathStyle": True},
    }
    values = env(of_spec(checkpoint=checkpoint, processesPerReplica=2, failure={"progressTimeoutSeconds": 90}))
    assert values == {
        "PERDURE_PROGRESS_TIMEOUT_SECONDS": "90",
        "PERDURE_ROOT": "s3://b/p",
        "PERDURE_UID": UID,
        "PERDURE_JOB": "ns/digits",
        "PERDURE_MEMBER": NAME,
        "PERDURE_NODE": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}},
        "PERDURE_PROCESSES": "2",
        "PERDURE_COMPLETION": "Log",
        "PERDURE_GRACE_SECONDS": "120",
        "PERDURE_KEEP": "3",
        "PERDURE_KEEP_EVERY_STEPS": "1000",
        "PERDURE_EVERY_STEPS": "10",
        "PERDURE_MIRROR_EVERY_STEPS": "2",
        "PERDURE_S3_ENDPOINT": "http://s3",
        "PERDURE_S3_PATH_STYLE": "true",
        "TMPDIR": "/dev/shm",  # noqa: S108 - the one writable folder
    }


@pytest.mark.parametrize(
    "chosen", [{"epoch": 3}, {"step": 0}, {"seq": 7, "uri": "s3://b/other"}, {"pin": "best"}, {"uri": "s3://b/other"}]
)
def test_each_member_gets_where_the_job_begins_as_the_runtime_reads_it(chosen: dict[str, Any]) -> None:
    values = env(of_spec(checkpoint={"uri": "s3://b/p", "from": chosen}))
    assert json.loads(values["PERDURE_FROM"]) == chosen
    read = read_settings({"PERDURE_ROOT": values["PERDURE_ROOT"], "PERDURE_FROM": values["PERDURE_FROM"]}).resume_from
    assert read == read_resume_from(chosen)


def test_keys_come_from_the_secret_that_the_operator_never_reads() -> None:
    values = env(of_spec(checkpoint={"uri": "s3://b/p", "s3": {"credentialsSecret": "keys"}}))
    assert values["AWS_ACCESS_KEY_ID"] == {
        "secretKeyRef": {"name": "keys", "key": "AWS_ACCESS_KEY_ID", "optional": False}
    }
    assert values["AWS_SESSION_TOKEN"]["secretKeyRef"]["optional"] is True


KEYS = {"uri": "s3://b/p", "s3": {"credentialsSecret": "keys"}}


def test_the_secret_is_mounted_too_for_a_variable_never_changes_in_a_running_pod(tmp_path: Path) -> None:
    pod = of_spec(checkpoint=KEYS)
    _, volume = pod["spec"]["volumes"]
    _, mount = pod["spec"]["containers"][0]["volumeMounts"]
    assert (volume["secret"]["secretName"], mount["name"], mount["readOnly"]) == ("keys", volume["name"], True)
    assert mount["mountPath"] == env(pod)["PERDURE_S3_CREDENTIALS"]
    assert "subPath" not in mount  # the kubelet would never update it
    for item in volume["secret"]["items"]:
        (tmp_path / item["path"]).write_text("2026-01-02T03:04:05Z" if "EXPIRATION" in item["key"] else item["key"])
    found = keys_in_folder(tmp_path)
    assert found is not None
    assert (found.access, found.secret, found.token) == (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
    )
    assert found.expires == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_missing_secret_shows_in_the_environment_and_holds_up_no_mount() -> None:
    pod = of_spec(checkpoint=KEYS)
    assert pod["spec"]["volumes"][-1]["secret"]["optional"] is True
    assert env(pod)["AWS_ACCESS_KEY_ID"]["secretKeyRef"]["optional"] is False


def test_a_user_other_than_root_reads_the_keys_and_cannot_write_them() -> None:
    assert of_spec(checkpoint=KEYS)["spec"]["volumes"][-1]["secret"]["defaultMode"] == 0o444


def test_a_pod_with_keys_has_no_folder_of_its_own_that_would_keep_its_node_from_being_drained() -> None:
    assert not [volume for volume in of_spec(checkpoint=KEYS)["spec"]["volumes"] if "emptyDir" in volume]


def test_without_a_secret_nothing_is_mounted_but_the_assignment() -> None:
    pod = of_spec(checkpoint={"uri": "s3://b/p", "s3": {"region": "eu-central-1"}})
    assert len(pod["spec"]["volumes"]) == len(pod["spec"]["containers"][0]["volumeMounts"]) == 1
    assert "PERDURE_S3_CREDENTIALS" not in env(pod)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_keys_that_the_template_sets_itself_are_not_overruled_by_a_mounted_secret(name: str) -> None:
    pod = of_spec(template=template(env=[{"name": name, "value": "mine"}]), checkpoint=KEYS)
    assert env(pod)[name] == "mine"
    assert "PERDURE_S3_CREDENTIALS" not in env(pod)
    assert len(pod["spec"]["volumes"]) == len(pod["spec"]["containers"][0]["volumeMounts"]) == 1


FROM_ELSEWHERE = {
    "uri": "s3://b/other",
    "epoch": 3,
    "s3": {"endpoint": "https://there", "pathStyle": True, "credentialsSecret": "theirs"},
}


def test_the_root_that_a_job_begins_from_is_reached_by_its_own_endpoint_and_keys_which_lie_in_files_alone() -> None:
    pod = of_spec(checkpoint=KEYS | {"from": FROM_ELSEWHERE})
    values = env(pod)
    assert json.loads(values["PERDURE_FROM"]) == {"uri": "s3://b/other", "epoch": 3}
    assert {name: value for name, value in values.items() if name.startswith("PERDURE_FROM_")} == {
        "PERDURE_FROM_S3_ENDPOINT": "https://there",
        "PERDURE_FROM_S3_PATH_STYLE": "true",
        "PERDURE_FROM_S3_CREDENTIALS": "/run/perdure-from-s3",
    }
    assert origin_options(values) == ClientOptions(
        "https://there", None, True, Path("/run/perdure-from-s3"), spec="spec.checkpoint.from", only_these_keys=True
    )
    volume = next(one for one in pod["spec"]["volumes"] if one["name"] == "perdure-from-s3")
    mount = next(one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == "perdure-from-s3")
    assert (mount["mountPath"], mount["readOnly"]) == ("/run/perdure-from-s3", True)
    assert (volume["secret"]["secretName"], volume["secret"]["defaultMode"]) == ("theirs", 0o444)
    assert volume["secret"]["optional"] is True  # later runs need it no more, and it may be gone by then
    assert values["AWS_ACCESS_KEY_ID"]["secretKeyRef"]["name"] == "keys"
    assert values["PERDURE_S3_CREDENTIALS"] == "/run/perdure-s3"


def test_another_root_without_keys_of_its_own_is_reached_with_those_of_the_job() -> None:
    pod = of_spec(checkpoint=KEYS | {"from": {"uri": "s3://b/other", "s3": {"region": "eu-central-1"}}})
    assert "PERDURE_FROM_S3_CREDENTIALS" not in env(pod)
    assert env(pod)["PERDURE_FROM_S3_REGION"] == "eu-central-1"
    assert [one["name"] for one in pod["spec"]["volumes"]] == ["perdure-assignment", "perdure-s3"]


def test_other_keys_for_the_other_root_make_another_pod() -> None:
    other = FROM_ELSEWHERE | {"s3": {"credentialsSecret": "corrected"}}
    hashes = {
        member.template_hash(
            snapshot(spec=TrainingJobSpec.model_validate(job(checkpoint=KEYS | {"from": begins})["spec"]))
        )
        for begins in (FROM_ELSEWHERE, other)
    }
    assert len(hashes) == 2


def test_only_the_trainer_is_shown_the_keys() -> None:
    own = template()
    own["spec"]["containers"].append({"name": "sidecar", "image": "s"})
    begins = KEYS | {"from": FROM_ELSEWHERE}
    assert of_spec(template=own, checkpoint=begins)["spec"]["containers"][1] == {"name": "sidecar", "image": "s"}


@pytest.mark.parametrize(
    ("checkpoint", "of_an_earlier_operator"), [({"uri": "s3://b/p"}, "a84877ff3b89ae52"), (KEYS, "c921de1ba45d548e")]
)
def test_an_upgrade_of_the_operator_leaves_the_hash_and_so_the_members_of_a_job(
    checkpoint: dict[str, Any], of_an_earlier_operator: str
) -> None:
    raw = job(checkpoint=checkpoint)["spec"]
    seen = snapshot(spec=TrainingJobSpec.model_validate(raw))
    assert member.template_hash(seen) == of_an_earlier_operator


@pytest.mark.parametrize(
    ("name", "value"), [("TMPDIR", "/scratch"), ("AWS_ACCESS_KEY_ID", "mine"), ("PERDURE_TRACE", "1")]
)
def test_the_users_variables_win_where_the_contract_is_silent(name: str, value: str) -> None:
    own = template(env=[{"name": name, "value": value}])
    checkpoint = {"uri": "s3://b/p", "s3": {"credentialsSecret": "keys"}}
    assert env(of_spec(template=own, checkpoint=checkpoint))[name] == value


def test_the_global_batch_is_in_the_environment_and_replaces_no_member() -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 4}
    old, told = of_spec(elastic=elastic), of_spec(elastic=elastic | {"globalBatchSize": 96})
    assert "PERDURE_GLOBAL_BATCH_SIZE" not in env(old)
    assert env(told)["PERDURE_GLOBAL_BATCH_SIZE"] == "96"
    hashes = {
        member.template_hash(snapshot(spec=TrainingJobSpec.model_validate(job(elastic=elastic | given)["spec"])))
        for given in ({}, {"globalBatchSize": 96})
    }
    assert len(hashes) == 1


def test_an_edit_of_how_long_a_process_may_hang_replaces_no_member() -> None:
    hashes = {
        member.template_hash(snapshot(spec=TrainingJobSpec.model_validate(job(failure=given)["spec"])))
        for given in ({}, {"progressTimeoutSeconds": 90}, {"progressTimeoutSeconds": 600})
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PERDURE_UID", UID),
        ("PERDURE_S3_CREDENTIALS", "/run/perdure-s3"),
        ("PERDURE_FROM_S3_CREDENTIALS", "/run/perdure-from-s3"),
        ("PERDURE_GLOBAL_BATCH_SIZE", "96"),
        ("PERDURE_PROGRESS_TIMEOUT_SECONDS", "90"),
    ],
)
def test_the_contracts_variables_cannot_be_redefined(name: str, value: str) -> None:
    given: dict[str, Any] = {
        "elastic": {"minReplicas": 1, "maxReplicas": 4, "globalBatchSize": 96},
        "failure": {"progressTimeoutSeconds": 90},
    }
    begins = KEYS | {"from": FROM_ELSEWHERE}
    pod = of_spec(template=template(env=[{"name": name, "value": "mine"}]), checkpoint=begins, **given)
    names = [one["name"] for one in pod["spec"]["containers"][0]["env"]]
    assert env(pod)[name] == value
    assert names.count(name) == 1


def _annotations(**spec: Any) -> dict[str, str]:
    found = of_spec(**spec)["metadata"]["annotations"].items()
    return {key: value for key, value in found if "perdure.dev" not in key and key != DEFAULT_CONTAINER}


@pytest.mark.parametrize(
    ("given", "shown"), [({}, "trainer"), ({"annotations": {DEFAULT_CONTAINER: "log"}}, "log")], ids=["", "given"]
)
def test_kubectl_shows_the_trainers_log_also_behind_a_proxy_unless_the_template_says_another(
    given: dict[str, Any], shown: str
) -> None:
    pod = of_spec(template=template() | {"metadata": given})
    assert pod["metadata"]["annotations"][DEFAULT_CONTAINER] == shown


@pytest.mark.parametrize("mode", ["Never", "Cooperative"])
def test_no_autoscaler_takes_the_node_of_a_pod_that_is_new(mode: str) -> None:
    assert _annotations(disruption={"autoscaler": mode}) == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }


def test_where_the_job_says_nothing_to_autoscalers_the_template_alone_does() -> None:
    given = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    assert _annotations(template=template() | {"metadata": {"annotations": given}}) == given
    assert _annotations() == {}


def test_annotations_for_autoscalers_make_no_other_template() -> None:
    hashes = {
        member.template_hash(snapshot(spec=TrainingJobSpec.model_validate(job(disruption=given)["spec"])))
        for given in ({}, {"autoscaler": "Never"}, {"autoscaler": "Cooperative"})
    }
    assert len(hashes) == 1


def test_a_class_of_its_own_takes_the_place_of_all_that_the_template_says_of_priority() -> None:
    raw = template()
    raw["spec"] |= {"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    seen = snapshot(spec=TrainingJobSpec.model_validate(job(template=raw)["spec"]))
    before = member.pod(seen, NAME)["spec"]
    assert (before["priorityClassName"], before["priority"]) == ("high", 1000)
    joiner = member.pod(seen, NAME, priority_class="low")["spec"]
    assert joiner["priorityClassName"] == "low"
    assert not {"priority", "preemptionPolicy"} & set(joiner)
    others = {"priorityClassName", "priority", "preemptionPolicy"}
    assert {key: joiner[key] for key in joiner if key not in others} == {
        key: before[key] for key in before if key not in others
    }


def responders(**spec: Any) -> list[dict[str, Any]] | None:
    """Of a pod that is made where Evictions are answered."""
    raw = job(template=template() | {"spec": template()["spec"] | spec})["spec"]
    made = snapshot(spec=TrainingJobSpec.model_validate(raw), responds=True)
    found: list[dict[str, Any]] | None = member.pod(made, NAME)["spec"].get("evictionResponders")
    return found


OPERATOR = {"name": "perdure.dev/operator", "priority": 10000}
OTHER = {"name": "example.com/other", "priority": 20000}


def test_the_operator_is_named_where_evictions_are_answered_and_beside_whom_the_template_names() -> None:
    assert "evictionResponders" not in of_spec()["spec"]
    assert responders() == [OPERATOR]
    assert responders(evictionResponders=[OTHER]) == [OTHER, OPERATOR]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"evictionResponders": [OPERATOR | {"priority": 5000}]}, [OPERATOR | {"priority": 5000}]),
        ({"evictionResponders": 10 * [OTHER]}, 10 * [OTHER]),
        ({"schedulingGroup": {"podGroupName": "g"}}, None),
    ],
    ids=["named by the template", "no room", "a PodGroup, for which the API server refuses it"],
)
def test_what_the_api_server_would_refuse_is_not_written(spec: dict[str, Any], named: list[dict[str, Any]]) -> None:
    assert responders(**spec) == named


def test_whether_evictions_are_answered_makes_no_other_template() -> None:
    """Else switching them on would replace members that start."""
    with_answers, without = snapshot(responds=True), snapshot()
    assert member.template_hash(with_answers) == member.template_hash(without)


CHANNEL = '{"v":1,"url":"https://operator:8444","ca":"PEM"}'


def reporting(**spec: Any) -> dict[str, Any]:
    raw = job(**spec)["spec"]
    return member.pod(snapshot(spec=TrainingJobSpec.model_validate(raw)), NAME, channel=CHANNEL)


def test_a_member_that_reports_has_its_channel_and_a_token_for_its_job_alone() -> None:
    pod = reporting()
    assert pod["metadata"]["annotations"][ANNOTATION_REPORT] == CHANNEL
    assignment, report = pod["spec"]["volumes"]
    files = {one["path"]: one["fieldRef"]["fieldPath"] for one in assignment["downwardAPI"]["items"]}
    assert files == {
        Path(ASSIGNMENT_FILE).name: f"metadata.annotations['{ANNOTATION_ASSIGNMENT}']",
        Path(CHANNEL_FILE).name: f"metadata.annotations['{ANNOTATION_REPORT}']",
    }
    (source,) = report["projected"]["sources"]
    assert source["serviceAccountToken"] == {
        "audience": f"perdure.dev/reports/ns/{UID}",
        "expirationSeconds": 3600,
        "path": Path(REPORT_TOKEN_FILE).name,
    }
    mounts = {one["mountPath"]: one["name"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts[str(Path(REPORT_TOKEN_FILE).parent)] == report["name"]
    assert mounts[str(Path(CHANNEL_FILE).parent)] == assignment["name"]
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_a_member_that_reports_differs_in_nothing_else_and_keeps_its_hash() -> None:
    """An operator that begins to take reports, or ends it, replaces nobody."""
    plain, told = of_spec(), reporting()
    assert plain["metadata"]["annotations"].keys() == told["metadata"]["annotations"].keys() - {ANNOTATION_REPORT}
    assert ANNOTATION_TEMPLATE in plain["metadata"]["annotations"]
    del told["metadata"]["annotations"][ANNOTATION_REPORT]
    told["spec"]["volumes"].pop()
    told["spec"]["volumes"][-1]["downwardAPI"]["items"].pop()
    told["spec"]["containers"][0]["volumeMounts"].pop()
    assert told == plain


def test_a_channel_leaves_the_volumes_of_the_template_as_they_are() -> None:
    own = {"name": "data", "emptyDir": {}}
    raw = template()
    raw["spec"]["volumes"] = [own]
    pod = reporting(template=raw)
    assert pod["spec"]["volumes"][0] == own
    assert [one["name"] for one in pod["spec"]["volumes"]] == ["data", "perdure-assignment", "perdure-report"]
