"""Names that operator and agent share: labels, files, environment variables, durations.

Values only, no code.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GROUP: Final = "perdure.dev"
ANNOTATION_ASSIGNMENT: Final = "perdure.dev/assignment"
ANNOTATION_REPORT: Final = "perdure.dev/report"
"""Where the pod's reports go, see perdure.wire.report; absent where no operator takes any."""
LABEL_JOB: Final = "perdure.dev/job"
LABEL_ROLE: Final = "perdure.dev/role"

ASSIGNMENT_FOLDER: Final = "/run/perdure"
"""Where the downward-API volume is mounted in container 0."""
ASSIGNMENT_FILE: Final = "/run/perdure/assignment"
CHANNEL_FILE: Final = "/run/perdure/report"
"""ANNOTATION_REPORT, beside the assignment in the same volume; empty or absent without one."""
REPORT_TOKEN_FOLDER: Final = "/run/perdure-report"  # noqa: S105 - a path
"""Where the projected volume with the token for reports is mounted in container 0. It is not below /var/run/perdure,
which is ASSIGNMENT_FOLDER in most images: no folder can be made in a volume that is read-only."""
REPORT_TOKEN_FILE: Final = "/run/perdure-report/token"  # noqa: S105 - a path
CREDENTIALS_FOLDER: Final = "/run/perdure-s3"
"""Where the Secret with the S3 keys is mounted in container 0, if the job names one."""
CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION")
"""Its keys, and the files in that folder; the last two need not be there."""
FROM_CREDENTIALS_FOLDER: Final = "/run/perdure-from-s3"
"""The same for the Secret of `checkpoint.from.s3`."""
TERMINATION_LOG: Final = "/dev/termination-log"

LINGER_SECONDS: Final = 600
"""How long an agent whose trainer saved, or lost a peer, keeps its pod for a newer assignment, and in it the image of a
run that lost a member: an operator may be away meanwhile, a replacement's image be pulled, its node be bought."""
AFTER_COMPLETION_SECONDS: Final = 3600
"""How long a script may go on after it has reported its completion: an evaluation, an export."""
WAIT_MARGIN_SECONDS: Final = 15
"""`wait` of a plan = its `seconds` + this."""
DEFAULT_GRACE_SECONDS: Final = 120
"""terminationGracePeriodSeconds of a member whose template has none."""


