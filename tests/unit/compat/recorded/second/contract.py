"""What the operator and a pod's agent say to each other: names, assignments and outcomes.

The operator writes an `Assignment` into one annotation of a pod, the agent in that pod reads it from a downward-API
file; the agent writes one `Outcome` as the container's termination message, the operator reads it. Agents live in
users' images for weeks, so both are written strictly and read tolerantly: unknown fields are ignored, an unknown
major version is `UnsupportedVersion`.

This module must stay free of torch, kopf and pydantic: both sides import it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from perdure.errors import PerdureError
from perdure.wire.truncation import fitting

VERSION: Final = 1
"""The contract's major version, `v` in an assignment and in an outcome."""

ASSIGNMENT_BYTES: Final = 1024
"""An assignment is at most this long: it is an annotation and a file in every pod."""

OUTCOME_BYTES: Final = 2048
"""The kubelet cuts termination messages at 4096 bytes each, and at 12288 bytes over all containers of a pod, init
containers included, in equal shares: this much is whole in a pod of six. A cut one would not be JSON any more."""

LARGEST: Final = 2**53 - 1
"""No number in an outcome or an assignment is larger: JSON readers of other languages keep no more."""

OPENED_AT_MOST: Final = 2**31 - 1
"""A run a second for 68 years. The operator goes past `opened`: one near LARGEST would leave later runs no number."""

_NAME_CHARACTERS: Final = 100
"""Of an error's name; escaped, a character is at most twelve bytes long."""

GROUP: Final = "perdure.dev"
ANNOTATION_ASSIGNMENT: Final = "perdure.dev/assignment"
LABEL_JOB: Final = "perdure.dev/job"
LABEL_ROLE: Final = "perdure.dev/role"

ASSIGNMENT_FOLDER: Final = "/run/perdure"
"""Where the downward-API volume is mounted in container 0."""
ASSIGNMENT_FILE: Final = "/run/perdure/assignment"
TERMINATION_LOG: Final = "/dev/termination-log"

LINGER_SECONDS: Final = 30
"""How long an agent whose trainer saved, or lost a peer, keeps its pod for a newer assignment."""
WAIT_MARGIN_SECONDS: Final = 15
"""`wait` of a plan = its `seconds` + this."""
DEFAULT_GRACE_SECONDS: Final = 120
"""terminationGracePeriodSeconds of a member whose template does not say."""


class Env:
    """Names of the environment variables of container 0; the first block is set by the operator."""

    ROOT: Final = "PERDURE_ROOT"  # checkpoint.uri: s3://bucket/prefix or file:///folder
    UID: Final = "PERDURE_UID"  # the job's uid; absent outside Kubernetes: "local"
    JOB: Final = "PERDURE_JOB"  # namespace/name
    MEMBER: Final = "PERDURE_MEMBER"  # the pod's name
    PROCESSES: Final = "PERDURE_PROCESSES"  # processesPerReplica
    GRACE_SECONDS: Final = "PERDURE_GRACE_SECONDS"  # terminationGracePeriodSeconds
    KEEP: Final = "PERDURE_KEEP"  # checkpoint.keep
    EVERY_STEPS: Final = "PERDURE_EVERY_STEPS"
    EVERY_SECONDS: Final = "PERDURE_EVERY_SECONDS"
    EVERY_EPOCHS: Final = "PERDURE_EVERY_EPOCHS"
    S3_ENDPOINT: Final = "PERDURE_S3_ENDPOINT"
    S3_REGION: Final = "PERDURE_S3_REGION"
    S3_PATH_STYLE: Final = "PERDURE_S3_PATH_STYLE"  # "true" or "false"
    COMPLETION: Final = "PERDURE_COMPLETION"  # a Completion; absent: Log

    RENDEZVOUS_SECONDS: Final = "PERDURE_RENDEZVOUS_SECONDS"  # how long ranks wait for each other (users set it)
    TRACE: Final = "PERDURE_TRACE"  # "1": record per step the time and the sample ids of the batch (users set it)

    # Set by the agent for each trainer process, beside torch's own RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    # MASTER_ADDR and MASTER_PORT.
    RUN: Final = "PERDURE_RUN"
    LOST: Final = "PERDURE_LOST"  # the assignment's `lost` as a JSON list
    FLOOR: Final = "PERDURE_FLOOR"  # the assignment's `floor` as a JSON object; absent without one
    WAIT: Final = "PERDURE_WAIT"  # seconds rank 0 waits for the previous run to end before it opens
    REPORT_FD: Final = "PERDURE_REPORT_FD"  # see perdure.channel
    REQUEST_FILE: Final = "PERDURE_REQUEST_FILE"  # see perdure.channel
    STARTED: Final = "PERDURE_STARTED"  # time.monotonic() at which the agent started this process


