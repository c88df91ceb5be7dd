"""What the operator and a pod's agent say to each other: names, assignments and outcomes.

The operator writes an `Assignment` into one annotation of a pod, the agent in that pod reads it from a downward-API
file; the agent writes one `Outcome` as the container's termination message, the operator reads it. Agents live in
users' images for weeks, so both are written strictly and read tolerantly: unknown fields are ignored, an unknown
major version is `UnsupportedVersion`.

This package must stay free of torch, kopf and pydantic: both sides import it.
"""

from perdure.contract.assignment import (
    ASSIGNMENT_BYTES,
    Assignment,
    Leave,
    Standby,
    Train,
    read_assignment,
    write_assignment,
)
from perdure.contract.handover import (
    Handover,
    HandoverRecord,
    HandoverWord,
    read_handover,
    read_ranks,
    write_handover,
    write_ranks,
)
from perdure.contract.names import (
    ANNOTATION_ASSIGNMENT,
    ASSIGNMENT_FILE,
    ASSIGNMENT_FOLDER,
    CREDENTIALS,
    CREDENTIALS_FOLDER,
    DEFAULT_GRACE_SECONDS,
    GROUP,
    LABEL_JOB,
    LABEL_ROLE,
    LINGER_SECONDS,
    TERMINATION_LOG,
    WAIT_MARGIN_SECONDS,
    Completion,
    Env,
    Role,
)
from perdure.contract.outcome import (
    CLEAN,
    HANDOVERS_KEPT,
    OPENED_AT_MOST,
    OUTCOME_BYTES,
    ErrorKind,
    ErrorName,
    ExitKind,
    Failure,
    Outcome,
    Rescue,
    Unsaved,
    read_outcome,
    write_outcome,
)
from perdure.contract.reading import (
    LARGEST,
    VERSION,
    CommitRef,
    ContractError,
    UnsupportedVersion,
    read_commit,
)
from perdure.contract.result import RESULT_BYTES, read_result, write_result
from perdure.contract.wanted import ResumeFrom, Wanted, read_resume_from

__all__ = [
    "ANNOTATION_ASSIGNMENT",
    "ASSIGNMENT_BYTES",
    "ASSIGNMENT_FILE",
    "ASSIGNMENT_FOLDER",
    "CLEAN",
    "CREDENTIALS",
    "CREDENTIALS_FOLDER",
    "DEFAULT_GRACE_SECONDS",
    "GROUP",
    "HANDOVERS_KEPT",
    "LABEL_JOB",
    "LABEL_ROLE",
    "LARGEST",
    "LINGER_SECONDS",
    "OPENED_AT_MOST",
    "OUTCOME_BYTES",
    "RESULT_BYTES",
    "TERMINATION_LOG",
    "VERSION",
    "WAIT_MARGIN_SECONDS",
    "Assignment",
    "CommitRef",
    "Completion",
    "ContractError",
    "Env",
    "ErrorKind",
    "ErrorName",
    "ExitKind",
    "Failure",
    "Handover",
    "HandoverRecord",
    "HandoverWord",
    "Leave",
    "Outcome",
    "Rescue",
    "ResumeFrom",
    "Role",
    "Standby",
    "Train",
    "Unsaved",
    "UnsupportedVersion",
    "Wanted",
    "read_assignment",
    "read_commit",
    "read_handover",
    "read_outcome",
    "read_ranks",
    "read_result",
    "read_resume_from",
    "write_assignment",
    "write_handover",
    "write_outcome",
    "write_ranks",
    "write_result",
]
