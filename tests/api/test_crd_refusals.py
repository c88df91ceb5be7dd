"""A bad manifest is refused by the API server, and the answer says where the mistake is and what to do about it."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.cluster.apiserver import ApiServer, Refused
from perdure_operator.schema import crd, reference_page
from tests.api.manifests import Json, checkpoint, job, template

pytestmark = pytest.mark.api
JOBS = "/apis/perdure.dev/v1alpha1/namespaces/default/trainingjobs"


@dataclass(frozen=True)
class Bad:
    """A manifest with one mistake: the path that the API server must name, and words of the remedy."""

    case: str
    manifest: Json
    where: str
    remedy: str


def elastic(least: int, most: int, sizes: list[int] | None = None, **spec: Any) -> Json:
    """A job of these sizes."""
    allowed = {} if sizes is None else {"sizes": sizes}
    return job(elastic={"minReplicas": least, "maxReplicas": most, **allowed}, **spec)


def elastic_batch(batch: int, least: int, most: int, sizes: list[int] | None = None, **spec: Any) -> Json:
    """The same with a global batch."""
    manifest = elastic(least, most, sizes, **spec)
    manifest["spec"]["elastic"]["globalBatchSize"] = batch
    return manifest


def begins(**chosen: Any) -> Json:
    """A job that should begin from this commit."""
    return job(checkpoint={**checkpoint(), "from": chosen})


def _trainer(**fields: Any) -> Json:
    return template(fields)


def _two_containers() -> Json:
    pod = template()
    pod["spec"]["containers"].append({"name": "sidecar", "readinessProbe": {"tcpSocket": {"port": 80}}})
    return pod


def _without(manifest: Json, *path: str) -> Json:
    spoiled = copy.deepcopy(manifest)
    inner = spoiled
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return spoiled


_COMMANDLESS = {"spec": {"containers": [{"name": "trainer", "image": "digits:dev", "args": ["train.py"]}]}}
_POD = "spec.template.spec"
_TRAINER = f"{_POD}.containers"
_AUTOSCALER = "spec.disruption.autoscaler"

BAD = (
    Bad("a long name", job("x" * 51, checkpoint=checkpoint()), "metadata.name", "at most 50 characters"),
    Bad("no members", job(replicas=0), "spec.replicas", "set spec.suspend to true"),
    Bad("too many members", job(replicas=1001), "spec.replicas", "must be 1 to 1000:"),
    Bad("the smallest above the largest", elastic(4, 2), "spec.elastic.minReplicas", "lower it, or raise maxReplicas"),
    Bad("no members at least", elastic(0, 2), "spec.elastic.minReplicas", "must be 1 to 1000"),
    Bad("too many members at most", elastic(1, 1001), "spec.elastic.maxReplicas", "must be 1 to 1000"),
    Bad("no largest size", job(elastic={"minReplicas": 2}), "spec.elastic.maxReplicas", "Required value"),
    Bad("a size above the largest", elastic(2, 4, [2, 8]), "spec.elastic.sizes", "remove those that are"),
    Bad("a size below the smallest", elastic(2, 4, [1, 2, 4]), "spec.elastic.sizes", "must begin with minReplicas"),
    Bad("no size", elastic(2, 4, []), "spec.elastic.sizes", "must begin with minReplicas"),
    Bad("sizes in disorder", elastic(2, 8, [2, 8, 4]), "spec.elastic.sizes", "sort them"),
    Bad("a size twice", elastic(2, 4, [2, 4, 4]), "spec.elastic.sizes", "remove the doubles"),
    Bad(
        "a batch of nothing",
        elastic_batch(0, 1, 4),
        "spec.elastic.globalBatchSize",
        "elastic.globalBatchSize must be 1 or more",
    ),
    Bad(
        "a smallest size that does not divide the batch",
        elastic_batch(64, 3, 8),
        "spec.elastic.minReplicas",
        "choose one that does, or remove globalBatchSize",
    ),
    Bad(
        "processes that do not divide the batch",
        elastic_batch(12, 2, 8, processesPerReplica=8),
        "spec.elastic.minReplicas",
        "times processesPerReplica must divide elastic.globalBatchSize",
    ),
    Bad(
        "a size that does not divide the batch",
        elastic_batch(64, 2, 8, [2, 4, 6]),
        "spec.elastic.sizes",
        "remove those that do not, or remove sizes",
    ),
    Bad("too many sizes", elastic(1, 1000, [*range(1, 66)]), "spec.elastic.sizes", "must have at most 64 items"),
    Bad(
        "a cordon's fourth way",
        job(disruption={"onCordon": "Maybe"}),
        "spec.disruption.onCordon",
        "MoveIfRoom or Ignore",
    ),
    Bad(
        "a reaction that no job has",
        job(disruption={"signals": {"karpenter": "GiveUp"}}),
        "spec.disruption.signals",
        "one of Vacate, VacateIfRoom, Fault, CheckpointNow, Avoid and Ignore",
    ),
    Bad(
        "too many signals",
        job(disruption={"signals": {f"row-{number}": "Ignore" for number in range(65)}}),
        "spec.disruption.signals",
        "must have at most 64 items",
    ),
    Bad("an autoscaler's third way", job(disruption={"autoscaler": "Maybe"}), _AUTOSCALER, "Never or Cooperative"),
    *(
        Bad(
            f"{name} from two sides",
            job(disruption={"autoscaler": "Never"}, template=template(metadata={"annotations": {name: "true"}})),
            _AUTOSCALER,
            "remove them from template.metadata.annotations, or remove disruption.autoscaler",
        )
        for name in ("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt")
    ),
    Bad(
        "growing an hour late",
        job(elastic={"minReplicas": 1, "maxReplicas": 2, "growAfterSeconds": 3601}),
        "spec.elastic.growAfterSeconds",
        "must be 0 to 3600",
    ),
    Bad(
        "no time to grow",
        job(elastic={"minReplicas": 1, "maxReplicas": 2, "growTimeoutSeconds": 29}),
        "spec.elastic.growTimeoutSeconds",
        "must be 30 to 86400",
    ),
    Bad(
        "a class that cannot be",
        job(elastic={"minReplicas": 1, "maxReplicas": 2, "joinerPriorityClassName": "Low Priority"}),
        "spec.elastic.joinerPriorityClassName",
        "such as that of Perdure's chart",
    ),
    Bad(
        "more spares than there can be",
        job(elastic={"minReplicas": 1, "maxReplicas": 2, "spares": 101}),
        "spec.elastic.spares",
        "must be 0 to 100",
    ),
    Bad(
        "a pool of a job that follows replicas",
        job(elastic={"minReplicas": 1, "maxReplicas": 2, "pool": "night"}),
        "spec.elastic.pool",
        "set elastic.policy to Goodput",
    ),
    Bad(
        "no name of a pool",
        job(elastic={"minReplicas": 1, "maxReplicas": 2, "policy": "Goodput", "pool": "Night shift"}),
        "spec.elastic.pool",
        "must be a name in lower case",
    ),
    Bad(
        "no policy of sizes",
        job(elastic={"minReplicas": 1, "maxReplicas": 2, "policy": "goodput"}),
        "spec.elastic.policy",
        "must be Capacity or Goodput",
    ),
    Bad("more than the largest size", elastic(2, 4, replicas=5), "spec.replicas", "raise elastic.maxReplicas"),
    Bad(
        "elastic with file://",
        elastic(1, 2, checkpoint=checkpoint("file:///ckpt")),
        "spec.elastic",
        "use s3://bucket/prefix",
    ),
    Bad("no time to start", job(startTimeoutSeconds=29), "spec.startTimeoutSeconds", "must be 30 to 86400: an auto"),
    Bad("no processes", job(processesPerReplica=0), "spec.processesPerReplica", "must be 1 to 64"),
    Bad("too many processes", job(processesPerReplica=65), "spec.processesPerReplica", "raise replicas"),
    Bad("no checkpoint", _without(job(), "spec", "checkpoint"), "spec.checkpoint", "Required value"),
    Bad("no uri", job(checkpoint={"keep": 3}), "spec.checkpoint.uri", "Required value"),
    Bad("another store", job(checkpoint=checkpoint("gs://b/c")), "spec.checkpoint.uri", "must be s3://bucket/prefix"),
    Bad("a whole bucket", job(checkpoint=checkpoint("s3://b")), "spec.checkpoint.uri", "must be s3://bucket/prefix"),
    Bad("a slash at the end", job(checkpoint=checkpoint("s3://bk/a/")), "spec.checkpoint.uri", "without a slash"),
    Bad("an empty part", job(checkpoint=checkpoint("s3://bk/a//b")), "spec.checkpoint.uri", "must be s3://bucket/"),
    Bad("a query", job(checkpoint=checkpoint("s3://bk/a?b=c")), "spec.checkpoint.uri", "must be s3://bucket/prefix"),
    Bad("a host in file", job(checkpoint=checkpoint("file://h/a")), "spec.checkpoint.uri", "file:///folder"),
    Bad("an endless uri", job(checkpoint=checkpoint(f"s3://bk/{'a' * 512}")), "spec.checkpoint.uri", "than 512 bytes"),
    Bad(
        "file:// for two members",
        job(replicas=2, checkpoint=checkpoint("file:///ckpt")),
        "spec.replicas",
        "use s3://bucket/prefix",
    ),
    Bad(
        "s3 with file://",
        job(checkpoint=checkpoint("file:///ckpt", s3={"region": "eu-central-1"})),
        "spec.checkpoint.s3",
        "remove it",
    ),
    Bad("from nowhere", begins(), "spec.checkpoint.from", "checkpoint.from is empty: name a commit by epoch"),
    Bad("from two places", begins(epoch=1, seq=2), "spec.checkpoint.from", "exclude each other: keep one of them"),
    Bad("from a whole bucket", begins(uri="s3://b"), "spec.checkpoint.from.uri", "checkpoint.from.uri must be s3://"),
    Bad("from a folder", begins(uri="file:///a"), "spec.checkpoint.from", "in a store of the same kind"),
    Bad("from an epoch below 0", begins(epoch=-1), "spec.checkpoint.from.epoch", "checkpoint.from.epoch must be 0 or"),
    Bad("from a step below 0", begins(step=-1), "spec.checkpoint.from.step", "checkpoint.from.step must be 0 or more"),
    Bad("from entry 0", begins(seq=0), "spec.checkpoint.from.seq", "checkpoint.from.seq must be 1 or more"),
    Bad(
        "from a pin that is none",
        begins(pin="my best"),
        "spec.checkpoint.from.pin",
        "checkpoint.from.pin must be a name",
    ),
    Bad(
        "a way to no other root",
        begins(epoch=1, s3={"pathStyle": True}),
        "spec.checkpoint.from.s3",
        "remove it, or give checkpoint.from.uri",
    ),
    Bad(
        "an endpoint of the other root without scheme",
        begins(uri="s3://b/other", s3={"endpoint": "minio:9000"}),
        "spec.checkpoint.from.s3.endpoint",
        "must be a http:// or https:// URL",
    ),
    Bad(
        "an endpoint without scheme",
        job(checkpoint=checkpoint(s3={"endpoint": "minio:9000"})),
        "spec.checkpoint.s3.endpoint",
        "must be a http:// or https:// URL",
    ),
    Bad(
        "a password in the endpoint",
        job(checkpoint=checkpoint(s3={"endpoint": "http://user:secret@minio:9000"})),
        "spec.checkpoint.s3.endpoint",
        "without user",
    ),
    Bad(
        "a zone's title as region",
        job(checkpoint=checkpoint(s3={"region": "Europe (Frankfurt)"})),
        "spec.checkpoint.s3.region",
        "such as eu-central-1",
    ),
    Bad(
        "a key as Secret",
        job(checkpoint=checkpoint(s3={"credentialsSecret": "AKIA/SECRET"})),
        "spec.checkpoint.s3.credentialsSecret",
        "name of a Secret",
    ),
    Bad(
        "two cadences",
        job(checkpoint=checkpoint(everySteps=10, everyEpochs=1)),
        "spec.checkpoint",
        "exclude each other: keep one of them",
    ),
    Bad("every 0 steps", job(checkpoint=checkpoint(everySteps=0)), "spec.checkpoint.everySteps", "must be 1 or more"),
    Bad(
        "every 0 seconds",
        job(checkpoint=checkpoint(everySeconds=0)),
        "spec.checkpoint.everySeconds",
        "must be 1 or more",
    ),
    Bad(
        "every 0 epochs", job(checkpoint=checkpoint(everyEpochs=0)), "spec.checkpoint.everyEpochs", "must be 1 or more"
    ),
    Bad(
        "a mirror after every 0 steps",
        job(checkpoint=checkpoint(mirror={"everySteps": 0})),
        "spec.checkpoint.mirror.everySteps",
        "must be 1 or more",
    ),
    Bad("nothing kept", job(checkpoint=checkpoint(keep=0)), "spec.checkpoint.keep", "must be 1 or more"),
    Bad(
        "a hasty exit",
        job(disruption={"exitTimeoutSeconds": 4}),
        "spec.disruption.exitTimeoutSeconds",
        "must be 5 to 86400",
    ),
    Bad(
        "an endless exit",
        job(disruption={"exitTimeoutSeconds": 86401}),
        "spec.disruption.exitTimeoutSeconds",
        "must be 5 to 86400",
    ),
    Bad(
        "endless standbys",
        job(disruption={"replacementTimeoutSeconds": 86401}),
        "spec.disruption.replacementTimeoutSeconds",
        "must be 0 to 86400",
    ),
    Bad("negative code", job(failure={"maxCodeFailures": -1}), "spec.failure.maxCodeFailures", "must be 0 or more"),
    Bad(
        "negative infrastructure",
        job(failure={"maxInfrastructureFailures": -1}),
        "spec.failure.maxInfrastructureFailures",
        "must be 0 or more",
    ),
    Bad(
        "negative memory",
        job(failure={"maxOutOfMemoryFailures": -1}),
        "spec.failure.maxOutOfMemoryFailures",
        "0 gives up at the first out-of-memory kill",
    ),
    Bad("a hasty outage", job(failure={"massOutageSeconds": 4}), "spec.failure.massOutageSeconds", "must be 5 or more"),
    Bad("another completion", job(completion="Exit"), "spec.completion", "must be Log or ExitCode"),
    Bad(
        "hasty end",
        job(failure={"progressTimeoutSeconds": 9}),
        "spec.failure.progressTimeoutSeconds",
        "failure.progressTimeoutSeconds must be 10 or more",
    ),
    Bad("hasty loss", job(failure={"lostNodeSeconds": 4}), "spec.failure.lostNodeSeconds", "must be 5 or more"),
    Bad(
        "no time", job(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds", "remove it for a job without a deadline"
    ),
    Bad("past life", job(ttlSecondsAfterFinished=-1), "spec.ttlSecondsAfterFinished", "remove it to keep"),
    Bad("words for a number", job(replicas="two"), "spec.replicas", 'must be of type integer: "string"'),
    Bad("no template", _without(job(), "spec", "template"), "spec.template", "Required value"),
    Bad("no pod", job(template={}), f"{_POD}", "Required value"),
    Bad("no containers", job(template={"spec": {"containers": []}}), _TRAINER, "containers[0].command is missing"),
    Bad("no command", job(template=_COMMANDLESS), _TRAINER, "containers[0].command is missing"),
    Bad("an empty command", job(template=_trainer(command=[])), _TRAINER, "write it out, such as [python, train.py]"),
    Bad("an own startupProbe", job(template=_trainer(startupProbe={})), _TRAINER, "startupProbe is Perdure's own"),
    Bad(
        "an own termination message",
        job(template=_trainer(terminationMessagePath="/dev/end")),
        _TRAINER,
        "terminationMessagePath and terminationMessagePolicy are Perdure's",
    ),
    Bad(
        "an own termination policy",
        job(template=_trainer(terminationMessagePolicy="FallbackToLogsOnError")),
        _TRAINER,
        "run ended: remove them",
    ),
    Bad(
        "a mount over the assignment",
        job(template=_trainer(volumeMounts=[{"name": "v", "mountPath": "/run/perdure"}])),
        _TRAINER,
        "mount the volume elsewhere",
    ),
    Bad(
        "a mount inside the assignment's folder",
        job(template=_trainer(volumeMounts=[{"name": "v", "mountPath": "/run/perdure/x"}])),
        _TRAINER,
        "containers[0].volumeMounts must leave /run/perdure",
    ),
    Bad(
        "a mount over the keys",
        job(template=_trainer(volumeMounts=[{"name": "v", "mountPath": "/run/perdure-s3"}])),
        _TRAINER,
        "must leave /run/perdure, /run/perdure-s3, /run/perdure-from-s3, /run/perdure-report to Perdure",
    ),
    Bad(
        "a mount inside the keys' folder",
        job(template=_trainer(volumeMounts=[{"name": "v", "mountPath": "/run/perdure-s3/x"}])),
        _TRAINER,
        "must leave /run/perdure, /run/perdure-s3, /run/perdure-from-s3, /run/perdure-report to Perdure",
    ),
    Bad(
        "a folder of keys beside credentialsSecret",
        job(template=_trainer(env=[{"name": "PERDURE_S3_CREDENTIALS", "value": "/mine"}])),
        _TRAINER,
        "use the fields of spec",
    ),
    Bad(
        "a variable of Perdure's",
        job(template=_trainer(env=[{"name": "PERDURE_ROOT", "value": "s3://else/where"}])),
        _TRAINER,
        "use the fields of spec",
    ),
    Bad(
        "a readinessProbe on the trainer",
        job(template=_trainer(readinessProbe={"exec": {"command": ["true"]}})),
        f"{_TRAINER}[0].readinessProbe",
        "remove it from every container",
    ),
    Bad(
        "a readinessProbe on another container",
        job(template=_two_containers()),
        f"{_TRAINER}[1].readinessProbe",
        "remove it from every container",
    ),
    Bad(
        "a readinessProbe on a sidecar",
        job(template=template(initContainers=[{"name": "s", "restartPolicy": "Always", "readinessProbe": {}}])),
        f"{_POD}.initContainers[0].readinessProbe",
        "remove it from every container",
    ),
    Bad(
        "readiness gates",
        job(template=template(readinessGates=[{"conditionType": "example.com/ready"}])),
        f"{_POD}.readinessGates",
        "remove them",
    ),
    Bad("a restart", job(template=template(restartPolicy="OnFailure")), f"{_POD}.restartPolicy", "must be Never"),
    Bad(
        "a deadline of the pod",
        job(template=template(activeDeadlineSeconds=60)),
        f"{_POD}.activeDeadlineSeconds",
        "use spec.activeDeadlineSeconds",
    ),
    Bad("a fixed node", job(template=template(nodeName="n1")), f"{_POD}.nodeName", "use nodeSelector or affinity"),
    Bad(
        "a token of the API server",
        job(template=template(automountServiceAccountToken=True)),
        f"{_POD}.automountServiceAccountToken",
        "members carry no token",
    ),
    Bad(
        "a volume with Perdure's name",
        job(template=template(volumes=[{"name": "perdure-assignment", "emptyDir": {}}])),
        f"{_POD}.volumes",
        "give the volume another name",
    ),
    Bad(
        "a volume with the name of that for the keys",
        job(template=template(volumes=[{"name": "perdure-s3", "emptyDir": {}}])),
        f"{_POD}.volumes",
        "give the volume another name",
    ),
    Bad(
        "a label of Perdure's",
        job(template=template(metadata={"labels": {"perdure.dev/role": "member"}})),
        "spec.template.metadata.labels",
        "use a domain of your own",
    ),
    Bad(
        "an annotation of Perdure's",
        job(template=template(metadata={"annotations": {"perdure.dev/assignment": "{}"}})),
        "spec.template.metadata.annotations",
        "use a domain of your own",
    ),
    Bad("an unknown field", job(minReplicas=2), "spec.minReplicas", "unknown field"),
    Bad(
        "a name for the members",
        job(template=template(metadata={"name": "mine"})),
        "spec.template.metadata.name",
        "unknown field",
    ),
)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.case)
def test_a_bad_manifest_is_refused_with_field_and_remedy(api_server: ApiServer, bad: Bad) -> None:
    with pytest.raises(Refused) as refused:
        api_server.ask(f"{JOBS}?dryRun=All&fieldValidation=Strict", "POST", bad.manifest)
    told = refused.value.status
    causes = [f"{cause['field']}: {cause['message']}" for cause in told.get("details", {}).get("causes", [])]
    places = re.compile(re.escape(bad.where) + r"(?![\w.\[])")
    assert any(bad.remedy in line for line in (causes or [told["message"]]) if places.search(line)), told


def test_every_rule_refuses_one_of_the_manifests_here() -> None:
    """But for the rule on changes, which needs a job that is there already."""
    rules = {message for told in reference_page.messages(crd.root_schema()).values() for message in told}
    unseen = {message for message in rules if not any(bad.remedy in message for bad in BAD)}
    assert unseen == {message for message in rules if "cannot be changed" in message}