class Role(StrEnum):
    """Value of the label `perdure.dev/role`."""

    STANDBY = "standby"
    MEMBER = "member"
    FORMER = "former"


class Completion(StrEnum):
    """What makes a job completed."""

    LOG = "Log"  # a Session's ending with a goal in the log
    EXIT_CODE = "ExitCode"  # every rank's process has exited 0: for frameworks without a Session


class ContractError(PerdureError):
    """A document of the other side cannot be read; the message says which field and why."""


class UnsupportedVersion(ContractError):
    """The document's major version is not one this side knows."""


@dataclass(frozen=True)
class CommitRef:
    """A commit as those who did not write it know it: its entry in the log and its step."""

    seq: int
    step: int


@dataclass(frozen=True)
class Train:
    """Be ranks `rank` .. `rank + processes - 1` of `world` processes in run `run`."""

    run: int
    rank: int
    world: int
    master: str
    """ip:port of rank 0's store."""
    cause: str = ""
    """Why the run before this one ends: shown to the trainer that is asked to save."""
    seconds: int = 0
    """How long the trainer of an older run may take to save, from first sight of this assignment."""
    wait: int = 0
    """How long rank 0 waits for the older run to end before it opens the log."""
    lost: tuple[int, ...] = ()
    """Runs that can no longer save together: their trainers are killed at once."""
    floor: CommitRef | None = None
    """The newest commit known from outcomes: a run that finds an older log refuses to begin. None: any log will do."""


@dataclass(frozen=True)
class Leave:
    """Save, commit, exit: run `run` will train without this member."""

    run: int
    cause: str = ""
    seconds: int = 0
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Standby:
    """Warm up and wait."""


Assignment = Train | Leave | Standby


def write_assignment(assignment: Assignment) -> str:
    """The annotation's text. Raises ContractError if it would be longer than ASSIGNMENT_BYTES."""
    body: dict[str, Any] = {"v": VERSION}
    match assignment:
        case Standby():
            body["standby"] = True
        case Leave(run, cause, seconds, lost):
            body |= {"run": run, "lost": list(lost), "leave": True, "cause": cause, "seconds": seconds}
        case Train(run, rank, world, master, cause, seconds, wait, lost, floor):
            body |= {"run": run, "lost": list(lost), "rank": rank, "world": world, "master": master}
            body |= {"cause": cause, "seconds": seconds, "wait": wait}
            if floor:
                body["floor"] = asdict(floor)
    text = json.dumps(body, separators=(",", ":"))
    if len(text.encode()) > ASSIGNMENT_BYTES:
        raise ContractError(
            f"assignment of run {body.get('run')} is longer than {ASSIGNMENT_BYTES} bytes: {text[:80]}…"
        )
    return text


