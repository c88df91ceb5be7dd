"""The messages between an agent and the trainer processes that it started, inside one pod.

Trainer to agent: JSON lines on an inherited pipe (its number in PERDURE_REPORT_FD), at most PIPE_BUF bytes each, so
that lines of several threads never mix.

Agent to trainer: files.

* The request file (path in PERDURE_REQUEST_FILE) asks the trainer to save and exit. It is renamed into place *before*
  SIGTERM is sent, so that a trainer that notices either one finds the other. It contains `"GracefulExit": 1`, the name
  that a MindSpore script with its own exit callback looks for.
* Another file (PERDURE_HANDOVER_FILE) offers a hand-over. It contains an assignment as in the annotation. No signal is
  sent: the trainer continues, and looks for it when its ranks agree anyway.
* A third file, beside the first, asks the trainer to save and continue, in the same way.
* A trainer that can neither continue nor save leaves an image, a file that the agent keeps (PERDURE_IMAGE) and gives to
  the next trainer (PERDURE_HELD_IMAGE). It begins with IMAGE_MAGIC once it is complete.

No torch here, because the agent's parent process imports this.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

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
from perdure.wire.account import RunAccount, read_accounts, write_accounts
from perdure.wire.codec import from_json
from perdure.wire.report import DeathCost, Standing, TrainerPhase, read_death_cost, read_values
from perdure.wire.scaling import ScalingHints, read_scaling, write_scaling
from perdure.wire.truncation import fitting

IMAGE_MAGIC: Final = b"perdure1"
"""The first bytes of an image, written last."""
SIGTERM: Final = "SIGTERM"
"""The cause of a request without a more precise one."""
WHY_BYTES: Final = 1000
"""Limit for a report's reason, as escaped by JSON."""
ENDING_SECONDS: Final = 5
"""How long a report that no later one repeats, such as an end or a hand-over, waits for room in the pipe."""


@dataclass(frozen=True)
class Request:
    """Save, commit and exit before `deadline`."""

    cause: str
    deadline: float
    """time.monotonic() of this machine: agent and trainer share the clock."""
    image: bool = False
    """The run can no longer save: leave an image, from a thread, and wait for the end."""


def write_request(path: Path, request: Request) -> None:
    """Writes the request for the trainer, whole or not at all."""
    body = {"GracefulExit": 1, "cause": request.cause, "deadline": request.deadline}
    write_whole(path, json.dumps({**body, "image": True} if request.image else body))


def read_request(path: Path) -> Request | None:
    """The request; None if there is no readable one. Never an error, whatever the file contains.

    A trainer that failed at the file, after it noticed a signal, would lose the requested save.
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
    """Writes an assignment with a hand-over for the trainer, whole or not at all. The newest counts."""
    write_whole(path, write_assignment(assignment))


def read_offer(path: Path) -> Train | Leave | None:
    """The offered assignment; None if there is no readable one. Never an error, whatever the file contains."""
    try:
        assignment = read_assignment(path.read_text())
    except (OSError, ValueError, ContractError):
        return None
    return assignment if not isinstance(assignment, Standby) and assignment.handover else None


def ask_for_save(path: Path, word: str) -> None:
    """Asks the trainer to save and continue, once for each different `word`. `path` is that of a request to leave."""
    write_whole(_save_file(path), word)


def read_save_request(path: Path) -> str:
    """The word of the newest request for a save; "" without one. Never an error."""
    try:
        return _save_file(path).read_text()
    except (OSError, ValueError):
        return ""


def _save_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.save")


def acknowledge_vote(path: Path, run: int) -> None:
    """Tells the trainer that the agent knows of its vote for `run`. `path` is that of the offer."""
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
    """Writes a file whole or not at all."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    Path(temporary).rename(path)


@dataclass(frozen=True)
class Attached:
    """This process has a Session. Sent before anything slow, so that the agent knows which process to ask for a save.

    `pid` is the Session's own process: SIGTERM goes there, past a shell between it and the agent.
    """

    pid: int
    live: bool = False
    """Whether it looks for offers of a hand-over. Otherwise it is asked to save."""
    live_why: str = ""
    """Why it does not."""
    images: bool = False
    """Whether it can be asked for an image."""


