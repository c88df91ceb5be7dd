"""The spec of a TrainingJob, as users write it.

Durations are integers named `...Seconds`. The API server checks everything that CEL can check (see `api.cel`);
these models read what it has accepted. The string under a field is its description in the CRD and in the reference.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from pydantic import ConfigDict, Field

from perdure.wire import Completion
from perdure_operator.api.cel import Rule, at_least, between, checked, one_of
from perdure_operator.api.model import Model
from perdure_operator.api.signal_rows import Reaction

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
                "s3.endpoint must be a http:// or https:// URL without user, query or fragment, "
                "such as https://minio.example:9000",
            )
        ),
    )
    """URL of a store that is not AWS's own."""
    region: str | None = Field(
        default=None,
        max_length=64,
        json_schema_extra=checked(
            Rule("self.matches('^[a-z0-9-]+$')", "s3.region must be a region's name, such as eu-central-1")
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
                "s3.credentialsSecret must be the name of a Secret in the job's namespace, not a key: "
                "create one with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and give its name",
            )
        ),
    )
    """A Secret in the job's namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and optionally
    AWS_SESSION_TOKEN and AWS_CREDENTIAL_EXPIRATION. The kubelet passes them to the trainer, which follows changes of
    the Secret. The operator never reads them. Absent: the pod's own identity."""


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
            Rule(
                "!has(self.s3) || (has(self.uri) && self.uri.startsWith('s3://'))",
                "checkpoint.from.s3 is only for another root in S3: remove it, or give checkpoint.from.uri as "
                "s3://bucket/prefix",
                ".s3",
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
    """Another root. Absent: the job's own root."""
    s3: S3 | None = None
    """How to reach that other root, in place of checkpoint.s3: an endpoint, region or pathStyle that this block does
    not give is not taken from there. Without credentialsSecret the job's keys count. May be changed. Absent: the other
    root is reached as the job's own."""
    epoch: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.from.epoch", 0))
    """The newest commit made after exactly this many finished epochs."""
    step: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.from.step", 0))
    """The newest commit made after exactly this many optimizer steps."""
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
    """The commit that the script pinned under this name."""


_SAME_COMMIT: Final = " && ".join(
    f"has(self.from.{name}) == has(oldSelf.from.{name}) && "
    f"(!has(self.from.{name}) || self.from.{name} == oldSelf.from.{name})"
    for name in From.model_fields
    if name != "s3"
)
"""All of `from` but how to reach its root. Compared in fewer words, the API server would find it too expensive."""


class MirrorPolicy(Model):
    """Each member keeps snapshots of its part of a sharded model in its memory and in another member's.

    Then a member that dies without notice costs at most 2 * everySteps - 1 finished steps, and not all since the newest
    checkpoint. It takes the memory of four parts per process, and a network that sends a part in everySteps steps.
    """

    every_steps: int = Field(json_schema_extra=at_least("checkpoint.mirror.everySteps", 1))
    """Steps from one snapshot to the next."""


class CheckpointPolicy(Model):
    """Where and how often the state of training is stored.

    Set at most one of everySteps, everySeconds and everyEpochs. The default is every 300 seconds. Before a disruption
    members always save.
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
                f"has(self.from) == has(oldSelf.from) && (!has(self.from) || ({_SAME_COMMIT}))",
                "checkpoint.from cannot be changed, it counts in the job's first run alone: create another job, whose "
                "checkpoint.from names this one's root",
                ".from",
                forbids=True,
            ),
            Rule(
                "has(self.mirror) == has(oldSelf.mirror) && (!has(self.mirror) || self.mirror == oldSelf.mirror)",
                "checkpoint.mirror cannot be changed, because all members of a run have to mirror alike: create "
                "another job, whose checkpoint.from names this one's root",
                ".mirror",
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
    """Root of this job's checkpoints, shared with no other job: s3://bucket/prefix. A job with one replica may use
    file:///folder, on a volume that is on every node where the replica may run."""
    s3: S3 | None = None
    from_: From | None = Field(default=None, alias="from")
    """The commit from which the job's first run resumes. It applies once: later runs resume from the job's own
    commits, and the job ignores commits newer than the chosen one. Absent: the newest commit under uri."""
    every_steps: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.everySteps", 1))
    """Checkpoint after this many optimizer steps."""
    every_seconds: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.everySeconds", 1))
    """Checkpoint at the end of the step after this many seconds. 300, if none of the three is set."""
    every_epochs: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.everyEpochs", 1))
    """Checkpoint after this many epochs."""
    mirror: MirrorPolicy | None = None
    """Keep parts of a sharded model in other members' memory, too. Absent: a member that dies without notice costs the
    steps since the newest checkpoint, unless the model has replicas."""
    keep: int = Field(
        default=3, json_schema_extra=at_least("checkpoint.keep", 1, "without a checkpoint the job could not resume")
    )
    """Number of checkpoints to keep. Older ones are deleted."""
    keep_every_steps: int | None = Field(default=None, json_schema_extra=at_least("checkpoint.keepEverySteps", 1))
    """Keep the first checkpoint of every so many optimizer steps too, for good, as if it were pinned by perdure pin."""
    resume_anyway: bool = False
    """True: resume although the log under uri is gone, or older than members reported; the missing steps are lost.
    False: the job waits with the reason LogLost until the log is back."""


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
    """How long leaving members may take to save. After that they are deleted, and the steps since the last
    checkpoint are lost. Members whose script still runs this long, and 30 s, after the job was Completed are not
    protected from evictions any more."""
    replacement_timeout_seconds: int = Field(
        default=30,
        json_schema_extra=between(
            "disruption.replacementTimeoutSeconds", 0, 86400, "0 has all members leave at once, while new ones start"
        ),
    )
    """How long the run keeps training while replacements for the leaving members start elsewhere. If they are not
    Ready by then, all members save and exit, and the job restarts; with `elastic` the remaining members continue at
    a smaller size. As long as no node has a deadline, replacements that fail by themselves do not end the run, and up
    to 10 minutes in which their nodes pull images or run init containers do not count. 0: all members save and exit
    at once if any has to leave; for another size none has to, so the run trains on until new members are Ready, or
    until only the members in place keep them from a node. After an unannounced death the job waits 10 minutes for the
    replacement, because the surviving members hold unsaved steps; with `elastic` they continue at once if they are
    enough."""
    autoscaler: Autoscaler | None = Field(
        default=None, json_schema_extra=one_of("disruption.autoscaler", [word.value for word in Autoscaler], 16)
    )
    """Annotations for node autoscalers, also set on running pods when this changes. Never: autoscalers must leave
    the node alone (cluster-autoscaler's safe-to-evict "false", Karpenter's do-not-disrupt "true"). Cooperative: an
    autoscaler may remove a node once its members have moved (safe-to-evict "true", and no do-not-disrupt); new
    members are protected until they train. Absent: pods have only the annotations of the template."""
    on_cordon: OnCordon | None = Field(
        default=None,
        json_schema_extra=one_of("disruption.onCordon", [word.value for word in OnCordon], 16),
    )
    """What members do when their node is cordoned. Move: they leave the node, and the run waits for replacements if
    there is no room. MoveIfRoom: they keep training until replacements are Ready elsewhere, without a time limit; a
    drain waits for that. Ignore: they keep training, and a drain waits until the job ends. Absent: the reaction to
    the signal `cordon` in the operator's table, which is Move by default."""
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
    """This job's reactions to signals, by their names in docs/signals.md, where they differ from the operator's
    table: Vacate, VacateIfRoom, Fault, CheckpointNow, Avoid or Ignore. The condition SpecUnderstood lists names that
    the table does not have."""

    @property
    def reactions(self) -> tuple[tuple[str, Reaction], ...]:
        """What this job does about signals, by their names, where it differs from the table."""
        if self.on_cordon is None and not self.signals:
            return ()
        cordon = {CORDON_ROW: _ON_CORDON[self.on_cordon]} if self.on_cordon else {}
        return tuple(sorted({**cordon, **{name: Reaction(word) for name, word in self.signals.items()}}.items()))


class SizePolicy(StrEnum):
    """Who chooses the size of a job, within its bounds."""

    CAPACITY = "Capacity"
    GOODPUT = "Goodput"


class FailurePolicy(Model):
    """How many failures a job survives, by their cause."""

    max_code_failures: int = Field(
        default=3, json_schema_extra=at_least("failure.maxCodeFailures", 0, "0 gives up at the first failure")
    )
    """How many failures of the script in a row (an exception, a non-zero exit) the job survives. The count returns
    to zero after ten new commits, or after a new commit and a day."""
    max_infrastructure_failures: int = Field(
        default=100,
        json_schema_extra=at_least("failure.maxInfrastructureFailures", 0, "0 gives up at the first failure"),
    )
    """How many failures of pods, nodes or storage without a new commit the job survives. An announced disruption
    does not count."""
    max_out_of_memory_failures: int = Field(
        default=3,
        json_schema_extra=at_least("failure.maxOutOfMemoryFailures", 0, "0 gives up at the first out-of-memory kill"),
    )
    """How many out-of-memory kills in a row at the same step the job survives. They tend to repeat."""
    progress_timeout_seconds: int | None = Field(
        default=None,
        json_schema_extra=at_least(
            "failure.progressTimeoutSeconds", 10, "less than two looks of the process at itself would end healthy runs"
        ),
    )
    """How long a process may make no progress while it trains, or ten times what its steps take, before it is ended and
    the job continues without it as after any failure of the script. Other phases, such as a save, an evaluation or the
    first step of a run, have limits of their own, and none below this one. Absent: a process that hangs is named, and
    left alone. An edit counts for members that are created after it."""
    lost_node_seconds: int = Field(
        default=60,
        json_schema_extra=at_least(
            "failure.lostNodeSeconds",
            5,
            "nodes miss a heartbeat now and then, and going on without a member costs steps",
        ),
    )
    """How long a node may be not Ready or unreachable before the job continues without the members on it."""
    mass_outage_seconds: int = Field(
        default=600,
        json_schema_extra=at_least(
            "failure.massOutageSeconds",
            5,
            "nodes that all fail at once rather mean that the control plane has lost sight of them",
        ),
    )
    """How long the job waits while most nodes are not Ready at once, before it continues without the members on
    them."""


class Elastic(Model):
    """Sizes that the job may have, in members. Absent: exactly the number in replicas.

    The job has the largest size that is not above replicas, so replicas may be any number up to maxReplicas.
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
            Rule(
                "!has(self.pool) || has(self.policy) && self.policy == 'Goodput'",
                "elastic.pool names the jobs that share devices by policy Goodput: set elastic.policy to Goodput, or "
                "remove pool",
                ".pool",
                forbids=True,
            ),
        )
    )

    min_replicas: int = Field(json_schema_extra=between("elastic.minReplicas", 1, REPLICAS_AT_MOST))
    """The smallest size. With fewer members the job does not train."""
    max_replicas: int = Field(json_schema_extra=between("elastic.maxReplicas", 1, REPLICAS_AT_MOST))
    """The largest size. replicas cannot be above it; with policy Goodput it may be, and counts as this number."""
    sizes: tuple[int, ...] | None = Field(default=None, max_length=64)
    """The allowed sizes, the smallest first. Absent: those that divide globalBatchSize, or without it every number
    from minReplicas to maxReplicas. All processes share the global batch. If it does not divide evenly, some
    processes get one sample more."""
    global_batch_size: int | None = Field(default=None, json_schema_extra=at_least("elastic.globalBatchSize", 1))
    """Samples in one global batch, over all processes: the batch_size that the script gives session.loader. Each
    size times processesPerReplica must divide it, so that all processes have equal shares. With several loaders,
    give a common divisor of their batch sizes. Rank 0 warns if a loader's batch differs."""
    grow_after_seconds: int = Field(
        default=10,
        json_schema_extra=between(
            "elastic.growAfterSeconds", 0, 3600, "each change of size is a hand-over, so that a few seconds are enough"
        ),
    )
    """How long the job waits for more members once enough are Ready for a smaller size than the wanted one. With all
    wanted members a run starts at once."""
    grow_timeout_seconds: int = Field(
        default=900,
        json_schema_extra=between(
            "elastic.growTimeoutSeconds", 30, 86400, "an autoscaler of nodes acts on pods that are pending"
        ),
    )
    """How long a run waits for new members before it gives a growth up and deletes them. It tries again after the
    same time, twice as long after each further failure, up to an hour; at once after an edit of the spec."""
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
    """PriorityClass of spares and of members that make a run larger. With preemptionPolicy Never the job grows only
    into free room. Members of a restarted run, and replacements, have the class of the template. A pod's priority
    cannot change, so joiners and spares keep this class. Absent: the class of the template."""
    spares: int = Field(
        default=0, json_schema_extra=between("elastic.spares", 0, 100, "each of them takes as much room as a member")
    )
    """Number of warm standbys beside a run that has started. They do not train, and no budget protects them. A spare
    replaces a leaving or lost member at once, and a growing run takes its new members from the spares first. The
    operator then refills them."""
    policy: SizePolicy | None = Field(
        default=None, json_schema_extra=one_of("elastic.policy", [word.value for word in SizePolicy], 16)
    )
    """Capacity: the size follows replicas. Goodput: the operator shares the devices of the pool's nodes among its jobs
    by what they report of their speed; replicas is then the size of a job that reports nothing. Absent: Capacity."""
    pool: str | None = Field(
        default=None,
        max_length=63,
        json_schema_extra=checked(
            Rule(f"self.matches('{_NAME}')", "elastic.pool must be a name in lower case, such as night")
        ),
    )
    """The jobs of this namespace and policy Goodput that share devices; those that name none share, too."""

    @property
    def shares(self) -> bool:
        """Whether the operator chooses the size by what the jobs of a pool gain."""
        return self.policy is SizePolicy.GOODPUT


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
                "!has(self.elastic) || has(self.elastic.policy) && self.elastic.policy == 'Goodput'"
                " || self.replicas <= self.elastic.maxReplicas",
                "replicas must not be above elastic.maxReplicas: ask for fewer, or raise elastic.maxReplicas",
                ".replicas",
            ),
            Rule(
                "![self, oldSelf].all(one, has(one.elastic) && has(one.elastic.policy)"
                " && one.elastic.policy == 'Goodput') || self.replicas == oldSelf.replicas"
                " || self.elastic.maxReplicas != oldSelf.elastic.maxReplicas",
                "replicas cannot be changed with elastic.policy Goodput, as by an autoscaler of pods: the operator "
                "chooses the size; change minReplicas or maxReplicas, or set policy to Capacity first",
                ".replicas",
                forbids=True,
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
    """Wanted number of members (pods). With `elastic` the job has the largest of its sizes that is not above this
    number. `kubectl scale` changes it."""
    elastic: Elastic | None = None
    processes_per_replica: int = Field(
        default=1, json_schema_extra=between("processesPerReplica", 1, 64, "for more processes raise replicas")
    )
    """Trainer processes of each member, for instance one for each of its GPUs."""
    start_timeout_seconds: int = Field(
        default=600,
        json_schema_extra=between(
            "startTimeoutSeconds", 30, 86400, "an autoscaler of nodes acts on pods that are pending"
        ),
    )
    """How long some members may hold nodes while others find no room, before the run has started. Then the operator
    deletes all of them, so that another job can use the nodes, and creates them again after a pause. With `elastic`,
    room for minReplicas is enough. Without it, also how long a run that is to be larger waits for its new members."""
    completion: Completion = Field(
        default=Completion.LOG, json_schema_extra=one_of("completion", [word.value for word in Completion], 16)
    )
    """What completes the job. Log: the final commit of a Session, in the log. ExitCode: every rank exits with status
    0; for frameworks without a Session."""
    checkpoint: CheckpointPolicy
    disruption: DisruptionPolicy = DisruptionPolicy()
    failure: FailurePolicy = FailurePolicy()
    suspend: bool = False
    """True: members save and exit, and the job waits. False: the job runs, and resumes from its last commit."""
    active_deadline_seconds: int | None = Field(
        default=None, json_schema_extra=at_least("activeDeadlineSeconds", 1, "remove it for a job without a deadline")
    )
    """The job saves and fails after this long. Time while it is suspended does not count."""
    ttl_seconds_after_finished: int | None = Field(
        default=None, json_schema_extra=at_least("ttlSecondsAfterFinished", 0, "remove it to keep finished jobs")
    )
    """Delete a finished job and its pods after this long, and after its members' scripts have ended. Its checkpoints
    stay. Absent: never."""
    template: dict[str, Any] = Field(default_factory=dict)
    """An ordinary pod template; `schema.template` has its fields and its rules."""
