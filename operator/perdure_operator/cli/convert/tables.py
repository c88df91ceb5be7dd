"""For each source: its fields, and where each goes. Read this to learn what `perdure convert` does.

Looked up in the sources' own types: kubeflow/training-operator pkg/apis/kubeflow.org/v1, kubeflow/trainer
pkg/apis/trainer/v1alpha1, kubernetes-sigs/jobset api/jobset/v1alpha2, and Kubernetes' batch/v1.
"""

from __future__ import annotations

from typing import Final

from perdure_operator.cli.convert.fields import CarriedTo, Computed, FieldTable, Meaningless, NotCarried

CODE_FAILURES: Final = (
    "that counts failures of the script in a row; lost nodes and pods, and memory, have limits of their own in "
    "spec.failure"
)
_MANAGED: Final = NotCarried("the operator of Perdure manages every TrainingJob")
_SUSPEND: Final = CarriedTo("spec.suspend")
_TTL: Final = CarriedTo("spec.ttlSecondsAfterFinished")
_DEADLINE: Final = CarriedTo(
    "spec.activeDeadlineSeconds", "members save before they end, and suspended time does not count"
)
_TEMPLATE: Final = Computed("`spec.template`, by the table of pod templates")
_HPA: Final = NotCarried("point a HorizontalPodAutoscaler of your own at the TrainingJob, which has `scale`")
_RENDEZVOUS: Final = Meaningless("members find each other by themselves")
_SERVER_SET: Final = Meaningless("the API server sets it")
_LABELS: Final = Computed("`metadata.labels`, without those of the source's own controller")
_NO_JOB: Final = NotCarried("there are no Jobs between a TrainingJob and its members")
_ANNOTATIONS: Final = Computed("`metadata.annotations`, without those of the source's own controller")

METADATA: Final[FieldTable] = {
    "name": Computed("`metadata.name`; of one with more than 50 characters the beginning and a hash"),
    "generateName": Computed("`metadata.name`, without a suffix, and remarked; nothing, if there is a name"),
    "namespace": CarriedTo("metadata.namespace"),
    "labels": _LABELS,
    "annotations": _ANNOTATIONS,
    "ownerReferences": NotCarried("its owner would have to create the TrainingJob"),
    "finalizers": NotCarried("give the TrainingJob finalizers only with a controller that removes them"),
    **dict.fromkeys(
        ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"), _SERVER_SET
    ),
}

_OBJECT: Final[FieldTable] = {
    "apiVersion": Meaningless("it names the source"),
    "kind": Meaningless("it names the source"),
    "metadata": METADATA,
    "status": Meaningless("the TrainingJob begins anew"),
}

_REPLICAS: Final[FieldTable] = {
    "replicas": Computed("`spec.replicas`, Master and Worker together; of 0, the others count alone"),
    "restartPolicy": Computed("`spec.failure.maxCodeFailures` 0 for Never; else remarked, Perdure replaces members"),
    "template": Computed("`spec.template`: of Worker where there is one, by the table of pod templates"),
}

PYTORCHJOB: Final[FieldTable] = {
    **_OBJECT,
    "spec": {
        "pytorchReplicaSpecs": {"Master": _REPLICAS, "Worker": _REPLICAS},
        "nprocPerNode": Computed("`spec.processesPerReplica`; auto and gpu: the trainer's GPUs"),
        "elasticPolicy": {
            "minReplicas": Computed("`spec.elastic.minReplicas`; absent: the replicas"),
            "maxReplicas": Computed("`spec.elastic.maxReplicas`; absent: the replicas"),
            "nProcPerNode": Computed("`spec.processesPerReplica`"),
            "maxRestarts": CarriedTo("spec.failure.maxCodeFailures", CODE_FAILURES),
            "metrics": _HPA,
            **dict.fromkeys(("rdzvBackend", "rdzvConf", "rdzvHost", "rdzvId", "rdzvPort", "standalone"), _RENDEZVOUS),
        },
        "runPolicy": {
            "activeDeadlineSeconds": _DEADLINE,
            "backoffLimit": CarriedTo("spec.failure.maxCodeFailures", CODE_FAILURES),
            "cleanPodPolicy": NotCarried(
                "what runs of a finished job is ended, and ended pods stay until the job is deleted"
            ),
            "managedBy": _MANAGED,
            "schedulingPolicy": {
                "minAvailable": NotCarried("a run starts with all its members, or with spec.elastic.minReplicas"),
                "minResources": NotCarried("Kubernetes schedules members by their own requests"),
                "priorityClass": CarriedTo(
                    "spec.template.spec.priorityClassName", "it names a class of Kubernetes, not of a gang scheduler"
                ),
                "queue": NotCarried("label the TrainingJob as your queueing system wants it"),
                "scheduleTimeoutSeconds": NotCarried("see spec.startTimeoutSeconds"),
            },
            "suspend": _SUSPEND,
            "ttlSecondsAfterFinished": _TTL,
        },
    },
}