def read_assignment(text: str) -> Assignment:
    """The assignment in an annotation's text.

    Raises UnsupportedVersion for another major version, ContractError for anything else that is not an assignment.
    """
    doc = _document("assignment", text)
    if doc.get("standby") is True:
        return Standby()
    run, cause, seconds = _int(doc, "run", 1), _str(doc, "cause", ""), _int(doc, "seconds", 0, default=0)
    lost = _ints(doc, "lost")
    if doc.get("leave") is True:
        return Leave(run, cause, seconds, lost)
    world = _int(doc, "world", 1)
    rank = _int(doc, "rank", 0)
    if rank >= world:
        raise ContractError(f"assignment: rank {rank} is not below world {world}")
    master, wait = _str(doc, "master"), _int(doc, "wait", 0, default=0)
    host, _, port = master.rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise ContractError(f"assignment: master {master!r} is not ip:port")
    return Train(run, rank, world, master, cause, seconds, wait, lost, read_commit(doc.get("floor")))


def read_commit(value: Any) -> CommitRef | None:
    """The commit in a JSON object, None for anything else: neither a run nor its outcome depends on it."""
    try:
        return _commit(value)
    except ContractError:
        return None


class ExitKind(StrEnum):
    """How a trainer ended; `outcome` in the termination message."""

    COMPLETED = "completed"  # the goal is reached and in the log
    CHECKPOINTED = "checkpointed"  # asked to leave, and the final commit is in the log
    STOPPED = "stopped"  # asked to leave, and ended without a commit of its own
    EXIT_TIMEOUT = "exit-timeout"  # asked to leave, and killed when the time was over
    FAILED = "failed"
    PEER_LOST = "peer-lost"  # another rank went away
    FENCED = "fenced"  # a newer run of this job owns the log
    ROOT_TAKEN_OVER = "root-taken-over"  # another job owns the log: terminal


CLEAN: Final = frozenset({ExitKind.COMPLETED, ExitKind.CHECKPOINTED, ExitKind.STOPPED})
"""Outcomes after which the agent exits with status 0."""


class ErrorKind(StrEnum):
    """What kind of failure `error` describes."""

    EXCEPTION = "exception"
    SIGNAL = "signal"
    EXIT = "exit"
    STORAGE = "storage"


class ErrorName(StrEnum):
    """Names of errors that mean something to whoever reads an outcome; all others are only shown."""

    ROOT_TAKEN_OVER = "RootTakenOver"
    LOG_LOST = "LogLost"  # the log is older than what is known to be committed: terminal until somebody acts
    NO_SESSION = "NoSession"  # exited 0, and nothing has ever told that it trained
    OUT_OF_MEMORY = "OutOfMemory"  # the kernel killed it at the container's memory limit
    KILLED = "SIGKILL"
    UNSUPPORTED_VERSION = "UnsupportedVersion"


_FROM_OUTSIDE: Final = frozenset({ErrorName.KILLED, ErrorName.OUT_OF_MEMORY})
"""Nobody's code sends SIGKILL: the kernel when memory is short, or the kubelet."""


@dataclass(frozen=True)
class Failure:
    """What went wrong, in the trainer's own words."""

    kind: ErrorKind
    name: str = ""
    """Exception class, signal name or exit status; an ErrorName where it means something."""
    tail: str = ""
    """The traceback or the last lines of stderr; of a long one the head and the end."""

    @property
    def infrastructure(self) -> bool:
        """Whether it came from outside the user's code: the storage, or SIGKILL."""
        return self.kind is ErrorKind.STORAGE or (self.kind is ErrorKind.SIGNAL and self.name in _FROM_OUTSIDE)


@dataclass(frozen=True)
class Outcome:
    """What a pod's agent leaves behind as the termination message."""

    outcome: ExitKind
    run: int
    rank: int
    step: int = 0
    """Optimizer steps done by the time the trainer ended."""
    commit: CommitRef | None = None
    """The newest commit this run has made or resumed from."""
    opened: int = 0
    """The highest run number seen in the log."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Durations by part: agree, stage, upload, commit, start, import, rendezvous, restore."""
    error: Failure | None = None

    @property
    def infrastructure(self) -> bool:
        """Whether it failed, and not by the user's code; a failure that nobody explains came from outside."""
        return self.outcome is ExitKind.FAILED and (self.error is None or self.error.infrastructure)