@dataclass(frozen=True)
class SessionOpened:
    """This process's Session has read in the log that its run is open."""

    run: int
    resumed: CommitRef | None = None
    rescued: int = 0
    """Steps that it has begun with from an image: those after the newest commit before the image."""
    rescued_of: int = 0
    """The run whose image it is."""
    step: int | None = None
    """The step at which it begins; None until it has restored."""
    behind: CommitRef | None = None
    """The newest commit, if it was unusable and an older one was used."""
    behind_why: str = ""
    """Why it was unusable."""


@dataclass(frozen=True)
class StepDone:
    """One more optimizer step is done."""

    step: int
    epoch: int | None = None
    """Finished epochs; None if not reported."""


@dataclass(frozen=True)
class CommitDone:
    """A commit of this run is in the log. If the process is killed, steps after it are lost."""

    commit: CommitRef
    goal: bool = False
    """Whether it is the last of the training. Then a process that ends with status 0 has done its work."""


@dataclass(frozen=True)
class SaveFailed:
    """A periodic checkpoint has failed. Training continues, or ends because of it."""

    failures: int
    """How many have failed in a row."""
    why: str


@dataclass(frozen=True)
class Resulted:
    """The script's present result; None if it has withdrawn it."""

    result: Mapping[str, Any] | None


@dataclass(frozen=True)
class Voting:
    """This process is about to vote for run `next` to take over `run`, once the agent has acknowledged this."""

    run: int
    next: int


@dataclass(frozen=True)
class TookOver:
    """This process is rank `rank` of run `run` from now on."""

    run: int
    rank: int
    world: int
    step: int
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part, as in HandoverRecord."""


@dataclass(frozen=True)
class HandoverEnded:
    """The attempt to take over as run `run` has failed in this process."""

    run: int
    word: HandoverWord
    """ABORT: the run trains on. RESTART: it saves and exits, and the newer run begins in place."""
    why: str = ""


@dataclass(frozen=True)
class Imaging:
    """This process begins to write an image of this many bytes."""

    size: int


@dataclass(frozen=True)
class Imaged:
    """This process has left an image of this step, or will leave none."""

    step: int | None
    why: str = ""
    """Why there is none."""
    of: int = 0
    """The run that the image is of: the process's own, or the one that it was to take over; 0: its own."""


@dataclass(frozen=True)
class Figures:
    """How training goes in this process, for people. Each one repeats all of it; None is unknown."""

    phase: TrainerPhase = TrainerPhase.TRAINING
    """Training, saving or evaluating."""
    samples_per_second: float | None = None
    """Samples per second of all ranks together, over the last seconds."""
    step_seconds: float | None = None
    """Seconds from one step to the next, over the last seconds."""
    save_stall_seconds: float | None = None
    """How long training stood still for the newest periodic save."""
    required_grace_seconds: float | None = None
    """An estimate of a save that begins now."""
    progress: float | None = None
    """The part of the present loop that is done, from 0 to 1, where its end is known."""
    remaining_seconds: float | None = None
    """An estimate of the seconds to that end."""
    death_cost: Annotated[DeathCost | None, read_death_cost] = None
    """What the death of any one member costs now."""
    death_steps: int | None = None
    """See Report."""
    own_share: float | None = None
    """The part of its time in which this process works itself, and does not wait for other ranks."""
    data_share: float | None = None
    """The part of its time in which it waits for a batch."""
    stands: bool = False
    """Whether its ranks stand for a live hand-over."""
    values: Annotated[Mapping[str, float], read_values] = field(default_factory=dict)
    """The newest values that its script has reported; see Report."""
    accounts: Annotated[tuple[RunAccount, ...], read_accounts] = ()
    """What it did with its time, by run."""
    batch: int | None = None
    """Samples in a step of all ranks together, where the script lets its session choose them."""
    scaling: Annotated[ScalingHints | None, read_scaling] = None
    """What such a script has measured; see Report."""


@dataclass(frozen=True)
class Hangs:
    """This process has made no progress for longer than its phase allows, or makes some again."""

    seconds: float | None
    """For how long it has made none; None: it makes progress again."""
    place: Standing | None = None
    """Where it stands."""
    ends: bool = False
    """Whether that is longer than the job allows, so that the agent ends it."""
    may_be_work: bool = False
    """Whether it may be at work all the same: see Report."""


@dataclass(frozen=True)
class Watched:
    """This process looks at itself, every few seconds."""

    allowed: float | None
    """For how long its job lets it make no progress now; None: for ever."""


