"""Which image a run may begin from, rather than from the newest commit: the rule, and nothing else. Pure.

When a member is lost, the others stand at the last step that all have finished, and that may be in no commit. Each
leaves an image of it with its agent, where the next trainer of the same pod finds it. An image is not newer because
its step is higher: another run may have begun since from an older commit, and have passed that step by another way.
So an image counts only where it lies on the way to where the run that opened last stood.

Called by perdure.log.writer while it opens a run: what was chosen is recorded in its Opened entry, for the run
after it. That is also why a run that has recorded an image commits it before it trains, or ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perdure.log.entry import ImageRef


@dataclass(frozen=True)
class Stamp:
    """Whose training an image is of, and how far that had come."""

    uid: str
    run: int
    step: int
    rank: int
    """In that run."""
    world: int
    """Of that run."""


@dataclass(frozen=True)
class Offer:
    """The image that one rank of the next run has at hand."""

    holder: int
    """That rank."""
    stamp: Stamp
    crc: str
    """Of what is equal on all ranks of one run at one step."""


@dataclass(frozen=True)
class Begun:
    """A run that was opened, and from where it went on."""

    run: int
    took_over: int | None = None
    """The run that it has taken over while that was alive."""
    at: int = 0
    """... at this step."""
    image: ImageRef | None = None
    """The image that it has begun from."""


@dataclass(frozen=True)
class Choice:
    """What the next run begins from."""

    image: ImageRef | None = None
    """None: the newest commit."""
    why: str = ""
    """Why an image that was offered is not used, for people."""


def choose(offers: Sequence[Offer], *, uid: str, line: Sequence[Begun], committed: int) -> Choice:
    """The image for the run that follows `line`: the newest run, the ones it led on from, and maybe others.

    `committed` is the step of the newest commit, 0 without one.
    """
    good = [offer for offer in offers if admissible(offer.stamp, uid=uid, line=line, committed=committed)]
    if not good:
        return Choice(why=_why_none(offers, uid=uid, line=line, committed=committed))
    best = max((offer.stamp.run, offer.stamp.step) for offer in good)
    sums = {offer.crc for offer in good if (offer.stamp.run, offer.stamp.step) == best}
    if len(sums) > 1:
        return Choice(why=f"the ranks of run {best[0]} have come apart: their images of step {best[1]} differ")
    return Choice(ImageRef(*best))


def holder_of(image: ImageRef, offers: Sequence[Offer]) -> int:
    """Which rank commits it: the one that was the lowest, for what is not equal on all ranks is rank 0's."""
    found = [offer for offer in offers if (offer.stamp.run, offer.stamp.step) == (image.run, image.step)]
    return min(found, key=lambda offer: offer.stamp.rank).holder


def admissible(stamp: Stamp, *, uid: str, line: Sequence[Begun], committed: int) -> bool:
    """Whether the image lies above the newest commit, on the way to where the newest run of `line` stood."""
    if stamp.uid != uid or stamp.step <= committed:
        return False
    origin = _origin(stamp, line)
    return any(run == origin and (at is None or stamp.step <= at) for run, at in _way(line))


def _origin(stamp: Stamp, line: Sequence[Begun]) -> int:
    """The run that has trained the step: whoever has taken over right there, and done no step, holds the same."""
    took_over = {begun.run: begun.took_over for begun in line if begun.took_over and begun.at == stamp.step}
    run = stamp.run
    while found := took_over.get(run):
        run = found
    return run


def _way(line: Sequence[Begun]) -> Iterator[tuple[int, int | None]]:
    """The runs that led to where the newest one stood, each with the last step that is its own; None: whatever it is.

    A run that another has taken over has trained, so whatever image it began from is in a commit, as is what that lay
    on.
    """
    known = {begun.run: begun for begun in line}
    run, at = (line[0].run if line else 0), None
    while run:
        yield run, at
        begun = known.get(run)
        if begun and begun.took_over:
            run, at = begun.took_over, begun.at
        elif begun and begun.image:
            run, at = begun.image.run, begun.image.step
        else:
            return


def _why_none(offers: Sequence[Offer], *, uid: str, line: Sequence[Begun], committed: int) -> str:
    """Of the one that came nearest."""
    if not offers:
        return ""
    stamp = max((offer.stamp for offer in offers), key=lambda stamp: (stamp.uid == uid, stamp.run, stamp.step))
    what = f"the image of run {stamp.run}, step {stamp.step}"
    if stamp.uid != uid:
        return f"{what} is of another job"
    if stamp.step <= committed:
        return f"{what} is in a commit"
    if not line:
        return f"{what} is of a run that the log does not know"
    return f"{what} is not on the way to where run {line[0].run} stood"
