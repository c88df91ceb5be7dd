"""What a user writes: TrainingJob.spec. Only fields that work are here.

Durations are integers named `...Seconds`. Everything CEL can check is checked by the API server (see `api.rules`), so
these models read what it has let through. The string under a field is its description in the CRD and in the reference.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from pydantic import ConfigDict, Field

from perdure.wire import Completion
from perdure_operator.api.model import Model
from perdure_operator.api.signals import Reaction
from perdure_operator.schema.cel import Rule, at_least, between, checked, one_of

REPLICAS_AT_MOST = 1000
"""Status names every member of the run's plan, and etcd takes 1.5 MiB."""

SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""What cluster-autoscaler reads of a pod."""
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
"""What Karpenter reads of a pod."""

_ROOT = r"^(s3://[a-z0-9][a-z0-9.-]+(/[^/?#\s]+)+|file://(/[^/?#\s]+)+)$"
_URL = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$"
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_NO_BATCH: Final = "!has(self.elastic) || !has(self.elastic.globalBatchSize)"


class S3(Model):
    """How to reach the S3 store; without it, the store, region and credentials that the AWS SDK finds by itself."""

    endpoint: str | None = Field(
        default=None,
        max_length=512,
        json_schema_extra=checked(
            Rule(
                f"self.matches(r'{_URL}')",
                "checkpoint.s3.endpoint must be a http:// or https:// URL without user, query or fragment, "
                "such as https://minio.example:9000",
            )
        ),
    )
    """URL of a store that is not AWS's own."""
    region: str | None = Field(
        default=None,
        max_length=64,
        json_schema_extra=checked(
            Rule("self.matches('^[a-z0-9-]+$')", "checkpoint.s3.region must be a region's name, such as eu-central-1")
        ),
    )
    """Region of the bucket."""
    path_style: bool = False
    """True puts the bucket into the path of each request instead of the host name: most stores besides AWS want it."""
    credentials_secret: str | None = Field(
        default=None,
        max_length=253,
        json_schema_extra=checked(
            Rule(
                f"self.matches('{_NAME}')",
                "checkpoint.s3.credentialsSecret must be the name of a Secret in the job's namespace, not a key: "
                "create one with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and give its name",
            )
        ),
    )
    """A Secret in the job's namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN and
    AWS_CREDENTIAL_EXPIRATION, if any); the kubelet hands them to the trainer, which follows a change of the Secret; the
    operator never reads them. Absent: the pod's own identity."""