JOB_SPEC: Final[FieldTable] = {
    "activeDeadlineSeconds": _DEADLINE,
    "backoffLimit": CarriedTo("spec.failure.maxCodeFailures", CODE_FAILURES),
    "backoffLimitPerIndex": NotCarried("a failure of one member is one of the whole job: see spec.failure"),
    "completionMode": Computed("nothing; remarked unless it is Indexed, members always have ranks"),
    "completions": Computed("nothing; remarked where it differs from parallelism"),
    "managedBy": _MANAGED,
    "manualSelector": Meaningless("members are found by owner and name"),
    "maxFailedIndexes": NotCarried("a failure of one member is one of the whole job: see spec.failure"),
    "parallelism": Computed("`spec.replicas`"),
    "podFailurePolicy": NotCarried("exit codes are not told apart, and an announced disruption is never a failure"),
    "podReplacementPolicy": NotCarried("a replacement starts while the leaving member still trains"),
    "selector": Meaningless("members are found by owner and name"),
    "successPolicy": NotCarried("the job completes when its training does"),
    "suspend": _SUSPEND,
    "template": _TEMPLATE,
    "ttlSecondsAfterFinished": _TTL,
}

JOB: Final[FieldTable] = {**_OBJECT, "spec": JOB_SPEC}

REPLICATED_JOB: Final[FieldTable] = {
    "name": Meaningless("members are named by the TrainingJob"),
    "groupName": NotCarried("members are one group"),
    "replicas": Computed("`spec.replicas`, times the Job's parallelism"),
    "dependsOn": NotCarried("a TrainingJob waits for no other; wait in an init container"),
    "template": {
        "metadata": {
            "labels": _NO_JOB,
            "annotations": _NO_JOB,
            "name": Meaningless("members are named by the TrainingJob"),
            "creationTimestamp": _SERVER_SET,
        },
        "spec": {
            **JOB_SPEC,
            "backoffLimit": Computed(
                "`spec.failure.maxCodeFailures`, remarked if the JobSet has failurePolicy.maxRestarts"
            ),
            "suspend": Meaningless("the JobSet's own counts"),
            "ttlSecondsAfterFinished": NotCarried("the JobSet's own counts"),
        },
    },
}
"""Each item of a JobSet's spec.replicatedJobs."""

JOBSET_SPEC: Final[FieldTable] = {
    "replicatedJobs": Computed("the one with the most pods is trained, the others are remarked"),
    "coordinator": Meaningless("members find each other by themselves"),
    "failurePolicy": {
        "maxRestarts": CarriedTo("spec.failure.maxCodeFailures", CODE_FAILURES),
        "restartStrategy": NotCarried("members that stay restart in their pods, or go on without a restart"),
        "rules": NotCarried("failures are told apart by their cause: see spec.failure"),
    },
    "managedBy": _MANAGED,
    "network": {
        "enableDNSHostnames": NotCarried("members have no DNS names; they find each other by themselves"),
        "publishNotReadyAddresses": Meaningless("members have no DNS names"),
        "subdomain": NotCarried("members have no DNS names; they find each other by themselves"),
    },
    "startupPolicy": NotCarried("a TrainingJob has one kind of members"),
    "successPolicy": NotCarried("the job completes when its training does"),
    "suspend": _SUSPEND,
    "ttlSecondsAfterFinished": _TTL,
    "volumeClaimPolicies": NotCarried("create the claim yourself, and name it in spec.template.spec.volumes"),
}

JOBSET: Final[FieldTable] = {**_OBJECT, "spec": JOBSET_SPEC}