@dataclass(frozen=True)
class Exiting:
    """How this process is about to end; the last line of its Session."""

    outcome: ExitKind
    step: int
    commit: CommitRef | None = None
    opened: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None
    epoch: int | None = None
    """Finished epochs; None if not reported."""
    attempt: AttemptRecord | None = None
    """What it did and read in its newest hand-over."""
    accounts: Annotated[tuple[RunAccount, ...], read_accounts] = ()
    """What it did with its time, by run."""


TrainerReport = (
    Attached
    | SessionOpened
    | StepDone
    | CommitDone
    | SaveFailed
    | Resulted
    | Voting
    | TookOver
    | HandoverEnded
    | Imaging
    | Imaged
    | Figures
    | Hangs
    | Watched
    | Exiting
)
_KINDS: Final[Mapping[str, type[TrainerReport]]] = {
    "attached": Attached,
    "opened": SessionOpened,
    "step": StepDone,
    "committed": CommitDone,
    "save-failed": SaveFailed,
    "result": Resulted,
    "voting": Voting,
    "took-over": TookOver,
    "handover-ended": HandoverEnded,
    "imaging": Imaging,
    "imaged": Imaged,
    "figures": Figures,
    "hangs": Hangs,
    "watched": Watched,
    "ending": Exiting,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_UNWOUND: Final = b'{"report": "unwound"}'
_MOST_GROUPS: Final = 100
"""The most sockets that one line names, because a line has a limit; the agent waits where there are more."""
_MATTER = Exiting | SaveFailed | Resulted | Voting | TookOver | HandoverEnded | Imaging | Imaged | Hangs
"""Reports that no later one repeats: they wait for room in the pipe."""


def write_report(fd: int, report: TrainerReport) -> None:
    """Sends one line. Ignores a broken pipe, and a full one if the next report repeats this one."""
    _send(fd, _line(report).encode(), ENDING_SECONDS if isinstance(report, _MATTER) else 0)


def write_step(fd: int, step: int, epoch: int) -> None:
    """Sends a StepDone, once for each step. The next one repeats it, so this never waits."""
    try:
        os.write(fd, _step_line(step, epoch).encode())
    except OSError:
        return


def write_unwound(fd: int, groups: Sequence[int] = ()) -> None:
    """Reports that only the interpreter's own end is left of this process: its exit handlers are done.

    `groups` are the sockets that its process groups still listen on, by inode: no other process needs them.
    """
    line = _UNWOUND[:-1] + f', "groups": {json.dumps([*groups[:_MOST_GROUPS]])}}}'.encode() if groups else _UNWOUND
    _send(fd, line + b"\n", 0)


def read_unwound(line: bytes) -> frozenset[int] | None:
    """The sockets that such a report names; None for any other line. Agents that do not know it ignore it."""
    if not line.startswith(_UNWOUND[:-1]):
        return None
    try:
        return frozenset(int(inode) for inode in json.loads(line).get("groups", ()))
    except (ValueError, TypeError):
        return None


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


def _line(report: TrainerReport) -> str:
    """The report's line. An error's tail loses its middle if the line would exceed PIPE_BUF."""
    if type(report) is StepDone:  # the only one in each step, with numbers alone
        return _step_line(report.step, report.epoch)
    body: dict[str, Any] = {"report": _NAMES[type(report)], **asdict(report)}
    for name in body.keys() & {"why", "behind_why"}:
        body[name] = fitting(body[name], WHY_BYTES)
    if isinstance(report, Exiting | Figures):
        body["accounts"] = write_accounts(report.accounts, select.PIPE_BUF // 4)
    if isinstance(report, Figures):
        if report.batch is None:
            del body["batch"]
        del body["scaling"]
        if report.scaling and (hints := write_scaling(report.scaling)):
            body["scaling"] = hints
    if isinstance(report, Exiting):
        body["attempt"] = write_attempt(report.attempt) if report.attempt else None
    error = body.get("error")
    if error:
        tail, error["tail"], error["name"] = error["tail"], "", error["name"][:200]
        error["tail"] = fitting(tail, select.PIPE_BUF - len(json.dumps(body)) - 1)
    return json.dumps(body) + "\n"


def _step_line(step: int, epoch: int | None) -> str:
    return f'{{"report": "step", "step": {step}, "epoch": {"null" if epoch is None else epoch}}}\n'


def read_report(line: str | bytes) -> TrainerReport | None:
    """The report in a line; None for one that this version does not know."""
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
