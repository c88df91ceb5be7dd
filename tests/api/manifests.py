"""TrainingJobs as users write them, valid ones; each test breaks its own field."""

from __future__ import annotations

from typing import Any

from perdure.wire import GROUP
from perdure_operator.schema.crd import KIND, VERSION

Json = dict[str, Any]


def job(name: str = "digits", **spec: Any) -> Json:
    """The shortest good job, with `spec` instead of or beside its fields."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"checkpoint": {"uri": f"s3://bucket/{name}"}, "template": template(), **spec},
    }


def template(trainer: Json | None = None, metadata: Json | None = None, **spec: Any) -> Json:
    """A good pod template; `trainer` adds to container 0, the rest to the pod's spec."""
    container = {"name": "trainer", "image": "digits:dev", "command": ["python", "train.py"], **(trainer or {})}
    pod = {"spec": {"containers": [container], **spec}}
    return pod | ({"metadata": metadata} if metadata else {})


def checkpoint(uri: str = "s3://bucket/digits", **fields: Any) -> Json:
    """A good checkpoint with these fields."""
    return {"uri": uri, **fields}


def full(name: str = "full") -> Json:
    """A good job that sets every field, none of them to its default."""
    sidecar = {"name": "metrics", "image": "metrics:1", "restartPolicy": "Always"}
    trainer = {
        "env": [
            {"name": "PERDURE_TRACE", "value": "1"},
            {"name": "PERDURE_CHECK_SECONDS", "value": "0"},
            {"name": "LEVEL", "value": "info"},
        ],
        "volumeMounts": [{"name": "data", "mountPath": "/run/perdure-data"}],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    return job(
        name,
        replicas=4,
        elastic={
            "minReplicas": 2,
            "maxReplicas": 8,
            "sizes": [2, 4, 8],
            "globalBatchSize": 1024,
            "growAfterSeconds": 5,
            "growTimeoutSeconds": 600,
            "joinerPriorityClassName": "perdure-joiner",
            "spares": 1,
            "policy": "Goodput",
            "pool": "night",
        },
        processesPerReplica=8,
        startTimeoutSeconds=900,
        checkpoint={
            **checkpoint(
                s3={
                    "endpoint": "https://minio.example:9000",
                    "region": "eu-central-1",
                    "pathStyle": True,
                    "credentialsSecret": "bucket-keys",
                },
                everySteps=500,
                keep=5,
                resumeAnyway=True,
            ),
            "from": {
                "uri": "s3://bucket/earlier",
                "epoch": 3,
                "s3": {
                    "endpoint": "https://earlier.example:9000",
                    "region": "eu-west-1",
                    "pathStyle": True,
                    "credentialsSecret": "earlier-s3",
                },
            },
        },
        completion="ExitCode",
        disruption={
            "exitTimeoutSeconds": 120,
            "replacementTimeoutSeconds": 45,
            "autoscaler": "Cooperative",
            "onCordon": "MoveIfRoom",
            "signals": {"npd-readonly-filesystem": "Ignore"},
        },
        failure={
            "maxCodeFailures": 0,
            "maxInfrastructureFailures": 7,
            "progressTimeoutSeconds": 300,
            "lostNodeSeconds": 30,
            "maxOutOfMemoryFailures": 1,
            "massOutageSeconds": 900,
        },
        suspend=True,
        activeDeadlineSeconds=86400,
        ttlSecondsAfterFinished=0,
        template=template(
            trainer,
            metadata={"labels": {"team": "vision"}, "annotations": {"example.com/note": "hello"}},
            restartPolicy="Never",
            automountServiceAccountToken=False,
            initContainers=[sidecar],
            volumes=[{"name": "data", "emptyDir": {}}],
            terminationGracePeriodSeconds=60,
        ),
    )
