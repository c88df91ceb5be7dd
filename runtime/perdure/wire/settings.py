"""A Session's settings, read once from the environment.

In Kubernetes the operator and the agent set all variables. Under torchrun there are torch's own variables. On a laptop
there are none, and the defaults make `python train.py` its own run. No torch here, and no side effects. Called by
`Session.from_env`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.errors import UserError
from perdure.wire import CommitRef, Env, Handover, ResumeFrom, read_commit, read_handover, read_resume_from

LOCAL_UID: Final = "local"
"""The log's uid outside Kubernetes."""
DEFAULT_ROOT: Final = "checkpoints"
DEFAULT_KEEP: Final = 3
DEFAULT_EVERY_SECONDS: Final = 300
"""The default interval of checkpoints."""
DEFAULT_GRACE_SECONDS: Final = 30
"""The default time from SIGTERM to SIGKILL, as in Kubernetes."""
TORCHRUN_GRACE_SECONDS: Final = 25
"""torchrun sends SIGKILL 30 s after SIGTERM; this leaves time to log why nothing could be saved."""
RESOLVER: Final = ("RES_OPTIONS", "timeout:1 attempts:4")
"""For processes that make torch's stores: a lost DNS query is repeated after 1 s instead of 5, within the same total
time (resolv.conf(5)). A user's own value stays. See docs/decisions/036.
"""
_PREFIX: Final = "PERDURE_"
DEFAULT_RENDEZVOUS_SECONDS: Final = 300
DEFAULT_CHECK_SECONDS: Final = 0.05
DEFAULT_BACKGROUND_BYTES: Final = 32 * 2**20
"""A smaller state is written in less time than a copy and another process would take."""

_NEARLY_A_URI: Final = re.compile(
    r"(?P<scheme>s3[an]?|gc?s|az|abfss?|wasbs?|hdfs|https?|ftp|file)(:|//)", re.IGNORECASE
)

N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Member:
    """A process's pod and node."""

    name: str
    """The pod's name; outside Kubernetes the machine's."""
    node: str = ""
    """The pod's node; "" if unknown."""


NO_MEMBER: Final = Member("")


@dataclass(frozen=True)
class Cadence:
    """Intervals of periodic checkpoints; several may be given."""

    steps: int | None = None
    seconds: float | None = None
    epochs: int | None = None


@dataclass(frozen=True)
class Settings:
    """One process's place in one run, and the run's root."""

    root: str
    """s3://bucket/prefix or file:///folder."""
    uid: str = LOCAL_UID
    run: int | None = None
    """The run's number; None for the highest in the log plus one."""
    lost: tuple[int, ...] = ()
    floor: CommitRef | None = None
    """The newest commit known to be in the log."""
    resume_from: ResumeFrom | None = None
    """The commit to begin from once, instead of the root's newest."""
    wait: float = 0.0
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    pod: int = 1
    """How many ranks this process's pod has."""
    master: tuple[str, int] | None = None
    """The address of rank 0's store; None in a world of one."""
    master_is_elsewhere: bool = False
    """Whether torchrun's agent hosts the store."""
    attempt: int = 0
    """The number of torchrun's restart; restarts share one store."""
    joined: int = 0
    """The number of this session in a process group that existed before it; 0 if the session makes the group."""
    keep: int = DEFAULT_KEEP
    keep_every: int | None = None
    """Also keep the first commit of every so many steps; None: keep none."""
    cadence: Cadence = Cadence(seconds=DEFAULT_EVERY_SECONDS)
    grace: float = DEFAULT_GRACE_SECONDS
    rendezvous: float = DEFAULT_RENDEZVOUS_SECONDS
    check_seconds: float = DEFAULT_CHECK_SECONDS
    """Approximate interval at which the ranks agree whether to stop; 0 for every step."""
    background_bytes: int = DEFAULT_BACKGROUND_BYTES
    """Training does not wait for the upload of periodic checkpoints if the state has this many bytes."""
    hang_seconds: float | None = None
    """How long this process may make no progress, in any phase; 0: forever; None: as perdure.wire.phase_limits says."""
    progress_timeout: float | None = None
    """The same while it trains, as the job says."""
    live: bool | None = None
    """Whether ranks may change live; None: yes, but on GPUs, where no test has run."""
    trace: bool = False
    report_fd: int | None = None
    request_file: Path | None = None
    offer_file: Path | None = None
    """The file in which the agent offers a live hand-over."""
    image_file: Path | None = None
    """The agent's file for an image of this process's state after a lost peer."""
    mirror: int | None = None
    """Mirror sharded parts after every so many steps; None: never."""
    mirror_files: tuple[Path, ...] = ()
    """The agent's files for this process's snapshots, and for another pod's: two each."""
    held_images: tuple[Path, ...] = ()
    """The images that an earlier process left."""
    handover: Handover | None = None
    """The attempt in which this process joins a living run."""
    takes_over: int = 0
    """The living run beside which this one's ranks connect; 0 if they meet in place."""
    global_batch_size: int | None = None
    """The global batch that the job's sizes were chosen for."""
    started: float | None = None
    """time.monotonic() at which the agent started this process."""
    exit_at_step: int | None = None
    """In a user's test: the step at which this process is asked to leave, as by a drain."""
    preview: Path | None = None
    """The folder for a description; the process then ends before its first batch."""
    member: Member = NO_MEMBER


