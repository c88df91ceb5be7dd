"""What the API server makes of a good TrainingJob: defaults, preserved fields, scale, status, columns."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import Condition, TrainingJobStatus
from perdure_operator.cluster.member import template_hash
from perdure_operator.cluster.read import parse
from perdure_operator.schema import pod
from perdure_operator.state.snapshot import Snapshot
from tests.api.conftest import REPOSITORY
from tests.api.manifests import Json, checkpoint, full, job, template
from tests.support.full_status import FULL, NOON
from tests.support.jobs import job as job_builder
from tests.support.raw import snapshot

pytestmark = pytest.mark.api

RICH = template(
    {
        "ports": [{"containerPort": 8080}],
        "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 1}},
        "livenessProbe": {"httpGet": {"port": "http", "path": "/"}},
        "env": [{"name": "B", "value": "2"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    },
    metadata={"labels": {"z": "1", "a": "2"}},
    volumes=[{"name": "data", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}}],
    tolerations=[{"operator": "Exists"}, {"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}],
    affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
    topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    securityContext={"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
)
"""Of a template's fields those that Kubernetes gives defaults to, or keeps in lists with keys."""


class Jobs:
    """The jobs of one namespace, as kubectl shows and changes them."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server, self._namespace = server, namespace

    def kubectl(self, *words: str, check: bool = True, given: Json | None = None) -> Any:
        text = None if given is None else json.dumps(given)
        return self._server.kubectl(*words, f"--namespace={self._namespace}", check=check, input=text)

    def create(self, manifest: Json) -> Json:
        self._server.ask(f"{self._path}?fieldValidation=Strict", "POST", manifest)
        return self.get(manifest["metadata"]["name"])

    def get(self, name: str) -> Json:
        return self._server.ask(f"{self._path}/{name}")

    @property
    def _path(self) -> str:
        return f"/apis/perdure.dev/v1alpha1/namespaces/{self._namespace}/trainingjobs"

    def patch(self, name: str, change: Json, *options: str) -> Any:
        patch = json.dumps(change)
        return self.kubectl("patch", "ptj", name, "--type=merge", f"--patch={patch}", *options, check=False)

    def write_status(self, name: str, status: Json) -> Json:
        """As the operator does it: the whole status, and nothing of the spec."""
        stored = self.get(name)
        body = {key: stored[key] for key in ("apiVersion", "kind")}
        body["metadata"] = {key: stored["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
        path = f"/apis/{stored['apiVersion']}/namespaces/{self._namespace}/trainingjobs/{name}/status"
        self._server.kubectl("replace", f"--raw={path}", "-f", "-", input=json.dumps({**body, "status": status}))
        return self.get(name)


@pytest.fixture
def jobs(api_server: ApiServer, namespace: str) -> Jobs:
    return Jobs(api_server, namespace)


def test_the_shortest_job_gets_the_defaults_that_the_models_have(jobs: Jobs) -> None:
    stored = jobs.create(job())
    assert stored["spec"]["replicas"] == 1
    assert stored["spec"]["checkpoint"] == {"uri": "s3://bucket/digits", "keep": 3, "resumeAnyway": False}
    assert TrainingJobSpec.model_validate(stored["spec"]) == TrainingJobSpec.model_validate(job()["spec"])
    assert set(stored["spec"]) >= {"disruption", "failure", "suspend", "processesPerReplica"}


def test_a_job_with_every_field_is_stored_as_it_is(jobs: Jobs) -> None:
    stored = jobs.create(full())
    assert stored["spec"] == full()["spec"]
    TrainingJobSpec.model_validate(stored["spec"])


@pytest.mark.parametrize(
    "uri", ["s3://my-bucket.example/a", "s3://bk/team/run-1_v2.0", "file:///ckpt", "file:///mnt/a%20b"]
)
def test_the_checkpoint_root_may_be_in_a_bucket_or_a_folder(jobs: Jobs, uri: str) -> None:
    assert jobs.create(job(checkpoint=checkpoint(uri)))["spec"]["checkpoint"]["uri"] == uri


def test_a_null_is_as_good_as_an_absent_field(jobs: Jobs) -> None:
    stored = jobs.create(job(suspend=None, checkpoint=checkpoint(s3=None, everySteps=None, keep=None)))
    assert stored["spec"]["checkpoint"] == checkpoint(keep=3, resumeAnyway=False)
    assert stored["spec"]["suspend"] is False


def test_an_unknown_field_of_a_pod_is_reported_and_dropped_where_the_client_does_not_ask(jobs: Jobs) -> None:
    """Kubernetes would drop it from the pod as well, in silence."""
    mistyped = job(template=template({"imagePullPolcy": "Always"}, affinity={"nodeAffinity": {"future": [{"a": 1}]}}))
    refused = jobs.kubectl("apply", "-f", "-", given=mistyped, check=False)
    assert refused.returncode != 0
    assert 'unknown field "spec.template.spec.containers[0].imagePullPolcy"' in refused.stderr
    assert 'unknown field "spec.template.spec.affinity.nodeAffinity.future"' in refused.stderr
    told = jobs.kubectl("apply", "--validate=warn", "-f", "-", given=mistyped)
    assert 'Warning: unknown field "spec.template.spec.containers[0].imagePullPolcy"' in told.stderr
    assert jobs.get("digits")["spec"]["template"] == template(affinity={"nodeAffinity": {}})


def test_a_template_is_stored_as_it_is_written_and_a_pod_of_it_is_the_same_in_every_order(jobs: Jobs) -> None:
    """The operator compares templates by a hash: the API server may neither add nor move anything."""
    written = job(template=RICH)
    stored = jobs.create(written)
    assert stored["spec"]["template"] == RICH
    assert template_hash(_seen(stored)) == template_hash(_seen(stored | {"spec": _turned(stored["spec"])}))
    assert template_hash(_seen(stored)) == template_hash(_seen({**stored, "spec": written["spec"]}))


@pytest.mark.parametrize("example", ["digits", "tinygpt", "trainer", "lightning"])
def test_the_example_is_taken_without_a_warning(jobs: Jobs, example: str) -> None:
    done = jobs.kubectl("create", "--dry-run=server", "-f", str(REPOSITORY / "examples" / example / "job.yaml"))
    assert done.stderr == ""


def test_nulls_in_a_template_are_dropped(jobs: Jobs) -> None:
    pod = template({"env": None, "resources": {"limits": None}}, volumes=None, terminationGracePeriodSeconds=None)
    assert jobs.create(job(template=pod))["spec"]["template"] == template({"resources": {}})


@pytest.mark.parametrize("value", ['"4"', "4", '"500m"', '"1Gi"'])
def test_a_quantity_may_be_a_number_or_a_string(jobs: Jobs, value: str) -> None:
    limits = {"cpu": json.loads(value)}
    stored = jobs.create(job(template=template({"resources": {"limits": limits}})))
    assert stored["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == limits


def test_a_fraction_as_a_quantity_is_told_to_be_written_as_a_string(jobs: Jobs) -> None:
    pod = template({"resources": {"limits": {"cpu": 0.5}}})
    refused = jobs.kubectl("create", "-f", "-", given=job(template=pod), check=False)
    assert "resources.limits.cpu" in refused.stderr
    assert "integer,string" in refused.stderr


@pytest.mark.parametrize("levels", [1_200, 9_000])
@pytest.mark.parametrize("validate", ["strict", "ignore"])
def test_a_template_is_never_stored_deeper_than_a_pod(
    jobs: Jobs, api_server: ApiServer, namespace: str, levels: int, validate: str
) -> None:
    deep = '{"a":' * levels + "{}" + "}" * levels
    affinity = json.dumps(job(template=template(affinity="<here>"))).replace('"<here>"', deep)
    path = f"/apis/perdure.dev/v1alpha1/namespaces/{namespace}/trainingjobs?fieldValidation={validate.capitalize()}"
    done = api_server.kubectl("create", f"--raw={path}", "-f", "-", input=affinity, check=False)
    if validate == "strict":
        assert done.returncode != 0
        return
    assert done.returncode == 0, done.stderr
    assert jobs.get("digits")["spec"]["template"] == template(affinity={})


def test_two_appliers_may_own_different_containers_and_volumes(jobs: Jobs) -> None:
    own = job()
    jobs.kubectl("apply", "--server-side", "-f", "-", given=own)
    sidecar = {"name": "metrics", "image": "metrics:1", "restartPolicy": "Always"}
    other = {**own, "spec": {"template": {"spec": {"initContainers": [sidecar], "volumes": [{"name": "v"}]}}}}
    other["spec"]["template"]["spec"]["containers"] = [{"name": "trainer", "workingDir": "/data"}]
    jobs.kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", given=other)
    pod = jobs.get("digits")["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["trainer"]
    assert pod["containers"][0]["workingDir"] == "/data"
    assert pod["containers"][0]["command"] == ["python", "train.py"]
    assert pod["initContainers"] == [sidecar]


def test_an_unknown_field_of_the_spec_is_dropped_where_the_client_does_not_ask_for_strictness(jobs: Jobs) -> None:
    jobs.kubectl("create", "--validate=ignore", "-f", "-", given=job(minReplicas=2))
    assert "minReplicas" not in jobs.get("digits")["spec"]


def test_the_checkpoint_root_cannot_be_changed(jobs: Jobs) -> None:
    jobs.create(job())
    refused = jobs.patch("digits", {"spec": {"checkpoint": {"uri": "s3://bucket/other"}}})
    assert refused.returncode != 0
    assert "spec.checkpoint.uri: Forbidden: checkpoint.uri cannot be changed" in refused.stderr
    assert "create another job" in refused.stderr


@pytest.mark.parametrize(("was", "then"), [(None, {"epoch": 3}), ({"epoch": 3}, None), ({"epoch": 3}, {"epoch": 4})])
def test_where_a_job_begins_cannot_be_changed(jobs: Jobs, was: Json | None, then: Json | None) -> None:
    jobs.create(job(checkpoint={**checkpoint(), "from": was}))
    refused = jobs.patch("digits", {"spec": {"checkpoint": {"from": then}}})
    assert refused.returncode != 0
    assert "spec.checkpoint.from: Forbidden: checkpoint.from cannot be changed" in refused.stderr
    jobs.patch("digits", {"spec": {"checkpoint": {"keep": 7}}})
    assert jobs.get("digits")["spec"]["checkpoint"]["keep"] == 7


def test_how_the_root_that_a_job_begins_from_is_reached_may_be_corrected(jobs: Jobs) -> None:
    wrong = {"uri": "s3://bucket/other", "epoch": 3, "s3": {"endpoint": "http://wrong:9000"}}
    jobs.create(job(checkpoint={**checkpoint(), "from": wrong}))
    right = {"endpoint": "http://right:9000", "credentialsSecret": "theirs", "pathStyle": True}
    assert jobs.patch("digits", {"spec": {"checkpoint": {"from": {"s3": right}}}}).returncode == 0
    assert jobs.get("digits")["spec"]["checkpoint"]["from"] == wrong | {"s3": right}
    assert jobs.patch("digits", {"spec": {"checkpoint": {"from": {"s3": None}}}}).returncode == 0
    refused = jobs.patch("digits", {"spec": {"checkpoint": {"from": {"uri": "s3://bucket/another"}}}})
    assert "spec.checkpoint.from: Forbidden: checkpoint.from cannot be changed" in refused.stderr


@pytest.mark.parametrize(
    ("was", "then"), [(None, {"everySteps": 3}), ({"everySteps": 3}, None), ({"everySteps": 3}, {"everySteps": 4})]
)
def test_all_members_of_a_job_mirror_alike_so_that_cannot_be_changed(
    jobs: Jobs, was: Json | None, then: Json | None
) -> None:
    jobs.create(job(checkpoint={**checkpoint(), "mirror": was}))
    refused = jobs.patch("digits", {"spec": {"checkpoint": {"mirror": then}}})
    assert refused.returncode != 0
    assert "spec.checkpoint.mirror: Forbidden: checkpoint.mirror cannot be changed" in refused.stderr


@pytest.mark.parametrize(
    "chosen",
    [
        {"epoch": 0},
        {"step": 40},
        {"seq": 1},
        {"pin": "best-2.1_x"},
        {"uri": "s3://bucket/other"},
        {"uri": "s3://bucket/other", "pin": "best"},
    ],
)
def test_a_job_may_begin_from_a_commit_of_its_own_or_another_root(jobs: Jobs, chosen: Json) -> None:
    assert jobs.create(job(checkpoint={**checkpoint(), "from": chosen}))["spec"]["checkpoint"]["from"] == chosen


def test_every_other_field_can_be_changed(jobs: Jobs) -> None:
    jobs.create(job())
    changed = full("digits")
    changed["spec"]["checkpoint"]["uri"] = "s3://bucket/digits"
    del changed["spec"]["checkpoint"]["from"]
    jobs.kubectl("apply", "-f", "-", given=changed)
    assert jobs.get("digits")["spec"] == changed["spec"]


def test_kubectl_scale_changes_the_number_of_members(jobs: Jobs) -> None:
    jobs.create(job())
    jobs.kubectl("scale", "ptj/digits", "--replicas=3")
    assert jobs.get("digits")["spec"]["replicas"] == 3


def test_applying_a_manifest_without_replicas_again_does_not_undo_a_scale(jobs: Jobs) -> None:
    jobs.kubectl("apply", "-f", "-", given=job())
    jobs.kubectl("scale", "ptj/digits", "--replicas=3")
    jobs.kubectl("apply", "-f", "-", given=job())
    assert jobs.get("digits")["spec"]["replicas"] == 3


@pytest.mark.parametrize("replicas", [0, 1001])
def test_a_scale_out_of_range_is_refused(jobs: Jobs, replicas: int) -> None:
    jobs.create(job())
    refused = jobs.kubectl("scale", "ptj/digits", f"--replicas={replicas}", check=False)
    assert refused.returncode != 0
    assert "replicas must be 1 to 1000: to stop the job and keep its progress, set spec.suspend" in refused.stderr
    assert jobs.get("digits")["spec"]["replicas"] == 1


def test_a_scale_above_the_largest_size_is_refused_and_one_below_the_smallest_is_not(jobs: Jobs) -> None:
    """An autoscaler of pods may ask for less than the job can do with: it gets the smallest size."""
    jobs.create(job(replicas=4, elastic={"minReplicas": 2, "maxReplicas": 8}))
    refused = jobs.kubectl("scale", "ptj/digits", "--replicas=9", check=False)
    assert refused.returncode != 0
    assert "ask for fewer, or raise elastic.maxReplicas" in refused.stderr
    jobs.kubectl("scale", "ptj/digits", "--replicas=1")
    assert jobs.get("digits")["spec"]["replicas"] == 1


def _asks_for(api_server: ApiServer, namespace: str, replicas: int) -> subprocess.CompletedProcess[str]:
    """As a HorizontalPodAutoscaler does: it reads the scale, and writes it back with another number."""
    path = f"/apis/perdure.dev/v1alpha1/namespaces/{namespace}/trainingjobs/digits/scale"
    scale = json.loads(api_server.kubectl("get", "--raw", path).stdout)
    scale["spec"]["replicas"] = replicas
    return api_server.kubectl("replace", "--raw", path, "-f", "-", input=json.dumps(scale), check=False)


def test_an_autoscaler_of_pods_that_asks_for_too_many_is_told_why_and_what_to_do(
    jobs: Jobs, api_server: ApiServer, namespace: str
) -> None:
    """What the API server answers is all that it can show."""
    jobs.create(job(replicas=4, elastic={"minReplicas": 2, "maxReplicas": 8, "sizes": [2, 4, 8]}))
    refused = _asks_for(api_server, namespace, 9)
    assert refused.returncode != 0
    why = "spec.replicas: Invalid value: replicas must not be above elastic.maxReplicas"
    assert f"{why}: ask for fewer, or raise elastic.maxReplicas" in refused.stderr
    assert jobs.get("digits")["spec"]["replicas"] == 4
    for replicas in (8, 3, 1):  # also invalid sizes: the job has the one below, or the smallest
        assert _asks_for(api_server, namespace, replicas).returncode == 0
        assert jobs.get("digits")["spec"]["replicas"] == replicas


def test_a_largest_size_below_what_an_autoscaler_has_asked_for_is_refused_with_both_ways_out(jobs: Jobs) -> None:
    manifest = job(elastic={"minReplicas": 2, "maxReplicas": 8})
    jobs.kubectl("apply", "-f", "-", given=manifest)
    jobs.kubectl("scale", "ptj/digits", "--replicas=8")
    manifest["spec"]["elastic"]["maxReplicas"] = 4
    refused = jobs.kubectl("apply", "-f", "-", given=manifest, check=False)
    assert refused.returncode != 0
    assert "ask for fewer, or raise elastic.maxReplicas" in refused.stderr
    jobs.kubectl("scale", "ptj/digits", "--replicas=4")
    jobs.kubectl("apply", "-f", "-", given=manifest)


def test_the_largest_size_of_a_job_that_shares_a_pool_can_be_lowered(jobs: Jobs) -> None:
    """Its replicas only count while it tells nothing of its speed, and no more than the largest size."""
    jobs.create(job(replicas=8, elastic={"minReplicas": 2, "maxReplicas": 8, "policy": "Goodput"}))
    jobs.kubectl("patch", "ptj/digits", "--type=merge", '--patch={"spec": {"elastic": {"maxReplicas": 4}}}')
    assert jobs.get("digits")["spec"]["replicas"] == 8
    refused = jobs.kubectl("scale", "ptj/digits", "--replicas=4", check=False)
    assert "replicas cannot be changed with elastic.policy Goodput" in refused.stderr
    both = '--patch={"spec": {"replicas": 3, "elastic": {"maxReplicas": 3}}}'
    jobs.kubectl("patch", "ptj/digits", "--type=merge", both)
    assert jobs.get("digits")["spec"]["replicas"] == 3


def test_a_job_that_leaves_its_pool_has_no_more_replicas_than_its_largest_size(jobs: Jobs) -> None:
    jobs.create(job(replicas=8, elastic={"minReplicas": 2, "maxReplicas": 4, "policy": "Goodput"}))
    leaves = '--patch={"spec": {"elastic": {"policy": "Capacity"}}}'
    refused = jobs.kubectl("patch", "ptj/digits", "--type=merge", leaves, check=False)
    assert "ask for fewer, or raise elastic.maxReplicas" in refused.stderr
    both = '--patch={"spec": {"replicas": 4, "elastic": {"policy": "Capacity"}}}'
    jobs.kubectl("patch", "ptj/digits", "--type=merge", both)
    assert jobs.get("digits")["spec"]["elastic"]["policy"] == "Capacity"


def test_a_job_with_its_checkpoints_on_one_node_cannot_be_scaled(jobs: Jobs) -> None:
    jobs.create(job(checkpoint=checkpoint("file:///ckpt")))
    refused = jobs.kubectl("scale", "ptj/digits", "--replicas=2", check=False)
    assert refused.returncode != 0
    assert "use s3://bucket/prefix" in refused.stderr


def test_status_is_written_apart_from_the_spec_and_keeps_every_field_of_the_model(jobs: Jobs) -> None:
    before = jobs.create(job())
    after = jobs.write_status("digits", FULL.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert TrainingJobStatus.model_validate(after["status"]) == FULL
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_the_test_above_sets_every_field_of_status() -> None:
    empty = {path for path, value in _leaves(FULL.model_dump(mode="json")) if value in (None, "", [])}
    assert empty == set()


def test_an_empty_status_can_be_written(jobs: Jobs) -> None:
    jobs.create(job())
    after = jobs.write_status("digits", TrainingJobStatus().model_dump(mode="json", by_alias=True, exclude_none=True))
    assert TrainingJobStatus.model_validate(after["status"]) == TrainingJobStatus()


def test_an_operator_newer_than_the_crd_does_not_lose_its_memory(jobs: Jobs) -> None:
    """Helm never upgrades a CRD."""
    newer = {"phase": "Dreaming", "futureList": [{"a": 1}], "failures": {"code": 1, "infrastructure": 0, "future": 2}}
    jobs.create(job())
    assert jobs.write_status("digits", newer)["status"] == newer


def test_a_status_in_a_manifest_is_ignored(jobs: Jobs) -> None:
    stored = jobs.create({**job(), "status": {"phase": "Completed"}})
    assert "status" not in stored
    jobs.patch("digits", {"status": {"phase": "Completed"}})
    assert "status" not in jobs.get("digits")


def test_kubectl_get_shows_where_a_job_is_and_what_it_waits_for(jobs: Jobs) -> None:
    jobs.create(job())
    waiting = Condition(
        type="Running",
        status="False",
        reason="Unschedulable",
        message="no node for digits-ab12-0",
        last_transition_time=NOON,
    )
    status = FULL.model_copy(update={"conditions": (waiting,)})
    jobs.write_status("digits", status.model_dump(mode="json", by_alias=True, exclude_none=True))
    head, line = jobs.kubectl("get", "ptj").stdout.splitlines()
    assert head.split() == ["NAME", "PHASE", "RUN", "MEMBERS", "HOW", "STEP", "WHY", "AGE"]
    assert line.split()[:7] == ["digits", "Vacating", "8", "2", "live", "120", "Unschedulable"]
    assert jobs.kubectl("get", "ptj", "--output=wide").stdout.rstrip().endswith("no node for digits-ab12-0")


def test_kubectl_get_shows_the_last_commits_step_of_a_job_that_nobody_reports_for(jobs: Jobs) -> None:
    unheard = FULL.model_copy(update={"progress": None, "last_save": None})
    jobs.create(job())
    jobs.write_status("digits", unheard.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert jobs.kubectl("get", "ptj").stdout.splitlines()[1].split()[5] == "100"


def test_kubectl_describe_shows_what_people_look_for_above_the_operators_memory(jobs: Jobs) -> None:
    conditions = job_builder().running(world=2).now.conditions
    status = FULL.model_copy(update={"conditions": conditions})
    jobs.create(job())
    jobs.write_status("digits", status.model_dump(mode="json", by_alias=True, exclude_none=True))
    told = jobs.kubectl("describe", "ptj", "digits").stdout
    places = [told.index(words) for words in ("kubectl logs digits-ab12-0", "Undisturbed", "  Current:\n", "  Next:\n")]
    assert places == sorted(places)


def test_a_job_is_found_under_its_short_name_and_its_categories(jobs: Jobs) -> None:
    jobs.create(job())
    for name in ("ptj", "perdure", "all"):
        assert "trainingjob.perdure.dev/digits" in jobs.kubectl("get", name, "--output=name").stdout.split()


def test_kubectl_explains_a_pods_fields(jobs: Jobs) -> None:
    told = jobs.kubectl("explain", "ptj.spec.template.spec").stdout
    assert "terminationGracePeriodSeconds" in told
    deep = jobs.kubectl("explain", "ptj.spec.template.spec.containers.resources.limits").stdout
    assert "Limits describes the maximum amount of compute resources allowed" in " ".join(deep.split())


def test_the_schema_is_the_one_of_the_pinned_api_server(api_server: ApiServer) -> None:
    document = json.loads(api_server.kubectl("get", "--raw", "/openapi/v3/api/v1").stdout)
    command = "kubectl get --raw /openapi/v3/api/v1 | python -m perdure_operator.schema.pod"
    assert pod.text(pod.extract(document)) == pod.text(pod.source()), f"write anew: {command}"


def test_kubectl_explains_a_field(jobs: Jobs) -> None:
    told = " ".join(jobs.kubectl("explain", "ptj.spec.disruption.exitTimeoutSeconds").stdout.split())
    assert "How long leaving members may take to save." in told


def _seen(raw: Json) -> Snapshot:
    """As the operator sees the job."""
    return snapshot(spec=parse.spec(raw["spec"])[0])


def _turned(value: Any) -> Any:
    """The same value with the keys of every map in another order."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(one) for one in value] if isinstance(value, list) else value


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for name, inner in value.items() for leaf in _leaves(inner, f"{path}.{name}")]
    if isinstance(value, list) and value:
        return [leaf for inner in value for leaf in _leaves(inner, f"{path}[]")]
    return [(path, value)]