TRAINJOB: Final[FieldTable] = {
    **_OBJECT,
    "spec": {
        "runtimeRef": {
            "name": Computed("the runtime's template, if the file has the runtime too; else remarked"),
            "kind": Computed("the runtime's kind"),
            "apiGroup": Meaningless("it is Trainer's"),
        },
        "trainer": {
            "image": Computed("`spec.template`: the image of the trainer"),
            "command": Computed("`spec.template`: the command of the trainer"),
            "args": Computed("`spec.template`: the arguments of the trainer"),
            "env": Computed("`spec.template`: added to the trainer's variables"),
            "numNodes": Computed("`spec.replicas`"),
            "numProcPerNode": Computed("`spec.processesPerReplica`; absent: the trainer's GPUs"),
            "resourcesPerNode": Computed("`spec.template`: the resources of the trainer"),
        },
        "activeDeadlineSeconds": _DEADLINE,
        "annotations": _ANNOTATIONS,
        "initializer": NotCarried("load data and model in an init container, or in the script"),
        "labels": _LABELS,
        "managedBy": _MANAGED,
        "podTemplateOverrides": Computed("`spec.template`, where they name the trainer's job; else remarked"),
        "runtimePatches": Computed("`spec.template`, where they name the trainer's job; else remarked"),
        "suspend": _SUSPEND,
    },
}

PATCH: Final[FieldTable] = {
    "manager": Meaningless("it says who wrote the patch"),
    "time": Meaningless("it says when the patch was written"),
    "trainingRuntimeSpec": {
        "template": {
            "metadata": {"labels": _LABELS, "annotations": _ANNOTATIONS},
            "spec": {"replicatedJobs": Computed("`spec.template`, of the job `node`; the others are remarked")},
        },
    },
}
"""Each item of a TrainJob's spec.runtimePatches."""

PATCHED_JOB: Final[FieldTable] = {
    "name": Meaningless("members are named by the TrainingJob"),
    "template": {"metadata": _NO_JOB, "spec": {"template": Computed("merged into `spec.template`")}},
}
"""Each replicated job in one."""

OVERRIDE: Final[FieldTable] = {
    "targetJobs": Computed("those that name `node` are for the trainer"),
    "metadata": Computed("merged into `spec.template.metadata`"),
    "spec": Computed("merged into `spec.template.spec`"),
}
"""Each item of a TrainJob's spec.podTemplateOverrides, which older versions of Trainer have."""

RUNTIME: Final[FieldTable] = {
    **_OBJECT,
    "metadata": Meaningless("the TrainJob's own counts"),
    "spec": {
        "mlPolicy": {
            "numNodes": Computed("`spec.replicas`, where the TrainJob has no numNodes"),
            "torch": {
                "numProcPerNode": Computed("`spec.processesPerReplica`, where the TrainJob has no numProcPerNode"),
                "elasticPolicy": {
                    "minNodes": Computed("`spec.elastic.minReplicas`"),
                    "maxNodes": Computed("`spec.elastic.maxReplicas`"),
                    "maxRestarts": CarriedTo("spec.failure.maxCodeFailures", CODE_FAILURES),
                    "metrics": _HPA,
                },
            },
            "flux": NotCarried("Perdure starts the processes"),
            "mpi": NotCarried("Perdure starts the processes, and the script's own group uses gloo or NCCL"),
        },
        "podGroupPolicy": NotCarried("a run starts with all its members, or with spec.elastic.minReplicas"),
        "template": {"metadata": {"labels": _LABELS, "annotations": _ANNOTATIONS}, "spec": JOBSET_SPEC},
    },
}
"""A TrainingRuntime or ClusterTrainingRuntime, of whose jobs `node` is trained."""

POD_TEMPLATE: Final[FieldTable] = {
    "metadata": {
        "labels": Computed("`spec.template.metadata.labels`, without those of the source's own controller"),
        "annotations": Computed("`spec.template.metadata.annotations`, without those of the source's own controller"),
        "name": Meaningless("Perdure chooses the pods' names"),
        "namespace": Meaningless("pods are in the job's namespace"),
        "creationTimestamp": _SERVER_SET,
    },
    "spec": Computed("`spec.template.spec`, as it is, except for these fields of it:"),
}

