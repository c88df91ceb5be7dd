"""Commits the image that a rank of a lost run has left, if no run can continue from it because its pod leaves.

An image is in the memory of its pod. A member that stays gives it to its next trainer, but a leaver's image would be
lost, and maybe it is the only one of that step. So the leaver's agent commits it first, as the last entry of the lost
run. The log decides whether that is still allowed: only after an entry of that run, and only if nothing has ended or
taken over that run. The store's conditional PUT ensures it. docs/decisions/037 says why the agent does it, and not the
trainer.

The newest run may be another lost one at the same place: it had taken the older one over, or had begun from this image,
and has written nothing since. Then the commit is that run's last entry.

If the model is sharded, a pod commits nothing unless its ranks have left images of all parts.

This is a separate process, because the agent knows no store: `python -m perdure.checkpoint.rescue RUN ABORTED
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

from perdure.checkpoint.image_file import Image, read_images
from perdure.checkpoint.upload import Staged, put_manifest, put_part, without_tensors
from perdure.console import Trouble, say
from perdure.errors import Corrupt, Fenced, PerdureError, StorageError, StorageRefused
from perdure.log.entry import Committed, Entry, ImageRef, Opened
from perdure.log.images import Begun, CommitStamp, ImageOffer, choose, holders_of, whole_steps
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
    log, offers = Log(store), [image.offer(number) for number, image in enumerate(images)]
    newest = max(whole_steps(offers), default=None)
    if newest is None:
        raise Superfluous("this pod has no image of some parts of the model")
    while True:
        head = log.head() or Head(0, "", None)
        own = log.last_of(uid, head.entry)
        if known := _committed(own, {run, successor}, newest):
            return known  # by another rank of it, or by an earlier call whose answer was lost
        ends = successor if has_begun_there(own, successor, ImageRef(run, newest)) else run
        _check(uid, ends, head, own)
        holders = _chosen(offers, uid, run, next(Commits(log, own.newest_commit if own else None).stamps, None))
        image = images[holders[0]]
        writer = Writer(log, uid=uid, run=ends)
        writer.stand_in(head, own)
        writer.never_opens(aborted)
        label, folder = image.label, f"data/{ends}/{image.label.stamp.step}-{os.urandom(8).hex()}/"
        parts = _parts([images[holder] for holder in holders], images)
        indexes = [put_part(store, folder, part, ends, label.position) for part in parts]
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
        raise Superfluous(f"run {run} has ended with its own entry")


def _chosen(offers: Sequence[ImageOffer], uid: str, run: int, committed: CommitStamp | None) -> list[int]:
    """The numbers of the images to commit, one for each part. Superfluous if there are none."""
    choice = choose(offers, uid=uid, line=[Begun(run)], committed=committed)
    if choice.image is None:
        raise Superfluous(choice.why)
    return holders_of(choice.image, offers)


def _parts(chosen: Sequence[Image], images: Sequence[Image]) -> Iterator[Staged]:
    """What each rank of the lost run would have written, with the tensors of the chosen images, and what the first of
    them knows of the other ranks."""
    label, objects = chosen[0].label, chosen[0].objects
    of_rank = {one.label.stamp.rank: one.state for one in images if one.label.stamp.place == label.stamp.place}
    with_tensors, world = {one.label.stamp.rank: one for one in chosen}, label.stamp.world
    for rank in range(world):
        lost = label.ranks[rank] if label.ranks else label.of_lost
        state, others = of_rank.get(rank, lost), objects if rank == 0 else None
        if found := with_tensors.get(rank):
            yield Staged(rank, world, found.size, found.items, state, others, found.blocks)
        else:
            yield without_tensors(rank, world, state, others)


def _read(paths: Sequence[str]) -> Iterator[Image]:
    for path in paths:
        try:
            yield from read_images(Path(path))
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