class From(Model):
    """A commit to begin from: of another root, or an earlier one of this; at most one of epoch, step, seq and pin."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            Rule(
                "[has(self.epoch), has(self.step), has(self.seq), has(self.pin)].filter(set, set).size() <= 1",
                "checkpoint.from: epoch, step, seq and pin exclude each other: keep one of them",
            ),
            Rule(
                "has(self.uri) || has(self.epoch) || has(self.step) || has(self.seq) || has(self.pin)",
                "checkpoint.from is empty: name a commit by epoch, step, seq or pin, or another root by uri",
            ),
        )
    )

    uri: str | None = Field(
        default=None,
        max_length=512,
        json_schema_extra=checked(
            Rule(
                f"self.matches(r'{_ROOT}')",
                "checkpoint.from.uri must be s3://bucket/prefix, or file:///folder, without a slash at its end",
            )
        ),
    )
    """Another root, read with the endpoint and the credentials of the job's own. Absent: the job's own."""
    epoch: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.from.epoch", 0))
    """The newest commit of so many finished epochs, and no batch more."""
    step: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.from.step", 0))
    """The newest commit of so many optimizer steps."""
    seq: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.from.seq", 1))
    """The commit with this number in the log, as `perdure log` shows it."""
    pin: str | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=checked(
            Rule(
                "self.matches('^[A-Za-z0-9][A-Za-z0-9._-]*$')",
                "checkpoint.from.pin must be a name that the script has given to session.save(pin=...)",
            )
        ),
    )
    """The commit that the script has pinned under this name."""


class Checkpoint(Model):
    """Where and how often the state of training is stored.

    At most one of everySteps, everySeconds and everyEpochs; with none of them, every 300 seconds. A disruption is
    always saved, whatever they say.
    """

    model_config = ConfigDict(
        json_schema_extra=checked(
            Rule(
                "!has(self.s3) || self.uri.startsWith('s3://')",
                "checkpoint.s3 is only for an s3:// uri: remove it, or give checkpoint.uri as s3://bucket/prefix",
                ".s3",
            ),
            Rule(
                "[has(self.everySteps), has(self.everySeconds), has(self.everyEpochs)].filter(set, set).size() <= 1",
                "checkpoint.everySteps, everySeconds and everyEpochs exclude each other: keep one of them",
            ),
            Rule(
                "!has(self.from) || !has(self.from.uri) || "
                "self.from.uri.startsWith('s3://') == self.uri.startsWith('s3://')",
                "checkpoint.from.uri must be in a store of the same kind as checkpoint.uri: copy the other root there",
                ".from",
            ),
            Rule(
                "has(self.from) == has(oldSelf.from) && (!has(self.from) || self.from == oldSelf.from)",
                "checkpoint.from cannot be changed, it counts in the job's first run alone: create another job, whose "
                "checkpoint.from names this one's root",
                ".from",
                forbids=True,
            ),
        )
    )

    uri: str = Field(
        max_length=512,
        json_schema_extra=checked(
            Rule(
                f"self.matches(r'{_ROOT}')",
                "checkpoint.uri must be s3://bucket/prefix, or file:///folder for one node, without a slash at its end",
            ),
            Rule(
                "self == oldSelf",
                "checkpoint.uri cannot be changed, it is where the job's state is: create another job for another root",
                forbids=True,
            ),
        ),
    )
    """This job's own root, shared with no other job: s3://bucket/prefix. Or file:///folder for a job of one replica, on
    a volume that every node has on which that replica may run."""
    s3: S3 | None = None
    from_: From | None = Field(default=None, alias="from")
    """Where the job's first run begins, instead of the newest commit under uri. It counts once: later runs go on from
    what the job has saved, and commits newer than the chosen one are no part of its training. Absent: the newest."""
    every_steps: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.everySteps", 1))
    """Checkpoint after this many optimizer steps."""
    every_seconds: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.everySeconds", 1))
    """Checkpoint after this many seconds, when a step ends: every 300, where none of the three says how often."""
    every_epochs: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.everyEpochs", 1))
    """Checkpoint after this many epochs."""
    keep: int = Field(
        default=3, json_schema_extra=at_least("checkpoint.keep", 1, "without a checkpoint the job could not resume")
    )
    """How many checkpoints are kept; older ones are removed."""
    resume_anyway: bool = False
    """True: go on although the log under uri is older than what members have told, or gone; the steps it lacks are
    lost. False: such a job waits with the reason LogLost, until the log is back."""


class Autoscaler(StrEnum):
    """What autoscalers of nodes may do with the nodes of members."""

    NEVER = "Never"
    COOPERATIVE = "Cooperative"


class OnCordon(StrEnum):
    """What members do whose node is cordoned."""

    MOVE = "Move"
    MOVE_IF_ROOM = "MoveIfRoom"
    IGNORE = "Ignore"


class JobReaction(StrEnum):
    """What a job may do about a signal."""

    VACATE = "Vacate"
    VACATE_IF_ROOM = "VacateIfRoom"
    FAULT = "Fault"
    CHECKPOINT_NOW = "CheckpointNow"
    AVOID = "Avoid"
    IGNORE = "Ignore"


CORDON_ROW: Final = "cordon"
"""The signal that onCordon is about."""
_ON_CORDON: Final = {
    OnCordon.MOVE: Reaction.VACATE,
    OnCordon.MOVE_IF_ROOM: Reaction.VACATE_IF_ROOM,
    OnCordon.IGNORE: Reaction.IGNORE,
}


class DisruptionPolicy(Model):
    """What happens when members must leave."""

    exit_timeout_seconds: int = Field(
        default=600,
        json_schema_extra=between(
            "disruption.exitTimeoutSeconds", 5, 86400, "it has to cover one checkpoint, and a drain waits that long"
        ),
    )
    """How long members that must leave may take to save. Afterwards they are deleted, and steps since the last
    checkpoint are lost."""
    replacement_timeout_seconds: int = Field(
        default=30,
        json_schema_extra=between(
            "disruption.replacementTimeoutSeconds", 0, 86400, "0 has all members leave at once, while new ones start"
        ),
    )
    """How long the run trains on while new members start elsewhere for those that must leave. If they are not Ready by
    then, all members save and leave, and the job starts anew, but not for new members that fail by themselves while no
    node has a deadline; with `elastic` those that are there go on, in a smaller
    size. 0: all leave at once. A member that died unannounced is waited for longer, 10 minutes, because the others keep
    what was not saved; with `elastic` those that are left go on at once, where they are enough."""
    autoscaler: Autoscaler | None = Field(
        default=None, json_schema_extra=one_of("disruption.autoscaler", [word.value for word in Autoscaler], 16)
    )
    """What pods tell autoscalers of nodes by annotations, also those that run when it is changed. Never: leave my node
    alone (cluster-autoscaler's safe-to-evict "false", Karpenter's do-not-disrupt "true"). Cooperative: a node that is
    worth it may be taken, once its members have moved (safe-to-evict "true", and no do-not-disrupt); new members are
    left alone until they train. Absent: pods have the annotations of the template and no others."""
    on_cordon: OnCordon | None = Field(
        default=None,
        json_schema_extra=one_of("disruption.onCordon", [word.value for word in OnCordon], 16),
    )
    """What members do whose node is cordoned. Move: they leave it, and the run waits for others if there is no room for
    them. MoveIfRoom: they train on where they are until others are Ready elsewhere, without a time limit; a drain waits
    for that. Ignore: they train on, and a drain waits until the job ends. Absent: what the operator's table says of the
    signal `cordon`, which is Move unless its configuration has changed it."""
    signals: dict[str, JobReaction] = Field(
        default_factory=dict,
        max_length=64,
        json_schema_extra=checked(
            Rule(
                f"self.all(name, self[name] in [{', '.join(repr(word.value) for word in JobReaction)}])",
                "disruption.signals must give each signal's name one of Vacate, VacateIfRoom, Fault, CheckpointNow, "
                "Avoid and Ignore",
            )
        ),
    )
    """What this job does about what nodes announce, by the names of docs/signals.md, where that is not what the
    operator's table says: Vacate, VacateIfRoom, Fault, CheckpointNow, Avoid or Ignore. A name that the table does not
    have is told in the condition SpecUnderstood."""

    @property
    def reactions(self) -> tuple[tuple[str, Reaction], ...]:
        """What this job does about signals, by their names, where that is not what the table says."""
        if self.on_cordon is None and not self.signals:
            return ()
        cordon = {CORDON_ROW: _ON_CORDON[self.on_cordon]} if self.on_cordon else {}
        return tuple(sorted({**cordon, **{name: Reaction(word) for name, word in self.signals.items()}}.items()))


class FailurePolicy(Model):
    """How many failures a job survives, by whose fault they were."""

    max_code_failures: int = Field(
        default=3, json_schema_extra=at_least("failure.maxCodeFailures", 0, "0 gives up at the first failure")
    )
    """How many failures of the script itself (an exception, a non-zero exit) in a row the job survives; ten new commits
    after one, or a new commit and a day, end the row."""
    max_infrastructure_failures: int = Field(
        default=100,
        json_schema_extra=at_least("failure.maxInfrastructureFailures", 0, "0 gives up at the first failure"),
    )
    """How many failures of pods, nodes or storage without a new commit the job survives. An announced disruption is
    none."""
    max_out_of_memory_failures: int = Field(
        default=3,
        json_schema_extra=at_least(
            "failure.maxOutOfMemoryFailures", 0, "0 gives up at the first kill for want of memory"
        ),
    )
    """How many out-of-memory kills in a row at the same place the job survives: they tend to come again."""
    lost_node_seconds: int = Field(
        default=60,
        json_schema_extra=at_least(
            "failure.lostNodeSeconds",
            5,
            "nodes miss a heartbeat now and then, and going on without a member costs steps",
        ),
    )
    """How long a node may be not Ready or unreachable before the job goes on without the members on it."""
    mass_outage_seconds: int = Field(
        default=600,
        json_schema_extra=at_least(
            "failure.massOutageSeconds",
            5,
            "nodes that all fail at once rather mean that the control plane has lost sight of them",
        ),
    )
    """How long the job waits while most nodes are not Ready at once, before it goes on without the members on them."""


class Elastic(Model):
    """Sizes that the job may have, in members. Absent: it has the size that replicas says, and no other.

    The job has the largest of them that is not above replicas: whoever scales it may ask for any number.
    """

    model_config = ConfigDict(
        json_schema_extra=checked(
            Rule(
                "self.minReplicas <= self.maxReplicas",
                "elastic.minReplicas must not be above maxReplicas: lower it, or raise maxReplicas",
                ".minReplicas",
            ),
            Rule(
                "!has(self.sizes) || self.sizes.all(size, size <= self.maxReplicas)",
                "elastic.sizes must not be above maxReplicas: remove those that are, or raise maxReplicas",
                ".sizes",
            ),
            Rule(
                "!has(self.sizes) || (self.sizes.size() > 0 && self.sizes[0] == self.minReplicas)",
                "elastic.sizes must begin with minReplicas, the smallest size: add it, or remove sizes to allow every "
                "number from minReplicas to maxReplicas",
                ".sizes",
            ),
            Rule(
                "!has(self.sizes) || (self.sizes.isSorted()"
                " && self.sizes.all(size, self.sizes.exists_one(other, other == size)))",
                "elastic.sizes must rise, each size once, such as [2, 4, 8]: sort them and remove the doubles",
                ".sizes",
            ),
        )
    )

    min_replicas: int = Field(json_schema_extra=between("elastic.minReplicas", 1, REPLICAS_AT_MOST))
    """The smallest size: with fewer members the job does not train."""
    max_replicas: int = Field(json_schema_extra=between("elastic.maxReplicas", 1, REPLICAS_AT_MOST))
    """The largest size; replicas cannot be set above it."""
    sizes: tuple[int, ...] | None = Field(default=None, max_length=64)
    """All sizes there may be, the smallest first. Absent: those that divide globalBatchSize, or else every number from
    minReplicas to maxReplicas. The global batch is shared among all processes whatever their number; where it does not
    divide, some have a sample more."""
    global_batch_size: int | None = Field(default=None, json_schema_extra=at_least("elastic.globalBatchSize", 1))
    """Samples of one global batch, of all processes together: the batch_size that the script gives session.loader. Each
    size, times processesPerReplica, has to divide it: then all processes have equal shares. With several loaders, a
    number by which the batch of each can be divided. Rank 0 says where a loader's batch is another one."""
    grow_after_seconds: int = Field(
        default=10,
        json_schema_extra=between(
            "elastic.growAfterSeconds", 0, 3600, "each change of size is a hand-over, so that a few seconds are enough"
        ),
    )
    """How long enough members for a size below the wanted one have to be there before a run begins with them: whoever
    comes within that time comes along. With all that are wanted it begins at once."""
    grow_timeout_seconds: int = Field(
        default=900,
        json_schema_extra=between(
            "elastic.growTimeoutSeconds", 30, 86400, "an autoscaler of nodes acts on pods that are pending"
        ),
    )
    """How long a run that could be larger waits for new members. Then they are let go, and it is tried again after as
    long, twice as long each further time, up to an hour; at once after an edit of the spec."""
    joiner_priority_class_name: str | None = Field(
        default=None,
        max_length=253,
        json_schema_extra=checked(
            Rule(
                f"self.matches('{_NAME}')",
                "elastic.joinerPriorityClassName must be the name of a PriorityClass: give one with preemptionPolicy "
                "Never, such as that of Perdure's chart",
            )
        ),
    )
    """PriorityClass of spares, and of members that make a run larger; one with preemptionPolicy Never lets a job grow
    into free room alone. Members of a run that begins anew, and those made to replace others, have the class of the
    template. A priority cannot be changed in a pod: who came as a joiner, or as a spare, keeps this class. Absent: all
    have that of the template."""
    spares: int = Field(
        default=0, json_schema_extra=between("elastic.spares", 0, 100, "each of them takes as much room as a member")
    )
    """How many warm standbys are kept beside a run that has begun: they train nothing, and no budget protects them.
    One of them takes the place of a member that leaves or is lost, at once, and new members of a larger run are taken
    from them first; then they are filled up again."""


