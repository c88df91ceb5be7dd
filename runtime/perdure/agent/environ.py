"""The environment of a trainer process: torch's own variables and Perdure's, from an assignment. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from perdure.wire import Env, Train, write_handover
from perdure.wire.settings import RESOLVER

OF_A_RUN: Final = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        Env.RUN,
        Env.LOST,
        Env.WAIT,
        Env.FLOOR,
        Env.HANDOVER,
        Env.IMAGE,
        Env.MIRROR_FILES,
        Env.HELD_IMAGE,
    }
)
"""Variables that depend on the run, unknown before it."""


@dataclass(frozen=True)
class ProcessIdentity:
    """What a process needs to know in addition to its run."""

    local_rank: int
    processes: int
    """Processes that the agent starts in this pod."""
    report_fd: int
    request_file: Path
    handover_file: Path
    started: float
    cpus: int | None
    """Whole CPUs that this pod may use; None without a limit."""
    image: Path | None = None
    """The file for its image."""
    mirror_files: Sequence[Path] = ()
    """The files for its snapshots, and for another pod's."""
    held_images: Sequence[Path] = ()
    """The images that an earlier process left."""


def with_threads(base: Mapping[str, str], cpus: int | None, processes: int) -> dict[str, str]:
    """`base` with the number of threads that libraries read at import; a user's own value stays."""
    return {"OMP_NUM_THREADS": str(max(1, cpus // processes)), **base} if cpus else dict(base)


def process_environment(base: Mapping[str, str], train: Train, place: ProcessIdentity) -> dict[str, str]:
    """`base` with this process's variables; the user's own values for threads and the resolver stay."""
    address, _, port = train.master.rpartition(":")
    threads = with_threads(base, place.cpus, place.processes)
    environment = dict([RESOLVER]) | {name: value for name, value in threads.items() if name not in OF_A_RUN}
    if train.floor:
        environment[Env.FLOOR] = json.dumps(asdict(train.floor))
    if train.handover and train.rank in train.handover.joins:
        environment[Env.HANDOVER] = json.dumps(write_handover(train.handover))
    if place.image:
        environment[Env.IMAGE] = str(place.image)
    for name, files in ((Env.MIRROR_FILES, place.mirror_files), (Env.HELD_IMAGE, place.held_images)):
        if files:
            environment[name] = os.pathsep.join(map(str, files))
    return environment | {
        "RANK": str(train.rank + place.local_rank),
        "WORLD_SIZE": str(train.world),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.processes),
        "MASTER_ADDR": address.strip("[]"),
        "MASTER_PORT": port,
        Env.RUN: str(train.run),
        Env.LOST: json.dumps(train.lost),
        Env.WAIT: str(train.wait),
        Env.REPORT_FD: str(place.report_fd),
        Env.REQUEST_FILE: str(place.request_file),
        Env.HANDOVER_FILE: str(place.handover_file),
        Env.STARTED: repr(place.started),
    }
