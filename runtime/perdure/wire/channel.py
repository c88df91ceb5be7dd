"""What an agent and the trainer processes it started say to each other, inside one pod.

Trainer to agent: JSON lines on an inherited pipe (its number in PERDURE_REPORT_FD), at most PIPE_BUF each, so that
lines of several threads never mix. Agent to trainer: one request file (path in PERDURE_REQUEST_FILE), renamed into
place *before* SIGTERM is sent, so that a trainer that was told by either finds the other. The file carries
`"GracefulExit": 1`, the name a MindSpore script with its own exit callback looks for. A hand-over is offered by another
file (PERDURE_HANDOVER_FILE), an assignment as it stands in the annotation, without a signal: the trainer trains on and
looks for it when its ranks agree anyway. So it does for a third file, beside the first, that asks it to save and train
on. What a trainer that can neither go on nor save leaves behind, its image, is a
file that the agent keeps (PERDURE_IMAGE) and shows to the next trainer (PERDURE_HELD_IMAGE); it begins with IMAGE_MAGIC
once it is whole.

No torch here: the agent's parent process imports this.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from perdure.wire import (
    AttemptRecord,
    CommitRef,
    ContractError,
    ExitKind,
    Failure,
    HandoverWord,
    Leave,
    Standby,
    Train,
    read_assignment,
    read_attempt,
    read_result,
    write_assignment,
    write_attempt,
)
from perdure.wire.codec import from_json
from perdure.wire.truncation import fitting

IMAGE_MAGIC: Final = b"perdure1"
"""The first bytes of an image, written last."""
SIGTERM: Final = "SIGTERM"
"""The cause of a request where nobody tells another."""
WHY_BYTES: Final = 1000
"""Of a report's reason, once JSON has escaped it."""
ENDING_SECONDS: Final = 5
"""How long what no later report tells again waits for room in the pipe: an ending, a hand-over."""


@dataclass(frozen=True)
class Request:
    """Save, commit and exit before `deadline`."""

    cause: str
    deadline: float
    """time.monotonic() of this machine: agent and trainer share the clock."""
    image: bool = False
    """Its run can no longer save: leave an image, by a thread, and wait for the end."""


def write_request(path: Path, request: Request) -> None:
    """Puts the request where a trainer looks for it, whole or not at all."""
    body = {"GracefulExit": 1, "cause": request.cause, "deadline": request.deadline}
    write_whole(path, json.dumps({**body, "image": True} if request.image else body))


def read_request(path: Path) -> Request | None:
    """The request, or None while there is none that can be read: never an error, whoever wrote the file.

    A trainer that was told by a signal and fell over its file would lose the save it was asked for.
    """
    try:
        body = json.loads(path.read_text())
        deadline = float(body["deadline"])
        cause = SIGTERM if body.get("cause") is None else str(body["cause"])
        image = body.get("image") is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return Request(cause, deadline, image) if math.isfinite(deadline) else None


def write_offer(path: Path, assignment: Train | Leave) -> None:
    """Puts an assignment with a hand-over where a trainer looks for it, whole or not at all; the newest counts."""
    write_whole(path, write_assignment(assignment))


def read_offer(path: Path) -> Train | Leave | None:
    """The assignment offered, or None while there is none that can be read: never an error, whoever wrote the file."""
    try:
        assignment = read_assignment(path.read_text())
    except (OSError, ValueError, ContractError):
        return None
    return assignment if not isinstance(assignment, Standby) and assignment.handover else None


def ask_for_save(path: Path, word: str) -> None:
    """Asks the trainer to save and train on, once for each other word; `path` is that of a request to leave."""
    write_whole(_save_file(path), word)


def read_save_request(path: Path) -> str:
    """The newest word by which a save was asked for, "" where there was none: never an error."""
    try:
        return _save_file(path).read_text()
    except (OSError, ValueError):
        return ""


def _save_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.save")


def acknowledge_vote(path: Path, run: int) -> None:
    """The agent knows that the trainer votes for `run`; `path` is that of the offer."""
    write_whole(_vote_file(path), str(run))


def vote_acknowledged(path: Path, run: int) -> bool:
    """Whether the agent knows that this trainer votes for `run`."""
    try:
        return _vote_file(path).read_text() == str(run)
    except (OSError, ValueError):
        return False


def _vote_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.voting")


def write_whole(path: Path, text: str) -> None:
    """Puts a file where somebody looks for it, whole or not at all."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    Path(temporary).rename(path)


@dataclass(frozen=True)
class Attached:
    """This process has a Session; sent before anything slow, so that the agent knows whom it can ask to save.

    `pid` is the Session's own process: SIGTERM goes there, past a shell that stands between it and the agent.
    """

    pid: int
    live: bool = False
    """It looks for offers of a hand-over. One that does not is asked to save instead."""
    live_why: str = ""
    """Why it does not."""
    images: bool = False
    """It can be asked for an image."""


@dataclass(frozen=True)
class Opened:
    """This process's Session has seen its run opened in the log."""

    run: int
    resumed: CommitRef | None = None
    rescued: int = 0
    """Steps beyond the newest commit behind it that it has begun with: those of an image."""
    rescued_of: int = 0
    """The run whose image it is."""
    step: int | None = None
    """The step at which it begins; None until it stands there."""
    behind: CommitRef | None = None
    """The newest commit, where it could not be used, and an older one was."""
    behind_why: str = ""
    """Why it could not."""


@dataclass(frozen=True)
class Stepped:
    """One more optimizer step is done."""

    step: int
    epoch: int | None = None
    """Epochs that are finished; None where it is not told."""


