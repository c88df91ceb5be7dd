"""What a pod's agent leaves behind: how its trainer ended, where, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

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
containers included, in equal shares: this much is whole in a pod of six. A cut one would not be JSON any more."""

OPENED_AT_MOST: Final = 2**31 - 1
"""A run a second for 68 years. The operator goes past `opened`: one near LARGEST would leave later runs no number."""

HANDOVERS_KEPT: Final = 4
"""Of a pod's attempts, in its outcome."""

HANDOVERS_BYTES: Final = 800
"""What they may take of an outcome: how it ended and why matters more."""

UNSAVED_BYTES: Final = 300
"""Of why the last checkpoint failed, once JSON has escaped it."""

BEGINNINGS_KEPT: Final = 4
"""Of the runs that a pod's trainers have begun, in its outcome."""

FALLBACK_BYTES: Final = 200
"""Of why a commit could not be used, once JSON has escaped it."""

_NAME_CHARACTERS: Final = 100
"""Of an error's name; escaped, a character is at most twelve bytes long."""


class ExitKind(StrEnum):
    """How a trainer ended; `outcome` in the termination message."""

    COMPLETED = "completed"  # the goal is reached and in the log
    CHECKPOINTED = "checkpointed"  # asked to leave, and the final commit is in the log
    HANDED_OVER = "handed-over"  # its run goes on without it, in the living processes of the others
    STOPPED = "stopped"  # asked to leave, and ended without a commit of its own
    EXIT_TIMEOUT = "exit-timeout"  # asked to leave, and killed when the time was over
    FAILED = "failed"
    PEER_LOST = "peer-lost"  # another rank went away
    FENCED = "fenced"  # a newer run of this job owns the log
    HANDOVER_FAILED = "handover-failed"  # a newcomer whose attempt did not take place: the older run trains on
    ROOT_TAKEN_OVER = "root-taken-over"  # another job owns the log: terminal


CLEAN: Final = frozenset({ExitKind.COMPLETED, ExitKind.CHECKPOINTED, ExitKind.HANDED_OVER})
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
    STORAGE_REFUSED = "StorageRefused"  # the store refuses, and will until somebody mends what the tail names
    CORRUPT = "Corrupt"  # of what the log and its commits hold nothing can be used: restore it, or use another root
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
class Rescue:
    """A run has begun from what the members of a lost one had left, beyond every commit."""

    run: Positive
    """The run that began there."""
    steps: Positive
    """Steps that would have been lost."""
    of: Natural = 0
    """The run whose members had left it; 0: not told."""


@dataclass(frozen=True)
class Beginning:
    """Where a run has begun that was opened, and how far the trainer before it had come in this pod: what lies between
    is trained again.
    """

    run: Positive
    step: Natural
    """The step at which it has begun."""
    of: Natural = 0
    """The run before it, of which this pod had a trainer that has trained; 0: none."""
    reached: Natural = 0
    """The step which that one had done."""


@dataclass(frozen=True)
class Fallback:
    """A run could not use the newest commit, and has begun with an older one."""

    run: Positive
    """The run that began there."""
    steps: Natural
    """From there to the newest commit."""
    why: str = ""
    """Which commit that is, and what is wrong with it."""


@dataclass(frozen=True)
class Unsaved:
    """Checkpoints that have failed in a row, and none was made since."""

    failures: Positive
    """How many."""
    why: str = ""
    """Why the last of them did."""


@dataclass(frozen=True)
class Outcome:
    """What a pod's agent leaves behind as the termination message."""

    outcome: ExitKind
    run: int
    rank: int
    step: int = 0
    """Optimizer steps done by the time the trainer ended."""
    commit: CommitRef | None = None
    """The newest commit this run has made or resumed from; of one that refused a log (LogLost), the newest there."""
    opened: int = 0
    """The highest run of which its trainer has read `Opened`, in the log or as the bytes that came with go."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Durations by part: agree, stage, upload, commit, start, import, rendezvous, restore."""
    error: Failure | None = None
    epoch: int | None = None
    """Epochs finished by the time the trainer ended; None where nobody has told."""
    handovers: tuple[HandoverRecord, ...] = ()
    """The newest attempts this pod took part in, oldest first."""
    attempt: AttemptRecord | None = None
    """The newest attempt this pod took part in, as far as its trainer did and read something of it."""
    live: bool | None = None
    """Whether this script can change membership in place, as its Session has told; None where it has not."""
    live_why: str = ""
    """Why it cannot."""
    rescue: Rescue | None = None
    """What the trainer's own run began with, if that was in no commit."""
    begun: tuple[Beginning, ...] = ()
    """Where the newest runs have begun that this pod's trainers have opened, oldest first."""
    fell_back: Fallback | None = None
    """The newest of them that could not use the newest commit."""
    unsaved: Unsaved | None = None
    """Checkpoints that had failed when the trainer ended; None where the last was made."""
    result: Mapping[str, Any] | None = None
    """What the script has given as its result, by rank 0; beside an error there is no room for it."""

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
    if outcome.error:
        body["error"] = {"kind": outcome.error.kind.value, "name": outcome.error.name[:_NAME_CHARACTERS], "tail": ""}
        body["error"]["tail"] = fitting(outcome.error.tail, OUTCOME_BYTES - len(_compact(body)))
    return _compact(body)


def _what_runs_began_with(outcome: Outcome, room: int) -> dict[str, Any]:
    """Beside the largest result the newest of it."""
    body: dict[str, Any] = {}
    begun = [asdict(one) for one in outcome.begun[-BEGINNINGS_KEPT:]]
    while begun and len(_compact({"begun": begun})) > room:
        begun = begun[1:]
    if begun:
        body["begun"] = begun
    if fell := outcome.fell_back:
        told = {"fellBack": asdict(replace(fell, why=""))}
        left = min(FALLBACK_BYTES, room - len(_compact(body | told)))
        if left > 0:
            told["fellBack"]["why"] = fitting(fell.why, left)
            body |= told
    return body


def _those_that_fit(records: Sequence[HandoverRecord], room: int) -> list[dict[str, Any]]:
    """The newest ones, oldest first."""
    written = [write_record(record) for record in records[-HANDOVERS_KEPT:]]
    while written and len(_compact({"handovers": written})) > room:
        written = written[1:]
    return written


def _compact(body: Mapping[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))


def read_outcome(text: str) -> Outcome:
    """The outcome in a termination message; raises ContractError or UnsupportedVersion.

    A container writes it: any bytes may be in it.
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
        fell_back=_shown(Fallback, doc.get("fellBack")),
        unsaved=_shown(Unsaved, doc.get("unsaved")),
        result=read_result(doc.get("result")),
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


def _epoch(value: Any) -> int | None:
    """Only shown: an absurd one is ignored."""
    return value if type(value) is int and 0 <= value <= LARGEST else None


def _shown(kind: type[T], value: Any) -> T | None:
    """Only counted or told: an absurd one is ignored."""
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
        kind = ErrorKind.EXIT  # a newer agent's kind: still a failure of its own
    return Failure(kind, string(value, "name", ""), string(value, "tail", ""))