def read_settings(
    environ: Mapping[str, str], root: str | Path | None = None, resume_from: Mapping[str, Any] | None = None
) -> Settings:
    """The settings in an environment. PERDURE_ROOT and PERDURE_FROM override `root` and `resume_from`.

    Raises UserError with the bad variable.
    """
    rank = _number(environ, "RANK", 0)
    world = _number(environ, "WORLD_SIZE", 1, least=1)
    if rank >= world:
        raise UserError(f"RANK is {rank} and WORLD_SIZE is {world}: ranks count from 0 to WORLD_SIZE - 1")
    own = environ.get(Env.ROOT) or as_uri(root or DEFAULT_ROOT)
    by_torchrun = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    grace = TORCHRUN_GRACE_SECONDS if by_torchrun else DEFAULT_GRACE_SECONDS
    return Settings(
        root=own,
        uid=environ.get(Env.UID) or LOCAL_UID,
        run=_optional(environ, Env.RUN, 1),
        lost=_lost(environ),
        floor=_floor(environ),
        resume_from=_resume_from(environ, resume_from, own),
        wait=_number(environ, Env.WAIT, 0.0),
        rank=rank,
        world=world,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        pod=_number(environ, "LOCAL_WORLD_SIZE", 1, least=1),
        master=_master(environ) if world > 1 else None,
        master_is_elsewhere=by_torchrun,
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        keep=_number(environ, Env.KEEP, DEFAULT_KEEP, least=1),
        keep_every=_optional(environ, Env.KEEP_EVERY_STEPS, 1),
        cadence=_cadence(environ),
        grace=_number(environ, Env.GRACE_SECONDS, float(grace)),
        rendezvous=_number(environ, Env.RENDEZVOUS_SECONDS, float(DEFAULT_RENDEZVOUS_SECONDS)),
        check_seconds=_number(environ, Env.CHECK_SECONDS, DEFAULT_CHECK_SECONDS),
        background_bytes=_number(environ, Env.BACKGROUND_BYTES, DEFAULT_BACKGROUND_BYTES),
        hang_seconds=_number(environ, Env.HANG_SECONDS, 0.0) if environ.get(Env.HANG_SECONDS) else None,
        progress_timeout=_number(environ, Env.PROGRESS_TIMEOUT_SECONDS, 0.0) or None,
        live=_live(environ),
        trace=environ.get(Env.TRACE) == "1",
        report_fd=_optional(environ, Env.REPORT_FD, 0),
        request_file=_path(environ, Env.REQUEST_FILE),
        offer_file=_path(environ, Env.HANDOVER_FILE),
        image_file=_path(environ, Env.IMAGE),
        mirror=_optional(environ, Env.MIRROR_EVERY_STEPS, 1),
        mirror_files=_paths(environ, Env.MIRROR_FILES),
        held_images=_paths(environ, Env.HELD_IMAGE),
        handover=_handover(environ),
        global_batch_size=_optional(environ, Env.GLOBAL_BATCH_SIZE, 1),
        started=_started(environ),
        exit_at_step=_optional(environ, Env.EXIT_AT_STEP, 1),
        preview=_path(environ, Env.PREVIEW),
        member=_member(environ),
    )


def unknown(environ: Mapping[str, str]) -> list[str]:
    """Warnings about unknown variables PERDURE_*: a typo would otherwise silently disable a setting."""
    known = {value.removeprefix(_PREFIX) for name, value in vars(Env).items() if name.isupper()}
    warnings = []
    for name in sorted(name.removeprefix(_PREFIX) for name in environ if name.startswith(_PREFIX)):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f": {_PREFIX}{near[0]} is meant?" if near else ""
            warnings.append(f"{_PREFIX}{name} is set, which Perdure does not know{meant}")
    return warnings


