"""Refuses a log that is older than the newest known commit.

The operator knows the newest commit that members reported. If the log has less, objects were deleted, and training
would silently begin again at an earlier step, or at the first. Called by the writer before it opens a run: nothing is
appended, nothing retired. No torch, because the writer's module has none either.
"""

from __future__ import annotations

from perdure.errors import LogLost
from perdure.log.entry import Committed, Entry
from perdure.log.reader import Head, Log
from perdure.wire import CommitRef


def refuse_older(log: Log, head: Head, own: Entry | None, floor: CommitRef | None) -> None:
    """LogLost if the log has no commit as new as `floor`. `own` is the newest entry of this job."""
    if floor is None:
        return
    newest = head.entry.newest_commit if head.entry else None
    if own and (newest or 0) >= floor.seq:
        return
    words, found = _found(log, head, own, newest)
    raise LogLost(
        f"{log.store.uri} has lost commits: commit {floor.seq} of step {floor.step} was made, and now "
        f"{words}: restore what was deleted there (log/ and data/), or set "
        f"checkpoint.resumeAnyway to go on from what is left",
        found=found,
    )


def _found(log: Log, head: Head, own: Entry | None, newest: int | None) -> tuple[str, tuple[int, int] | None]:
    """What the log has, in words, and its newest commit by number and step."""
    if head.entry is None:
        return "there is no log", None
    if own is None:
        return f"the log has entries of uid {head.entry.uid} only, none of this job", None
    if newest is None:
        return f"the log ends at entry {head.seq} without a commit", None
    slot = log.slot(newest)
    match slot.entry.event if slot and slot.entry else None:
        case Committed(step=step):
            return f"the newest commit is {newest}, of step {step}", (newest, step)
    return f"the newest commit is {newest}, which cannot be read", None