class Env:
    """Environment variables of container 0. The operator sets the first block, the agent the third."""

    ROOT: Final = "PERDURE_ROOT"
    """`checkpoint.uri`: s3://bucket/prefix or file:///folder."""
    UID: Final = "PERDURE_UID"
    """The job's uid; absent outside Kubernetes."""
    JOB: Final = "PERDURE_JOB"
    """The job as namespace/name."""
    MEMBER: Final = "PERDURE_MEMBER"
    """The pod's name."""
    NODE: Final = "PERDURE_NODE"
    """The node it runs on."""
    PROCESSES: Final = "PERDURE_PROCESSES"
    """`processesPerReplica`."""
    GRACE_SECONDS: Final = "PERDURE_GRACE_SECONDS"
    """`terminationGracePeriodSeconds`."""
    FROM: Final = "PERDURE_FROM"
    """`checkpoint.from` as a JSON object; absent without one."""
    KEEP: Final = "PERDURE_KEEP"
    """`checkpoint.keep`."""
    KEEP_EVERY_STEPS: Final = "PERDURE_KEEP_EVERY_STEPS"
    """`checkpoint.keepEverySteps`."""
    EVERY_STEPS: Final = "PERDURE_EVERY_STEPS"
    """`checkpoint.everySteps`."""
    EVERY_SECONDS: Final = "PERDURE_EVERY_SECONDS"
    """`checkpoint.everySeconds`."""
    EVERY_EPOCHS: Final = "PERDURE_EVERY_EPOCHS"
    """`checkpoint.everyEpochs`."""
    MIRROR_EVERY_STEPS: Final = "PERDURE_MIRROR_EVERY_STEPS"
    """`checkpoint.mirror.everySteps`; absent: nothing is mirrored."""
    S3_ENDPOINT: Final = "PERDURE_S3_ENDPOINT"
    """`checkpoint.s3.endpoint`."""
    S3_REGION: Final = "PERDURE_S3_REGION"
    """`checkpoint.s3.region`."""
    S3_PATH_STYLE: Final = "PERDURE_S3_PATH_STYLE"
    """`checkpoint.s3.pathStyle`: true or false."""
    S3_CREDENTIALS: Final = "PERDURE_S3_CREDENTIALS"
    """A folder with a file AWS_ACCESS_KEY_ID and so on: a mounted Secret."""
    FROM_S3_ENDPOINT: Final = "PERDURE_FROM_S3_ENDPOINT"
    """`checkpoint.from.s3.endpoint`: this and the next three are for the root that `checkpoint.from.uri` names."""
    FROM_S3_REGION: Final = "PERDURE_FROM_S3_REGION"
    """`checkpoint.from.s3.region`."""
    FROM_S3_PATH_STYLE: Final = "PERDURE_FROM_S3_PATH_STYLE"
    """`checkpoint.from.s3.pathStyle`: true or false."""
    FROM_S3_CREDENTIALS: Final = "PERDURE_FROM_S3_CREDENTIALS"
    """A folder like PERDURE_S3_CREDENTIALS; absent: the keys of the job's own root."""
    COMPLETION: Final = "PERDURE_COMPLETION"
    """A Completion; absent: Log."""
    GLOBAL_BATCH_SIZE: Final = "PERDURE_GLOBAL_BATCH_SIZE"
    """`elastic.globalBatchSize` when the pod was made."""

    RENDEZVOUS_SECONDS: Final = "PERDURE_RENDEZVOUS_SECONDS"
    """How long ranks wait for each other (users set it)."""
    BACKGROUND_BYTES: Final = "PERDURE_BACKGROUND_BYTES"
    """Periodic checkpoints of a state of this many bytes or more are uploaded in the background."""
    CHECK_SECONDS: Final = "PERDURE_CHECK_SECONDS"
    """How often ranks agree whether to stop; 0: at each step (users set it)."""
    PROGRESS_TIMEOUT_SECONDS: Final = "PERDURE_PROGRESS_TIMEOUT_SECONDS"
    """`failure.progressTimeoutSeconds`; absent: a process that hangs is not ended."""
    HANG_SECONDS: Final = "PERDURE_HANG_SECONDS"
    """After how many seconds without progress a process writes its stacks to its log, instead of a limit for each
    phase; 0: never (users set it)."""
    PRELOAD: Final = "PERDURE_PRELOAD"
    """Modules the zygote imports beside its own; "none": no zygote (users set it)."""
    LIVE: Final = "PERDURE_LIVE"
    """"no": members are replaced in place, never between two batches; "yes": between two batches on GPUs, too, which no
    test has tried (users set it)."""
    TRACE: Final = "PERDURE_TRACE"
    """"1": record per step the time and the sample ids of the batch (users set it)."""

    # Set by the agent for each trainer process, beside torch's own RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    # MASTER_ADDR and MASTER_PORT.
    RUN: Final = "PERDURE_RUN"
    """The number of the run that this process is a rank of."""
    LOST: Final = "PERDURE_LOST"
    """The assignment's `lost` as a JSON list."""
    FLOOR: Final = "PERDURE_FLOOR"
    """The assignment's `floor` as a JSON object; absent without one."""
    WAIT: Final = "PERDURE_WAIT"
    """Seconds rank 0 waits for the previous run to end before it opens."""
    REPORT_FD: Final = "PERDURE_REPORT_FD"
    """A pipe to the agent, see perdure.wire.channel."""
    REQUEST_FILE: Final = "PERDURE_REQUEST_FILE"
    """Where the agent asks for a save, see perdure.wire.channel."""
    HANDOVER_FILE: Final = "PERDURE_HANDOVER_FILE"
    """Where the agent offers a hand-over, see perdure.wire.channel."""
    HANDOVER: Final = "PERDURE_HANDOVER"
    """A newcomer's: the assignment's `handover` as a JSON object."""
    IMAGE: Final = "PERDURE_IMAGE"
    """Where a trainer that has lost a peer leaves its image, see perdure.wire.channel."""
    MIRROR_FILES: Final = "PERDURE_MIRROR_FILES"
    """Where a trainer mirrors its part of a sharded model, and another pod's: two files each, separated by `:`."""
    HELD_IMAGE: Final = "PERDURE_HELD_IMAGE"
    """The images that an earlier trainer of this pod has left, separated by `:`."""
    STARTED: Final = "PERDURE_STARTED"
    """The `time.monotonic()` at which the agent started this process."""

    # Set by `perdure describe`.
    PREVIEW: Final = "PERDURE_PREVIEW"
    """A folder: this process describes there what it would do, and trains nothing."""

    # Set by perdure.testing.
    EXIT_AT_STEP: Final = "PERDURE_EXIT_AT_STEP"
    """The step in which this process is asked to leave."""


PREVIEW_TEXT: Final = "text"
PREVIEW_JSON: Final = "json"
"""The files that a session leaves in the folder PERDURE_PREVIEW."""


class Role(StrEnum):
    """Value of the label `perdure.dev/role`."""

    STANDBY = "standby"
    MEMBER = "member"
    FORMER = "former"


class Completion(StrEnum):
    """What makes a job completed."""

    LOG = "Log"  # a Session's ending with a goal in the log
    EXIT_CODE = "ExitCode"  # every rank's process has exited 0: for frameworks without a Session
