"""The outcome that a pod's agent writes as its termination message: how its trainer ended, where, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from perdure.wire.account import RunAccount, read_accounts, write_accounts
from perdure.wire.codec import Natural, Positive, from_json
from perdure.wire.handover import (
    WHY_CHARACTERS,
    AttemptRecord,
    HandoverRecord,
    read_attempt,
    read_record,
    write_attempt,
    write_record,
)
from perdure.wire.reading import (
    LARGEST,
    VERSION,
    CommitRef,
    ContractError,
    commit_of,
    document,
    integer,
    read_commit,
    string,
)
from perdure.wire.result import read_result
from perdure.wire.truncation import fitting

T = TypeVar("T")

OUTCOME_BYTES: Final = 2048
"""The kubelet cuts termination messages at 4096 bytes each, and at 12288 bytes over all containers of a pod, init
containers included, in equal shares. This size is never cut in a pod with six containers; a cut message is not JSON."""

OPENED_AT_MOST: Final = 2**31 - 1
"""A run per second for 68 years. The operator counts on from `opened`, so a value near LARGEST would leave no
numbers."""

HANDOVERS_KEPT: Final = 4
"""Attempts in a pod's outcome."""

HANDOVERS_BYTES: Final = 800
"""Their size limit in an outcome, because the error matters more."""

ACCOUNTS_BYTES: Final = 500
"""Size limit of what the pod did with its time, because the error matters more."""

UNSAVED_BYTES: Final = 300
"""Size limit of why the last checkpoint failed, escaped as JSON."""

BEGINNINGS_KEPT: Final = 4
"""Begun runs in a pod's outcome."""

SKIPPED_COMMIT_BYTES: Final = 200
"""Size limit of why a commit was unusable, escaped as JSON."""

_OLD_SKIPPED_COMMIT: Final = "fellBack"
"""The name that older agents use for `skippedCommit`. They stay in users' images for weeks."""

_NAME_CHARACTERS: Final = 100
"""Length limit of an error's name; an escaped character has at most twelve bytes."""


class ExitKind(StrEnum):
    """How a trainer ended; `outcome` in the termination message."""

    COMPLETED = "completed"  # the goal is reached and in the log
    CHECKPOINTED = "checkpointed"  # asked to leave; the final commit is in the log
    HANDED_OVER = "handed-over"  # its run continues without it, in the living processes of the others
    STOPPED = "stopped"  # asked to leave; ended without its own commit
    EXIT_TIMEOUT = "exit-timeout"  # asked to leave; killed at the deadline
    FAILED = "failed"
    PEER_LOST = "peer-lost"  # another rank went away
    FENCED = "fenced"  # a newer run of this job owns the log
    HANDOVER_FAILED = "handover-failed"  # a newcomer whose attempt failed: the older run keeps training
    ROOT_TAKEN_OVER = "root-taken-over"  # another job owns the log: terminal


CLEAN: Final = frozenset({ExitKind.COMPLETED, ExitKind.CHECKPOINTED, ExitKind.HANDED_OVER})
"""Outcomes after which the agent exits with status 0."""


class ErrorKind(StrEnum):
    """The kind of failure in `error`."""

    EXCEPTION = "exception"
    SIGNAL = "signal"
    EXIT = "exit"
    STORAGE = "storage"


class ErrorName(StrEnum):
    """Names of errors that the operator acts on; others are only shown."""

    ROOT_TAKEN_OVER = "RootTakenOver"
    LOG_LOST = "LogLost"  # the log lacks known commits: terminal until a user acts
    STORAGE_REFUSED = "StorageRefused"  # the store refuses until the cause named in the tail is fixed
    CORRUPT = "Corrupt"  # nothing in the log and its commits is usable: restore it, or use another root
    NO_SESSION = "NoSession"  # exited 0 without a sign of training
    OUT_OF_MEMORY = "OutOfMemory"  # the kernel killed it at the container's memory limit
    NO_PROGRESS = "NoProgress"  # ended by its agent: failure.progressTimeoutSeconds
    KILLED = "SIGKILL"
    UNSUPPORTED_VERSION = "UnsupportedVersion"


_FROM_OUTSIDE: Final = frozenset({ErrorName.KILLED, ErrorName.OUT_OF_MEMORY})
"""SIGKILL does not come from the script, but from the kernel when memory is short, or from the kubelet."""


@dataclass(frozen=True)
class Failure:
    """A trainer's error."""

    kind: ErrorKind
    name: str = ""
    """Exception class, signal name, exit status or an ErrorName."""
    tail: str = ""
    """The traceback or the last lines of stderr; the beginning and the end of a long one."""

    @property
    def infrastructure(self) -> bool:
        """Whether it came from outside the user's code: the storage, or SIGKILL."""
        return self.kind is ErrorKind.STORAGE or (self.kind is ErrorKind.SIGNAL and self.name in _FROM_OUTSIDE)