class TrainingJobSpec(Model):
    """A training job: members that train together, checkpoint to object storage, and resume.

    A change of replicas or processesPerReplica ends the run with a save and starts the next one. A change of checkpoint
    or template counts from the next run on.
    """

    model_config = ConfigDict(
        json_schema_extra=checked(
            Rule(
                "self.replicas == 1 || !self.checkpoint.uri.startsWith('file://')",
                "replicas must be 1 with a file:// checkpoint.uri, which is one node's: use s3://bucket/prefix",
                ".replicas",
            ),
            Rule(
                "!has(self.elastic) || self.replicas <= self.elastic.maxReplicas",
                "replicas must not be above elastic.maxReplicas: ask for fewer, or raise elastic.maxReplicas",
                ".replicas",
            ),
            Rule(
                "!has(self.elastic) || !self.checkpoint.uri.startsWith('file://')",
                "elastic is not for a file:// checkpoint.uri, which is one node's: remove it, or use s3://bucket/prefix",
                ".elastic",
                forbids=True,
            ),
            Rule(
                f"{_NO_BATCH} || has(self.elastic.sizes) || self.elastic.minReplicas * self.processesPerReplica < 1"
                " || self.elastic.globalBatchSize % (self.elastic.minReplicas * self.processesPerReplica) == 0",
                "elastic.minReplicas, the smallest size, times processesPerReplica must divide elastic.globalBatchSize:"
                " choose one that does, or remove globalBatchSize to allow every number",
                ".elastic.minReplicas",
            ),
            Rule(
                f"{_NO_BATCH} || !has(self.elastic.sizes) || self.elastic.sizes.all(size,"
                " size * self.processesPerReplica < 1"
                " || self.elastic.globalBatchSize % (size * self.processesPerReplica) == 0)",
                "elastic.sizes times processesPerReplica must divide elastic.globalBatchSize: remove those that do not,"
                " or remove sizes to allow all that do, or remove globalBatchSize to allow unequal shares",
                ".elastic.sizes",
            ),
            Rule(
                "!has(self.disruption) || !has(self.disruption.autoscaler) || !has(self.template.metadata)"
                " || !has(self.template.metadata.annotations)"
                f" || ['{SAFE_TO_EVICT}', '{DO_NOT_DISRUPT}']"
                ".all(name, !(name in self.template.metadata.annotations))",
                f"disruption.autoscaler sets the annotations {SAFE_TO_EVICT} and {DO_NOT_DISRUPT} of members: remove "
                "them from template.metadata.annotations, or remove disruption.autoscaler",
                ".disruption.autoscaler",
                forbids=True,
            ),
            # The model allows it to be absent, so that a snapshot written by hand can be short.
            required=["checkpoint", "template"],
        )
    )

    replicas: int = Field(
        default=1,
        json_schema_extra=between(
            "replicas", 1, REPLICAS_AT_MOST, "to stop the job and keep its progress, set spec.suspend to true"
        ),
    )
    """How many members (pods) are wanted: with `elastic` they train in the largest of its sizes that is not above this
    number, otherwise in exactly this one. `kubectl scale` changes it."""
    elastic: Elastic | None = None
    processes_per_replica: int = Field(
        default=1, json_schema_extra=between("processesPerReplica", 1, 64, "for more processes raise replicas")
    )
    """How many trainer processes each member runs, one for each of its GPUs for instance."""
    start_timeout_seconds: int = Field(
        default=600,
        json_schema_extra=between(
            "startTimeoutSeconds", 30, 86400, "an autoscaler of nodes acts on pods that are pending"
        ),
    )
    """How long some members may hold nodes before a run has begun while others find no room. Then all are let go, so
    that another job that needs these nodes begins, and are made again after a pause. With `elastic` minReplicas of them
    have to find room."""
    completion: Completion = Field(
        default=Completion.LOG, json_schema_extra=one_of("completion", [word.value for word in Completion], 16)
    )
    """Log: a Session's goal, recorded in the log, completes the job. ExitCode: every rank exits 0; for frameworks
    without a Session."""
    checkpoint: Checkpoint
    disruption: DisruptionPolicy = DisruptionPolicy()
    failure: FailurePolicy = FailurePolicy()
    suspend: bool = False
    """True: members save and leave, and the job waits; False: it goes on where it was."""
    active_deadline_seconds: int | None = Field(
        default=None, json_schema_extra=at_least("activeDeadlineSeconds", 1, "remove it for a job without a deadline")
    )
    """The job saves and fails when its members have been wanted for this long; time suspended does not count."""
    ttl_seconds_after_finished: int | None = Field(
        default=None, json_schema_extra=at_least("ttlSecondsAfterFinished", 0, "remove it to keep finished jobs")
    )
    """A finished job is deleted with its pods after this long; its checkpoints stay. Absent: never."""
    template: dict[str, Any] = Field(default_factory=dict)
    """An ordinary pod template; `schema.template` has its fields and its rules."""
