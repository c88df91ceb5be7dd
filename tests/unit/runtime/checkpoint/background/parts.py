"""Parts to save in the background, and what a test waits for."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from perdure.checkpoint.background.arena import Arena, Filled
from perdure.checkpoint.background.uploading import ArenaRead, Uploader, UploaderMessage, UploadMoves
from perdure.checkpoint.manifest import Item
from perdure.checkpoint.upload import Staged
from perdure.log.position import Position

FOLDER = "data/1/7-00000000000000aa/"
SHARD, INDEX = f"{FOLDER}shard-00000-of-00001.safetensors", f"{FOLDER}index-00000.json"
POSITION = Position(7, 0, {"train": {"kind": "global", "consumed": 448}})
SECONDS = 300
"""More than anything takes here: an uploader has low priority, and on a busy machine it imports for more than 30 s."""


def part(data: bytes = b"0123456789", state: object = None) -> Staged:
    """A part with these bytes, in one tensor."""
    item = Item("shared", "w", "uint8", (len(data),), "cpu", 0, len(data))
    return Staged(
        0, 1, len(data), (item,), {"rng": [1, 2]} if state is None else state, {"step": 7}, lambda: pieces(data)
    )


def pieces(data: bytes, size: int = 3_000_000) -> Iterable[memoryview]:
    """In pieces that are no blocks."""
    return (memoryview(data)[at : at + size] for at in range(0, len(data), size))


def filled(arena: Arena, data: bytes = b"0123456789", *, name: str = "aa", threads: int = 1, whole: str = "") -> Filled:
    """The arena, sealed over these bytes."""
    return arena.fill(part(data), uid="u", run=1, name=name, position=POSITION, threads=threads, whole=whole)


def settled(uploader: Uploader) -> list[UploaderMessage]:
    """What it says until a save is durable or has failed."""
    said: list[UploaderMessage] = []
    while not said or isinstance(said[-1], ArenaRead | UploadMoves):
        news = uploader.words()
        if not news:
            process = uploader._process
            assert process is not None, "nobody is there to say anything"
            assert select.select([process.words], [], [], SECONDS)[0], "nothing is said"
        said += news
    return said


def ended(pid: int) -> None:
    """Waits for the end of a process that may not be a child here."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], SECONDS)[0], f"process {pid} does not end"
    finally:
        os.close(fd)


def stopped(pid: int) -> None:
    """Waits until each thread of a child has stopped."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def zombies() -> set[int]:
    """Unreaped children of this process."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == os.getpid():
                found.add(int(folder.name))
    return found


def open_files(pid: int | str = "self") -> Sequence[str]:
    """What a process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own, and what the collector closes meanwhile
            found.append(str(link.readlink()))
    return sorted(found)