@dataclass(frozen=True)
class Rescue:
    """A run began from an image of a lost run, newer than every usable commit."""

    run: Positive
    """The run that began there."""
    steps: Positive
    """Steps that would have been lost."""
    of: Natural = 0
    """The run of that image; 0 if unknown."""


@dataclass(frozen=True)
class Beginning:
    """Where a run began, and how far this pod's trainer before it had come. The steps between are trained again."""

    run: Positive
    step: Natural
    """The step at which it began."""
    of: Natural = 0
    """The earlier run that this pod's last trainer trained; 0 for none."""
    reached: Natural = 0
    """The last finished step of that trainer."""


@dataclass(frozen=True)
class SkippedCommit:
    """A run could not use the newest commit, and began with an older one."""

    run: Positive
    """The run that began there."""
    steps: Natural
    """Steps from its beginning to the newest commit."""
    why: str = ""
    """The unusable commit, and what is wrong with it."""


@dataclass(frozen=True)
class Unsaved:
    """Checkpoints that failed in a row since the newest commit."""

    failures: Positive
    """How many."""
    why: str = ""
    """Why the last of them failed."""


@dataclass(frozen=True)
class Outcome:
    """The termination message of a pod's agent."""

    outcome: ExitKind
    run: int
    rank: int
    step: int = 0
    """Optimizer steps done by the time the trainer ended."""
    commit: CommitRef | None = None
    """The newest commit that this run made or resumed from; after LogLost the newest one that was found."""
    opened: int = 0
    """The highest run whose `Opened` entry its trainer read, in the log or with the word GO."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Durations by part: agree, stage, upload, commit, start, import, rendezvous, restore."""
    error: Failure | None = None
    epoch: int | None = None
    """Epochs finished by the time the trainer ended; None if it did not report them."""
    handovers: tuple[HandoverRecord, ...] = ()
    """The newest attempts this pod took part in, oldest first."""
    attempt: AttemptRecord | None = None
    """The newest attempt this pod took part in, with its trainer's vote and the word that it read."""
    live: bool | None = None
    """Whether this script can swap members live, by its Session's report; None without one."""
    live_why: str = ""
    """Why it cannot."""
    rescue: Rescue | None = None
    """The image that the trainer's run began from, if that was in no commit."""
    begun: tuple[Beginning, ...] = ()
    """Where the newest runs opened by this pod's trainers began, oldest first."""
    skipped_commit: SkippedCommit | None = None
    """The commit that the newest of these runs skipped, if one did."""
    unsaved: Unsaved | None = None
    """Checkpoints that had failed when the trainer ended; None if the last one succeeded."""
    result: Mapping[str, Any] | None = None
    """The script's result, from rank 0; omitted beside an error, for lack of room."""
    accounts: tuple[RunAccount, ...] = ()
    """What the pod's first process did with its time in the newest runs, oldest first, as far as there is room."""

    @property
    def infrastructure(self) -> bool:
        """Whether it failed from outside the user's code. A failure without an explanation counts as such."""
        return self.outcome is ExitKind.FAILED and (self.error is None or self.error.infrastructure)


def write_outcome(outcome: Outcome) -> str:
    """The termination message. If the error's tail does not fit, its middle is cut."""
    body: dict[str, Any] = {
        "v": VERSION,
        "outcome": outcome.outcome.value,
        "run": outcome.run,
        "rank": outcome.rank,
    }
    body |= {"step": max(0, min(outcome.step, LARGEST)), "opened": _opened(outcome.opened)}
    if outcome.epoch is not None:
        body["epoch"] = max(0, min(outcome.epoch, LARGEST))
    body["seconds"] = {name: round(float(value), 3) for name, value in outcome.seconds.items()}
    if read_commit(commit := asdict(outcome.commit) if outcome.commit else None):
        body["commit"] = commit
    if outcome.attempt:
        body["attempt"] = write_attempt(outcome.attempt)
    if outcome.live is not None:
        body |= {"live": outcome.live, "liveWhy": outcome.live_why[:WHY_CHARACTERS]}
    if outcome.rescue:
        body["rescue"] = asdict(outcome.rescue)
    if outcome.unsaved:
        body["unsaved"] = {"failures": outcome.unsaved.failures, "why": fitting(outcome.unsaved.why, UNSAVED_BYTES)}
    if outcome.result is not None and not outcome.error:
        body["result"] = read_result(outcome.result)
    body |= _what_runs_began_with(outcome, OUTCOME_BYTES - len(_compact(body)))
    room = OUTCOME_BYTES - len(_compact(body)) if "result" in body else HANDOVERS_BYTES
    if records := _those_that_fit(outcome.handovers, min(room, HANDOVERS_BYTES)):
        body["handovers"] = records
    body |= _time_spent(outcome, OUTCOME_BYTES - len(_compact(body)))
    if outcome.error:
        body["error"] = {"kind": outcome.error.kind.value, "name": outcome.error.name[:_NAME_CHARACTERS], "tail": ""}
        body["error"]["tail"] = fitting(outcome.error.tail, OUTCOME_BYTES - len(_compact(body)))
    return _compact(body)


