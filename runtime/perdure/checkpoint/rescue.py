"""Commits the image that a rank of a lost run has left, where nobody goes on with it: its pod leaves.

An image lies in the memory of its pod. A member that stays shows it to its next trainer; of one that leaves it would
be gone, and maybe nobody else has stood so far. So its agent has it committed first, as the lost run's last word. The
log decides whether it still may: only behind an entry of that run, which nothing has ended and nobody has taken over,
and the store's conditional PUT keeps it so. docs/decisions/037 says why the agent does it, and not the trainer.

The newest run may be another one that stands at that very place and is lost too: it had taken the older one over, or
had begun from this image, and has written nothing since. Then the commit is that run's last word.

A process of its own, for the agent knows no store: `python -m perdure.checkpoint.rescue RUN ABORTED SUCCESSOR FILE...`
prints one line of JSON, `{"seq", "step"}` of the commit or `{"why"}` there is none. No torch: an image is bytes.
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
    """No image is to be committed; in words why not."""


def rescue(
    store: Store, uid: str, run: int, images: Sequence[Image], *, aborted: int = 0, successor: int = 0
) -> CommitRef:
    """Makes the newest of these images the last commit of `run`, whose ranks have left them, if it is in none.

    No run up to `aborted` opens behind it. If `successor` has begun there and is lost too, the commit is that run's.
    Superfluous where the log or the images do not allow it. StorageError: the same call may be made again.
    """
    log = Log(store)
    while True:
        head = log.head() or Head(0, "", None)
        own = log.last_of(uid, head.entry)
        newest = max(image.label.stamp.step for image in images)
        if known := _committed(own, {run, successor}, newest):
            return known  # by another rank of it, or by an earlier call whose answer was lost
        ends = successor if _has_begun_there(own, successor, ImageRef(run, newest)) else run
        _check(uid, ends, head, own)
        image = _chosen(images, uid, run, next(Commits(log, own.newest_commit if own else None).stamps, None))
        writer = Writer(log, uid=uid, run=ends)
        writer.stand_in(head, own)
        writer.never_opens(aborted)
        label, folder = image.label, f"data/{ends}/{image.label.stamp.step}-{os.urandom(8).hex()}/"
        indexes = [put_part(store, folder, part, ends, label.position) for part in _parts(image, images)]
        manifest = put_manifest(store, folder, indexes, ends, label.position)
        with suppress(Fenced):  # somebody has written meanwhile: it is asked anew what may be done
            return writer.commit(label.position, manifest, final=True, reason=REASON)


def _committed(own: Entry | None, runs: Collection[int], step: int) -> CommitRef | None:
    """The last word of one of these runs, if it holds this step."""
    match own:
        case Entry(seq, run=found, event=Committed(step=made, final=True)) if found in runs and made >= step:
            return CommitRef(seq, made)
    return None


def _has_begun_there(own: Entry | None, successor: int, place: ImageRef) -> bool:
    """Whether the newest entry opens this run right where the image is of: nothing is known of what came since."""
    match own:
        case Entry(run=found, event=Opened(takes_over=run, step=step, image=image)) if found == successor:
            return place in (image, ImageRef(run, step) if run and step is not None else None)
    return False


def _check(uid: str, run: int, head: Head, own: Entry | None) -> None:
    """Superfluous where the log has no place for a last word of this run."""
    if own is None or (head.entry and head.entry.uid != uid):
        raise Superfluous("the log is another job's, or there is none")
    if own.run != run:
        raise Superfluous(f"run {own.run} has begun")
    if own.ends_run:
        raise Superfluous(f"run {run} has ended with a last word of its own")


def _chosen(images: Sequence[Image], uid: str, run: int, committed: CommitStamp | None) -> Image:
    """The one that is to be committed. Superfluous if there is none."""
    offers = [ImageOffer(number, image.label.stamp, image.label.crc) for number, image in enumerate(images)]
    choice = choose(offers, uid=uid, line=[Begun(run)], committed=committed)
    if choice.image is None:
        raise Superfluous(choice.why)
    return images[holder_of(choice.image, offers)]


def _parts(image: Image, images: Sequence[Image]) -> Iterator[Staged]:
    """What each rank of the lost run would have written: the tensors are this image's, and what it knows of others."""
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
    """What is printed. Tries again for as long as it lives: the agent knows how long that may be."""
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
            trouble.say(f"what run {run} has left cannot be committed, trying again: {error}")
            time.sleep(AGAIN_SECONDS)


if __name__ == "__main__":
    try:
        ended, never, begun = map(int, sys.argv[1:4])
        print(json.dumps(main(ended, never, begun, sys.argv[4:])))
    except PerdureError as error:
        print(json.dumps({"why": str(error)}))