def _member(environ: Mapping[str, str]) -> Member:
    """The pod and its node. Outside Kubernetes the machine is both; an older operator sets only the pod."""
    name, node = environ.get(Env.MEMBER), environ.get(Env.NODE) or ""
    return Member(name, node) if name else Member(socket.gethostname(), node or socket.gethostname())


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _paths(environ: Mapping[str, str], name: str) -> tuple[Path, ...]:
    return tuple(map(Path, filter(None, environ.get(name, "").split(os.pathsep))))


def as_uri(root: str | Path) -> str:
    """A root, given as a folder or a URI, as a URI. Raises UserError for a malformed URI.

    `s3:/bucket/prefix` is also a valid folder name, and the training would keep its checkpoints on this machine.
    """
    text = str(root)
    meant = None if "://" in text else _NEARLY_A_URI.match(text)
    if meant:
        raise UserError(
            f"checkpoint root {text!r} looks like a URI and is none: write {meant['scheme'].lower()}://..., "
            f"or ./{text} for a folder of that name"
        )
    return text if "://" in text else Path(text).expanduser().absolute().as_uri()


def _master(environ: Mapping[str, str]) -> tuple[str, int]:
    host = environ.get("MASTER_ADDR")
    if not host:
        raise UserError("WORLD_SIZE is above 1 and MASTER_ADDR is not set: start the ranks with torchrun or Perdure")
    return host, _number(environ, "MASTER_PORT", 0, least=1)


def _cadence(environ: Mapping[str, str]) -> Cadence:
    steps = _optional(environ, Env.EVERY_STEPS, 1)
    seconds = _optional(environ, Env.EVERY_SECONDS, 1)
    epochs = _optional(environ, Env.EVERY_EPOCHS, 1)
    if steps is None and seconds is None and epochs is None:
        return Cadence(seconds=DEFAULT_EVERY_SECONDS)
    return Cadence(steps, seconds, epochs)


def _lost(environ: Mapping[str, str]) -> tuple[int, ...]:
    text = environ.get(Env.LOST) or "[]"
    try:
        return tuple(int(run) for run in json.loads(text))
    except (ValueError, TypeError):
        raise UserError(f"{Env.LOST} is {text!r}: give a JSON list of runs, such as [3]") from None


def _floor(environ: Mapping[str, str]) -> CommitRef | None:
    try:
        return read_commit(json.loads(environ.get(Env.FLOOR) or "null"))
    except ValueError:
        raise UserError(f"{Env.FLOOR} is {environ[Env.FLOOR]!r}: give a JSON object with seq and step") from None


def _resume_from(environ: Mapping[str, str], given: Mapping[str, Any] | None, own: str) -> ResumeFrom | None:
    text = environ.get(Env.FROM)
    found = _object(Env.FROM, text, '{"epoch": 3} or {"uri": "s3://bucket/other"}') if text else given
    if found is None:
        return None
    wish = read_resume_from(found)
    other = as_uri(wish.uri) if wish.uri else own
    if other == own and not wish.wanted.given:
        raise UserError(f"resume_from: {other} is this training's own root: name a commit of it, by epoch say")
    return replace(wish, uri=None if other == own else other)


def _object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{name} is {text!r}: give a JSON object such as {example}")
    return found


def _live(environ: Mapping[str, str]) -> bool | None:
    text = environ.get(Env.LIVE) or ""
    if text not in {"", "yes", "no"}:
        raise UserError(f"{Env.LIVE} is {text!r}: give yes or no, or leave it out")
    return text == "yes" if text else None


def _handover(environ: Mapping[str, str]) -> Handover | None:
    text = environ.get(Env.HANDOVER)
    try:
        block = read_handover(json.loads(text)) if text else None
    except ValueError:
        block = None
    if text and block is None:
        raise UserError(f"{Env.HANDOVER} is {text!r}: give an assignment's `handover` as a JSON object")
    return block


def _started(environ: Mapping[str, str]) -> float | None:
    """When the agent started this process; None for a time in the future, which is of another machine or boot."""
    started = _number(environ, Env.STARTED, 0.0)
    return started if 0 < started <= time.monotonic() else None


def _optional(environ: Mapping[str, str], name: str, least: int) -> int | None:
    return _number(environ, name, 0, least=least) if environ.get(name) else None


def _number(environ: Mapping[str, str], name: str, default: N, least: int = 0) -> N:
    text = environ.get(name)
    try:
        value = type(default)(text) if text else default
    except ValueError:
        value = None
    if value is None or not value >= least:
        kind = "an integer" if isinstance(default, int) else "a number"
        raise UserError(f"{name} is {text!r}: give {kind} of {least} or more")
    return value