def _what_runs_began_with(outcome: Outcome, room: int) -> dict[str, Any]:
    """The newest beginnings and the skipped commit, as far as they fit into `room` bytes."""
    body: dict[str, Any] = {}
    begun = [asdict(one) for one in outcome.begun[-BEGINNINGS_KEPT:]]
    while begun and len(_compact({"begun": begun})) > room:
        begun = begun[1:]
    if begun:
        body["begun"] = begun
    if skipped := outcome.skipped_commit:
        entry = {"skippedCommit": asdict(replace(skipped, why=""))}
        left = min(SKIPPED_COMMIT_BYTES, room - len(_compact(body | entry)))
        if left > 0:
            entry["skippedCommit"]["why"] = fitting(skipped.why, left)
            body |= entry
    return body


def _time_spent(outcome: Outcome, room: int) -> dict[str, Any]:
    """The newest accounts, as far as they fit into `room` bytes."""
    accounts = write_accounts(outcome.accounts, min(room - len(',"accounts":'), ACCOUNTS_BYTES))
    return {"accounts": accounts} if accounts else {}


def _those_that_fit(records: Sequence[HandoverRecord], room: int) -> list[dict[str, Any]]:
    """The newest records that fit into `room` bytes, oldest first."""
    written = [write_record(record) for record in records[-HANDOVERS_KEPT:]]
    while written and len(_compact({"handovers": written})) > room:
        written = written[1:]
    return written


def _compact(body: Mapping[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))


def read_outcome(text: str) -> Outcome:
    """The outcome in a termination message. Raises ContractError or UnsupportedVersion.

    A container writes the message, so it may hold any bytes.
    """
    doc = document("outcome", text)
    seconds = doc.get("seconds")
    durations = seconds if isinstance(seconds, dict) else {}
    return Outcome(
        outcome=_exit_kind(string(doc, "outcome")),
        run=integer(doc, "run", 0),
        rank=integer(doc, "rank", 0),
        step=integer(doc, "step", 0, default=0),
        commit=commit_of(doc.get("commit")),
        opened=_opened(doc.get("opened", 0)),
        seconds={name: float(s) for name, s in durations.items() if isinstance(s, int | float) and abs(s) < 1e9},
        error=_failure(doc.get("error")),
        epoch=_epoch(doc.get("epoch")),
        handovers=_handovers(doc.get("handovers")),
        attempt=read_attempt(doc.get("attempt")),
        live=live if isinstance(live := doc.get("live"), bool) else None,
        live_why=str(doc.get("liveWhy") or "")[:WHY_CHARACTERS],
        rescue=_shown(Rescue, doc.get("rescue")),
        begun=_beginnings(doc.get("begun")),
        skipped_commit=_shown(SkippedCommit, doc.get("skippedCommit", doc.get(_OLD_SKIPPED_COMMIT))),
        unsaved=_shown(Unsaved, doc.get("unsaved")),
        result=read_result(doc.get("result")),
        accounts=read_accounts(doc.get("accounts")),
    )


def _exit_kind(word: str) -> ExitKind:
    """The kind of exit. A newer agent's unknown word counts as FAILED, judged by its error."""
    try:
        return ExitKind(word)
    except ValueError:
        return ExitKind.FAILED


def _opened(value: Any) -> int:
    """The highest opened run; an absurd value counts as 0, because the rest of the outcome is still true."""
    return value if type(value) is int and 0 <= value <= OPENED_AT_MOST else 0


def _epoch(value: Any) -> int | None:
    """The epoch; an absurd value counts as None, because it is only shown."""
    return value if type(value) is int and 0 <= value <= LARGEST else None


def _shown(kind: type[T], value: Any) -> T | None:
    """A value for people; an absurd one counts as None."""
    try:
        return from_json(kind, value) if isinstance(value, dict) else None
    except ContractError:
        return None


def _beginnings(value: Any) -> tuple[Beginning, ...]:
    found = (_shown(Beginning, one) for one in (value if isinstance(value, list) else []))
    return tuple(one for one in found if one)[-BEGINNINGS_KEPT:]


def _handovers(value: Any) -> tuple[HandoverRecord, ...]:
    records = map(read_record, value if isinstance(value, list) else [])
    return tuple(record for record in records if record)[-HANDOVERS_KEPT:]


def _failure(value: Any) -> Failure | None:
    if not isinstance(value, dict):
        return None
    try:
        kind = ErrorKind(str(value.get("kind")))
    except ValueError:
        kind = ErrorKind.EXIT  # a newer agent's kind: still a failure
    return Failure(kind, string(value, "name", ""), string(value, "tail", ""))