POD: Final[FieldTable] = {
    "activeDeadlineSeconds": NotCarried("it would kill members without a save: use spec.activeDeadlineSeconds"),
    "ephemeralContainers": NotCarried("no template may have them"),
    "nodeName": NotCarried("it would put every member back on the node that it has to leave"),
    "readinessGates": NotCarried("a member that is not Ready loses the protection of its budget"),
    "restartPolicy": Computed("nothing; remarked unless it is Never, Perdure replaces members: see spec.failure"),
    "automountServiceAccountToken": Computed("carried if false; a token in a projected volume is possible"),
    "serviceAccountName": Computed("as it is; remarked without automountServiceAccountToken: members carry no token"),
    "terminationGracePeriodSeconds": Computed("as it is; remarked below 120, which are Perdure's own"),
}
"""Fields of a pod's spec that do not stay as they are."""

CONTAINER: Final[FieldTable] = {
    "readinessProbe": NotCarried("a member that stops being Ready would be evicted without a save"),
}
"""The same of each container."""

TRAINER: Final[FieldTable] = {
    **CONTAINER,
    "startupProbe": NotCarried("Perdure has its own, which sees when a member is warm"),
    "terminationMessagePath": NotCarried("members tell there how their run ended"),
    "terminationMessagePolicy": NotCarried("members tell there how their run ended"),
    "lifecycle": Computed("as it is; preStop is remarked, it replaces Perdure's own"),
    "livenessProbe": Computed("as it is, and remarked: it kills without a save"),
    "command": Computed("as it is, without torchrun: `spec.processesPerReplica` processes are started of it"),
    "args": Computed("as they are, without torchrun's"),
    "env": Computed(
        "as it is, without variables that Perdure sets: RANK, WORLD_SIZE, MASTER_ADDR, PET_… are remarked; "
        "torchrun's options in PET_NNODES, PET_NPROC_PER_NODE and PET_MAX_RESTARTS count"
    ),
}
"""The same of the container that trains."""

TORCHRUN: Final[FieldTable] = {
    "--nnodes": Computed("`spec.replicas`, and `spec.elastic` for MIN:MAX"),
    "--nproc-per-node": Computed("`spec.processesPerReplica`; auto and gpu: the trainer's GPUs"),
    "--max-restarts": CarriedTo("spec.failure.maxCodeFailures", CODE_FAILURES),
    "--module": Computed("`python -m`"),
    "--no-python": Computed("the command itself"),
    "--run-path": NotCarried("the script is run by python"),
    "--log-dir": NotCarried("each process writes to the pod's log"),
    "--logs-specs": NotCarried("each process writes to the pod's log"),
    "--redirects": NotCarried("each process writes to the pod's log"),
    "--tee": NotCarried("each process writes to the pod's log"),
    "--log-line-prefix-template": NotCarried("each process writes to the pod's log"),
    "--local-ranks-filter": NotCarried("the log has the lines of all ranks"),
    "--duplicate-stdout-filters": NotCarried("each process writes to the pod's log"),
    "--duplicate-stderr-filters": NotCarried("each process writes to the pod's log"),
    "--numa-binding": NotCarried("processes are bound to no NUMA node: use the kubelet's topology manager"),
    "--role": NotCarried("all ranks are equal"),
    "--shutdown-timeout": NotCarried("see spec.template.spec.terminationGracePeriodSeconds"),
    "--signals-to-handle": NotCarried("the agent passes requests to leave on: see `exit_signals` of the Session"),
    "--virtual-local-rank": NotCarried("LOCAL_RANK tells the processes of a member apart"),
    "--event-log-handler": NotCarried("see `kubectl perdure` and the metrics"),
    "--start-method": Meaningless("each process is started of the command"),
    "--monitor-interval": Meaningless("the agent learns of an end at once"),
    **dict.fromkeys(
        (
            *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone"),
            *("--node-rank", "--master-addr", "--master-port", "--local-addr"),
        ),
        _RENDEZVOUS,
    ),
    "--print-completion": Meaningless("it prints a shell's completions"),
    "--use-env": Meaningless("LOCAL_RANK is set in any case; remarked where torch.distributed.launch is without it"),
    "--help": Meaningless("it prints torchrun's help"),
}
"""The options of torchrun, by their long names with dashes."""
