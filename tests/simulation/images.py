"""The image that a process leaves in its pod when it can neither go on nor save, and the commit made of it when the pod
goes.

Modelled from the design (06 "After a peer's death", 10 D5 to D7): an image is of the last step that all ranks have
finished, and the same on each of them. The pod's next trainer offers it where the next run opens. An agent whose pod
goes appends it to the log as the lost run's last entry, unless another process has appended since; or as that of a lost
run that began right there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import perdure.log.writer as writing
from perdure.agent.state import Rescued
from perdure.checkpoint import manifest
from perdure.checkpoint.rescue import has_begun_there
from perdure.errors import Fenced, PerdureError, StorageError, StorageRefused
from perdure.log import objects
from perdure.log.entry import Committed, ImageRef, checksum
from perdure.log.images import Begun, ImageOffer, Stamp, choose
from perdure.log.reader import Commits, Head, Log
from perdure.log.writer import Writer
from perdure.wire import CommitRef
from tests.simulation.gang import Track
from tests.simulation.interface import MemberHost
from tests.simulation.parts import position_of, put_part, repeatable
from tests.simulation.store import Access, Call, Tape

AGAIN_SECONDS: Final = 1.0
"""Until a store that did not answer is asked again."""
LEAVING_SECONDS: Final = (0.05, 0.5)
"""The time that a thread takes to leave one."""
REASON: Final = "of a member that leaves"


@dataclass(frozen=True)
class Image:
    """Where a rank of a lost run stood."""

    uid: str
    run: int
    rank: int
    world: int
    track: Track
    """As it was then: never changed."""

    @property
    def step(self) -> int:
        return self.track.step

    def offered_by(self, holder: int) -> ImageOffer:
        """To the run that opens next, of which the holder is a rank."""
        same = checksum(f"{self.run} {self.step} {self.track.epoch} {self.track.consumed}".encode())
        return ImageOffer(holder, Stamp(self.uid, self.run, self.step, self.rank, self.world), same)


async def rescue(host: MemberHost, root: str, images: Collection[Image], aborted: int, successor: int) -> Rescued:
    """The newest of these as the last word of its run, which the log decides, or of `successor` that has begun there.

    No run up to `aborted` opens then.
    """
    access = Access(host.bucket, root, host.network, host.ip, host.rng)
    image = max(images, key=lambda one: one.step)
    while True:
        try:
            return await _append(host, access, image, aborted, successor)
        except StorageRefused as error:
            return Rescued(why=str(error))
        except StorageError:
            await asyncio.sleep(AGAIN_SECONDS)
        except Fenced:
            continue  # another process has appended meanwhile: look again
        except PerdureError as error:
            return Rescued(why=str(error))


async def _append(host: MemberHost, access: Access, image: Image, aborted: int, successor: int) -> Rescued:
    tape, run = Tape(access), image.run
    with repeatable(writing, tape, host):
        writer = Writer(Log(tape), uid=image.uid, run=run)

    def look() -> Rescued | None:
        """Why not, or that another process did it; otherwise the writer stands at the end of the log."""
        head = writer.log.head() or Head(0, "", None)
        own = writer.log.last_of(image.uid, head.entry)
        writer.run = successor if has_begun_there(own, successor, ImageRef(run, image.step)) else run
        if own is None or head.entry is None or head.entry.uid != image.uid or own.run not in (writer.run, successor):
            return Rescued(why=f"run {run} is not the newest in the log")
        last = own.event
        if isinstance(last, Committed) and last.final and last.step >= image.step:
            return Rescued(CommitRef(own.seq, last.step))
        if own.ends_run or own.run != writer.run:
            return Rescued(why=f"run {own.run} has begun, or has ended in the log")
        newest = next(Commits(writer.log, own.newest_commit).stamps, None)
        choice = choose([image.offered_by(0)], uid=image.uid, line=[Begun(run)], committed=newest)
        if choice.image is None:
            return Rescued(why=choice.why)
        writer.stand_in(head, own)
        writer.never_opens(aborted)
        return None

    known: Rescued | None = await tape.run(look, writer)
    if known:
        host.tell("not-rescued" if known.commit is None else "rescued", run=run, uid=image.uid, why=known.why)
        return known
    run = writer.run
    folder = f"data/{run}/{image.step}-{host.rng.getrandbits(64):016x}/"
    position = position_of(image.track)
    await asyncio.sleep(host.behaviour.save_seconds * host.rng.uniform(0.4, 1.0))
    parts = [await put_part(access, folder, run, position, (rank, image.world)) for rank in range(image.world)]
    data = manifest.write_manifest(parts, run, position)
    await access.perform(Call("put", objects.manifest_key(folder), data))
    ref = manifest.refer_to(objects.manifest_key(folder), data)

    def commit() -> Any:
        with repeatable(writing, tape, host):
            return writer.commit(position, ref, final=True, reason=REASON)

    made: CommitRef = await tape.run(commit, writer)
    host.tell("committed", run=run, uid=image.uid, step=image.step, seq=made.seq, final=True)
    return Rescued(made)