def write_outcome(outcome: Outcome) -> str:
    """The termination message; the error's tail loses its middle where it would not fit."""
    body: dict[str, Any] = {
        "v": VERSION,
        "outcome": outcome.outcome.value,
        "run": outcome.run,
        "rank": outcome.rank,
    }
    body |= {"step": max(0, min(outcome.step, LARGEST)), "opened": _opened(outcome.opened)}
    body["seconds"] = {name: round(float(value), 3) for name, value in outcome.seconds.items()}
    if read_commit(commit := asdict(outcome.commit) if outcome.commit else None):
        body["commit"] = commit
    if outcome.error:
        body["error"] = {"kind": outcome.error.kind.value, "name": outcome.error.name[:_NAME_CHARACTERS], "tail": ""}
        body["error"]["tail"] = fitting(outcome.error.tail, OUTCOME_BYTES - len(_compact(body)))
    return _compact(body)


def _compact(body: Mapping[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))


def read_outcome(text: str) -> Outcome:
    """The outcome in a termination message; raises ContractError or UnsupportedVersion.

    A container writes it: any bytes may be in it.
    """
    doc = _document("outcome", text)
    seconds = doc.get("seconds")
    durations = seconds if isinstance(seconds, dict) else {}
    return Outcome(
        outcome=_exit_kind(_str(doc, "outcome")),
        run=_int(doc, "run", 0),
        rank=_int(doc, "rank", 0),
        step=_int(doc, "step", 0, default=0),
        commit=_commit(doc.get("commit")),
        opened=_opened(doc.get("opened", 0)),
        seconds={name: float(s) for name, s in durations.items() if isinstance(s, int | float) and abs(s) < 1e9},
        error=_failure(doc.get("error")),
    )


def _exit_kind(word: str) -> ExitKind:
    """A newer agent's word is a failure: judged by its error, where there is one."""
    try:
        return ExitKind(word)
    except ValueError:
        return ExitKind.FAILED


def _opened(value: Any) -> int:
    """An absurd one is ignored: the rest of the outcome is still true."""
    return value if type(value) is int and 0 <= value <= OPENED_AT_MOST else 0


def _commit(value: Any) -> CommitRef | None:
    return CommitRef(_int(value, "seq", 1), _int(value, "step", 0)) if isinstance(value, dict) else None


def _failure(value: Any) -> Failure | None:
    if not isinstance(value, dict):
        return None
    try:
        kind = ErrorKind(str(value.get("kind")))
    except ValueError:
        kind = ErrorKind.EXIT  # a newer agent's kind: still a failure of its own
    return Failure(kind, _str(value, "name", ""), _str(value, "tail", ""))


def _document(what: str, text: str) -> dict[str, Any]:
    try:
        doc = json.loads(text)
    except (ValueError, RecursionError):
        raise ContractError(f"{what}: not JSON: {text[:80]!r}") from None
    if not isinstance(doc, dict):
        raise ContractError(f"{what}: not a JSON object: {text[:80]!r}")
    version = doc.get("v")
    if isinstance(version, bool) or not isinstance(version, int):
        raise ContractError(f"{what}: field v is not an integer: {version!r}")
    if version != VERSION:
        raise UnsupportedVersion(f"{what}: version {version}, this side knows {VERSION}: use matching images")
    return doc


def _int(doc: Mapping[str, Any], name: str, least: int, *, default: int | None = None) -> int:
    value = doc.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise ContractError(f"field {name} is not an integer from {least} to 2^53 - 1: {str(value)[:80]}")
    return value


def _str(doc: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = doc.get(name, default)
    if not isinstance(value, str):
        raise ContractError(f"field {name} is not a string: {value!r}")
    return value


def _ints(doc: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = doc.get(name, [])
    if not isinstance(value, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
        raise ContractError(f"field {name} is not a list of integers: {value!r}")
    return tuple(value)
