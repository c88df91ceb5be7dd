"""The image that a process leaves in its pod when it can neither go on nor save, and the commit made of it when the pod
goes.

Real: perdure.checkpoint.rescue, which decides whether the log has a place for that commit and makes it. Modelled from
the design (06 "After a peer's death", 10 D5 to D7): an image is of the last step that all ranks have finished, and the
same on each of them. The pod's next trainer offers it where the next run opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

import perdure.checkpoint.rescue as rescuing
import perdure.log.writer as writing
from perdure.agent.state import CommitImage, Rescued
from perdure.checkpoint import image_file
from perdure.errors import PerdureError, StorageError, StorageRefused
from perdure.log.entry import checksum, key_of
from perdure.log.images import ImageOffer, Stamp
from perdure.wire import CommitRef
from tests.simulation.gang import Track
from tests.simulation.interface import MemberHost
from tests.simulation.parts import in_steps, position_of, repeatable, shard_of
from tests.simulation.store import Access, Tape

LEAVING_SECONDS: Final = (0.05, 0.5)
"""The time that a thread takes to leave one."""


@dataclass(frozen=True)
class Image:
    """Where a rank of a lost run stood; the rescue sees a perdure.checkpoint.image_file.Image."""

    uid: str
    run: int
    rank: int
    world: int
    track: Track
    """As it was then: never changed."""
    items: tuple[()] = ()
    state: Any = None
    objects: Any = None

    @property
    def step(self) -> int:
        return self.track.step

    @cached_property
    def label(self) -> image_file.Label:
        stamp = Stamp(self.uid, self.run, self.step, self.rank, self.world)
        same = checksum(f"{self.run} {self.step} {self.track.epoch} {self.track.consumed}".encode())
        return image_file.Label(stamp, position_of(self.track), same, (), None)

    @property
    def size(self) -> int:
        return len(shard_of(self.run, self.step, self.rank))

    def offer(self, holder: int) -> ImageOffer:
        """To the run that opens next, of which the holder is a rank."""
        return ImageOffer(holder, self.label.stamp, self.label.crc)

    def blocks(self) -> Iterator[memoryview]:
        yield memoryview(shard_of(self.run, self.step, self.rank))


async def rescue(host: MemberHost, root: str, asked: CommitImage, images: Sequence[Image]) -> Rescued:
    """One of these as the last word of the run that is asked for, if the log has a place for it."""
    access = Access(host.bucket, root, host.network, host.ip, host.rng)
    tape, left, known = Tape(access), cast("Sequence[image_file.Image]", images), set(host.bucket.objects)
    uid, run = images[0].uid, asked.run

    def act() -> CommitRef:
        with repeatable(rescuing, tape, host), repeatable(writing, tape, host), in_steps(rescuing, tape):
            return rescuing.rescue(tape, uid, run, left, aborted=asked.aborted, successor=asked.successor)

    while True:
        try:
            commit: CommitRef = await tape.run(act)
        except StorageRefused as error:
            return Rescued(why=str(error))
        except StorageError:
            await asyncio.sleep(rescuing.AGAIN_SECONDS)
        except PerdureError as error:
            return Rescued(why=str(error))
        except rescuing.Superfluous as why:
            host.tell("not-rescued", run=run, uid=uid, why=str(why))
            return Rescued(why=str(why))
        else:
            break
    host.tell("rescued", run=run, uid=uid, why="")
    if f"{access.uri}/{key_of(commit.seq)}" not in known:
        host.tell("committed", run=run, uid=uid, step=commit.step, seq=commit.seq, final=True)
    return Rescued(commit)