@dataclass(frozen=True)
class Committed:
    """A commit of this run is in the log: what is lost if the process is killed is counted from here."""

    commit: CommitRef
    goal: bool = False
    """It is the last of the training: a process that ends with status 0 after it has done its work."""


@dataclass(frozen=True)
class SaveFailed:
    """A periodic checkpoint could not be made, and training goes on, or ends of it."""

    failures: int
    """How many have failed in a row."""
    why: str


@dataclass(frozen=True)
class Resulted:
    """The script's result, as it is now; None where it has taken it back."""

    result: Mapping[str, Any] | None


@dataclass(frozen=True)
class Voting:
    """This process is about to vote for run `next` to take over `run`, once the agent has acknowledged this."""

    run: int
    next: int


@dataclass(frozen=True)
class TookOver:
    """This process is rank `rank` of run `run` from here on."""

    run: int
    rank: int
    world: int
    step: int
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part, as in HandoverRecord."""


@dataclass(frozen=True)
class HandoverEnded:
    """The attempt of run `run` did not take place in this process."""

    run: int
    word: HandoverWord
    """ABORT: it trains on. RESTART: it saves and exits, and the run begins in place."""
    why: str = ""


@dataclass(frozen=True)
class Imaging:
    """This process begins to write an image of so many bytes."""

    size: int


@dataclass(frozen=True)
class Imaged:
    """This process has left an image of this step, or will leave none."""

    step: int | None
    why: str = ""
    """Why there is none."""
    of: int = 0
    """The run whose ranks stood there: the process's own, or the one that it was to take over; 0: its own."""


@dataclass(frozen=True)
class Exiting:
    """How this process is about to end; of its Session the last line."""

    outcome: ExitKind
    step: int
    commit: CommitRef | None = None
    opened: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None
    epoch: int | None = None
    """Epochs that are finished; None where it is not told."""
    attempt: AttemptRecord | None = None
    """What it did and read of its newest hand-over."""


Report = (
    Attached
    | Opened
    | Stepped
    | Committed
    | SaveFailed
    | Resulted
    | Voting
    | TookOver
    | HandoverEnded
    | Imaging
    | Imaged
    | Exiting
)
_KINDS: Final[Mapping[str, type[Report]]] = {
    "attached": Attached,
    "opened": Opened,
    "step": Stepped,
    "committed": Committed,
    "save-failed": SaveFailed,
    "result": Resulted,
    "voting": Voting,
    "took-over": TookOver,
    "handover-ended": HandoverEnded,
    "imaging": Imaging,
    "imaged": Imaged,
    "ending": Exiting,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_UNWOUND: Final = b'{"report": "unwound"}'
_MATTER = Exiting | SaveFailed | Resulted | Voting | TookOver | HandoverEnded | Imaging | Imaged
"""Reports that nothing repeats: they wait for room."""


def write_report(fd: int, report: Report) -> None:
    """Sends one line. A broken pipe is ignored, and a full one where the next report tells the same."""
    _send(fd, _line(report).encode(), ENDING_SECONDS if isinstance(report, _MATTER) else 0)


def write_step(fd: int, step: int, epoch: int) -> None:
    """Sends what a Stepped is, of which there is one in each step. The next tells the same, so it waits for nobody."""
    try:
        os.write(fd, _step_line(step, epoch).encode())
    except OSError:
        return


def write_unwound(fd: int) -> None:
    """Tells that of this process nothing is left but the interpreter's own end: its exit handlers are done."""
    _send(fd, _UNWOUND + b"\n", 0)


def is_unwound(line: bytes) -> bool:
    """Whether the line tells so. Agents that do not know it ignore it."""
    return line == _UNWOUND


def _send(fd: int, line: bytes, seconds: float) -> None:
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while not _written(fd, line) and (left := end - time.monotonic()) > 0:
            room = select.poll()
            room.register(fd, select.POLLOUT)
            room.poll(left * 1000)


def _written(fd: int, line: bytes) -> bool:
    """Whether there was room for the line."""
    try:
        os.write(fd, line)
    except BlockingIOError:
        return False
    return True


def _line(report: Report) -> str:
    """The report's line; an error's tail loses its middle where the line would exceed PIPE_BUF."""
    if type(report) is Stepped:  # the only one of each step, and of numbers alone
        return _step_line(report.step, report.epoch)
    body: dict[str, Any] = {"report": _NAMES[type(report)], **asdict(report)}
    for name in body.keys() & {"why", "behind_why"}:
        body[name] = fitting(body[name], WHY_BYTES)
    if isinstance(report, Exiting):
        body["attempt"] = write_attempt(report.attempt) if report.attempt else None
    error = body.get("error")
    if error:
        tail, error["tail"], error["name"] = error["tail"], "", error["name"][:200]
        error["tail"] = fitting(tail, select.PIPE_BUF - len(json.dumps(body)) - 1)
    return json.dumps(body) + "\n"


def _step_line(step: int, epoch: int | None) -> str:
    return f'{{"report": "step", "step": {step}, "epoch": {"null" if epoch is None else epoch}}}\n'


def read_report(line: str | bytes) -> Report | None:
    """The report in a line, or None for one this version does not know."""
    try:
        body = json.loads(line)
        kind = _KINDS[body["report"]]
        if kind is Resulted:
            return Resulted(read_result(body.get("result")))
        if kind is Exiting:
            attempt = read_attempt(body.get("attempt"))
            return replace(from_json(Exiting, {**body, "attempt": None}), attempt=attempt)
        return from_json(kind, body)
    except (ContractError, ValueError, KeyError, TypeError, RecursionError):
        return None
