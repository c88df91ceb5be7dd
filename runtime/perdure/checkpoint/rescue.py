"""Commits the image that a rank of a lost run has left, if no run can continue from it because its pod leaves.

An image is in the memory of its pod. A member that stays gives it to its next trainer, but a leaver's image would be
lost, and maybe it is the only one of that step. So the leaver's agent commits it first, as the last entry of the lost
run. The log decides whether that is still allowed: only after an entry of that run, and only if nothing has ended or
taken over that run. The store's conditional PUT ensures it. docs/decisions/037 says why the agent does it, and not the
trainer.

The newest run may be another lost one at the same place: it had taken the older one over, or had begun from this image,
and has written nothing since. Then the commit is that run's last entry.

This is a process of its own, because the agent knows no store: `python -m perdure.checkpoint.rescue RUN ABORTED
SUCCESSOR FILE...` prints one line of JSON, `{"seq", "step"}` of the commit or `{"why"}` there is none. No torch: an
image is bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from perdure.checkpoint.image_file import Image
from perdure.checkpoint.upload import Staged, put_manifest, put_part, without_tensors
from perdure.console import Trouble, say
from perdure.errors import Corrupt, Fenced, PerdureError, StorageError, StorageRefused
from perdure.log.entry import Committed, Entry, ImageRef, Opened
from perdure.log.images import Begun, CommitStamp, ImageOffer, choose, holder_of
from perdure.log.reader import Commits, Head, Log
from perdure.log.writer import Writer
from perdure.store import Store, open_store
from perdure.wire import CommitRef
from perdure.wire.settings import read_settings

REASON: Final = "a member that leaves has left it"
AGAIN_SECONDS: Final = 1.0


class Superfluous(Exception):
    """No image has to be committed; the message says why."""


def rescue(
    store: Store, uid: str, run: int, images: Sequence[Image], *, aborted: int = 0, successor: int = 0
) -> CommitRef:
    """Makes the newest of these images the last commit of `run`, whose ranks have left them, unless it is committed.

    No run up to `aborted` opens after it. If `successor` has begun there and is lost too, the commit is that run's.
    Superfluous if the log or the images do not allow it. After a StorageError the same call may be made again.
    """
    log = Log(store)
    while True:
        head = log.head() or Head(0, "", None)
        own = log.last_of(uid, head.entry)
        newest = max(image.label.stamp.step for image in images)
        if known := _committed(own, {run, successor}, newest):
            return known  # by another rank of it, or by an earlier call whose answer was lost
        ends = successor if has_begun_there(own, successor, ImageRef(run, newest)) else run
        _check(uid, ends, head, own)
        image = _chosen(images, uid, run, next(Commits(log, own.newest_commit if own else None).stamps, None))
        writer = Writer(log, uid=uid, run=ends)
        writer.stand_in(head, own)
        writer.never_opens(aborted)
        label, folder = image.label, f"data/{ends}/{image.label.stamp.step}-{os.urandom(8).hex()}/"
        indexes = [put_part(store, folder, part, ends, label.position) for part in _parts(image, images)]
        manifest = put_manifest(store, folder, indexes, ends, label.position)
        with suppress(Fenced):  # another process has written meanwhile: look again what is allowed
            return writer.commit(label.position, manifest, final=True, reason=REASON)


def _committed(own: Entry | None, runs: Collection[int], step: int) -> CommitRef | None:
    """The last commit of one of these runs, if it is of this step or later."""
    match own:
        case Entry(seq, run=found, event=Committed(step=made, final=True)) if found in runs and made >= step:
            return CommitRef(seq, made)
    return None


def has_begun_there(own: Entry | None, successor: int, place: ImageRef) -> bool:
    """Whether the newest entry opens `successor` at the image's place, so that nothing later is known."""
    match own:
        case Entry(run=found, event=Opened(takes_over=run, step=step, image=image)) if found == successor:
            return place in (image, ImageRef(run, step) if run and step is not None else None)
    return False


def _check(uid: str, run: int, head: Head, own: Entry | None) -> None:
    """Superfluous if the log has no place for a last entry of this run."""
    if own is None or (head.entry and head.entry.uid != uid):
        raise Superfluous("the log is another job's, or there is none")
    if own.run != run:
        raise Superfluous(f"run {own.run} has begun")
    if own.ends_run:
        raise Superfluous(f"run {run} has ended with an entry of its own")


def _chosen(images: Sequence[Image], uid: str, run: int, committed: CommitStamp | None) -> Image:
    """The image to commit. Superfluous if there is none."""
    offers = [ImageOffer(number, image.label.stamp, image.label.crc) for number, image in enumerate(images)]
    choice = choose(offers, uid=uid, line=[Begun(run)], committed=committed)
    if choice.image is None:
        raise Superfluous(choice.why)
    return images[holder_of(choice.image, offers)]


def _parts(image: Image, images: Sequence[Image]) -> Iterator[Staged]:
    """What each rank of the lost run would have written, with the tensors of this image and its knowledge of the
    others."""
    stamp = image.label.stamp
    of_rank = {one.label.stamp.rank: one.state for one in images if _same_place(one, image)}
    for rank in range(stamp.world):
        lost = image.label.ranks[rank] if image.label.ranks else image.label.of_lost
        state, objects = of_rank.get(rank, lost), image.objects if rank == 0 else None
        if rank == stamp.rank:
            yield Staged(rank, stamp.world, image.size, image.items, state, objects, image.blocks)
        else:
            yield without_tensors(rank, stamp.world, state, objects)


def _same_place(one: Image, other: Image) -> bool:
    return (one.label.stamp.run, one.label.stamp.step) == (other.label.stamp.run, other.label.stamp.step)


def _read(paths: Sequence[str]) -> Iterator[Image]:
    for path in paths:
        try:
            yield Image(Path(path))
        except (Corrupt, OSError) as error:
            say(f"an image is left out: {error}")


def main(run: int, aborted: int, successor: int, paths: Sequence[str]) -> dict[str, object]:
    """The line to print. Tries again without an end: the agent limits the time."""
    trouble = Trouble()
    settings = read_settings(os.environ)
    store, images = open_store(settings.root, os.environ), list(_read(paths))
    if not images:
        return {"why": "no image is whole"}
    while True:
        try:
            return asdict(rescue(store, settings.uid, run, images, aborted=aborted, successor=successor))
        except Superfluous as why:
            return {"why": str(why)}
        except StorageRefused:
            raise
        except StorageError as error:
            trouble.say(f"the image of run {run} cannot be committed, trying again: {error}")
            time.sleep(AGAIN_SECONDS)


if __name__ == "__main__":
    try:
        ended, never, begun = map(int, sys.argv[1:4])
        print(json.dumps(main(ended, never, begun, sys.argv[4:])))
    except PerdureError as error:
        print(json.dumps({"why": str(error)}))
