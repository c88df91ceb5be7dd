"""A small world of runs that lose members: everything that can happen to their images, in every order.

A rank's state is named by its history: which run has trained each step. So it is easy to see whether a run begins where
it should: on the way to where the run that opened last stood, and beyond the newest usable commit. No image is
discarded here, however old it is: the rule alone has to judge it. A run that opens does not yet know that the objects
of a commit are damaged; every run sees a damaged entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, combinations, product
from typing import NamedTuple

from perdure.log.entry import ImageRef
from perdure.log.images import Begun, CommitStamp, ImageChoice, ImageOffer, Stamp, choose, holders_of
from tests.support.worlds import uncollected

UID = "job"
SEATS = 2
STEPS = 2

History = tuple[int, ...]
"""Of each step the run that has trained it."""
Rule = Callable[..., ImageChoice]


class Image(NamedTuple):
    run: int
    history: History
    rank: int


class Damage(Enum):
    """The state of the newest commit."""

    NONE = "none"
    OBJECTS = "objects"
    ENTRY = "entry"


class Commit(NamedTuple):
    run: int
    history: History


class World(NamedTuple):
    """Between two events. A seat is a place for a pod, and a rank of any run.

    A tuple, because tens of thousands of worlds are hashed, compared and copied with changes many times.
    """

    line: tuple[Begun, ...] = (Begun(1),)
    """Opened runs, the newest first."""
    commits: tuple[Commit, ...] = ()
    """The newest, and the one to fall back on."""
    damage: Damage = Damage.NONE
    damages: int = 0
    """How often a commit may yet be damaged."""
    runs: int = 4
    """How many there are in the end."""
    living: tuple[History | None, ...] = ((),) * SEATS
    """What the trainer of each seat holds; None: there is none, or it cannot go on without the others."""
    images: tuple[Image | None, ...] = (None,) * SEATS
    front: History = ()
    """The furthest that a rank of the newest run has come."""
    owed: bool = False
    """The run has begun from an image, and has not committed it."""

    @property
    def run(self) -> int:
        return self.line[0].run

    @property
    def committed(self) -> History:
        """What can be restored."""
        whole = self.commits if self.damage is Damage.NONE else self.commits[1:]
        return whole[0].history if whole else ()

    @property
    def known(self) -> CommitStamp | None:
        """The newest commit, as an opening run finds it."""
        found = self.commits[1:] if self.damage is Damage.ENTRY else self.commits
        return CommitStamp(UID, found[0].run, len(found[0].history)) if found else None

    @property
    def saved(self) -> bool:
        """Whether nothing was trained since the newest commit, so no image of it is kept."""
        return not self.front or any(self.front == commit.history for commit in self.commits)

    def with_commit(self, history: History) -> World:
        """By the newest run."""
        whole = self.commits if self.damage is Damage.NONE else self.commits[1:]
        below = whole[:1] if self.damages else ()  # otherwise no run falls back any more
        return self._replace(commits=(Commit(self.run, history), *below), damage=Damage.NONE)

    @property
    def members(self) -> list[int]:
        """The members of the current run."""
        return [seat for seat, history in enumerate(self.living) if history is not None]

    @property
    def broken(self) -> bool:
        return not self.members

    def offers(self, members: tuple[int, ...]) -> list[ImageOffer]:
        return [
            ImageOffer(seat, Stamp(UID, image.run, len(image.history), image.rank, SEATS), str(image.history))
            for seat, image in enumerate(self.images)
            if image and seat in members
        ]


@dataclass(frozen=True)
class Beginning:
    """A run that begins, and the world before it."""

    before: World
    after: World
    members: tuple[int, ...]
    choice: ImageChoice

    @property
    def right(self) -> bool:
        """It holds the newest commit, follows the newest run, and loses no step that any member still has."""
        begun, before = self.after.front, self.before
        images = [before.images[seat] for seat in self.members]
        kept = {image.history for image in images if image}
        whole = begun == before.front or before.front not in kept or before.saved
        return begun[: len(before.committed)] == before.committed and before.front[: len(begun)] == begun and whole


FIRST = World()


def beginnings(rule: Rule = choose, first: World = FIRST) -> Iterator[Beginning]:
    """Each way in which a run begins after another, in every world that can be reached."""
    known, waiting = {first}, [first]
    with uncollected():
        while waiting:
            world = waiting.pop()
            following: list[World] = []
            if world.broken:
                for beginning in _next_runs(world, rule):
                    yield beginning
                    following.append(beginning.after)
                following.extend(_rescued(world, rule))
                following.extend(_damaged(world))
            else:
                following.extend(_lives_on(world))
            for after in following:
                if after not in known:
                    known.add(after)
                    waiting.append(after)


def _lives_on(world: World) -> Iterator[World]:
    if world.owed:
        yield world.with_commit(world.front)._replace(owed=False)
    else:
        if not world.saved:
            yield world.with_commit(world.front)
        if len(world.front) < STEPS:
            stepped = (*world.front, world.run)
            yield _some_ahead(world, tuple(range(SEATS)), stepped)
            for ahead in _subsets(world.members):
                if 0 < len(ahead) < len(world.members):  # of none and of all there is a world without a loss
                    yield from _losses(_some_ahead(world, ahead, stepped))
        if world.run < world.runs:
            yield from _voted(world)
            yield from _taken_over(world)
    yield from _losses(world)


def _some_ahead(world: World, ahead: tuple[int, ...], stepped: History) -> World:
    """The reduce of a step that was not done everywhere was done for some."""
    living = tuple(
        stepped if history is not None and seat in ahead else history for seat, history in enumerate(world.living)
    )
    return world._replace(living=living, front=stepped if ahead else world.front)


def _voted(world: World) -> Iterator[World]:
    """A newcomer that will take a member's place has its whole state, and never learns the result."""
    for seat in world.members:
        images = list(world.images)
        images[seat] = Image(world.run, world.front, seat)
        yield world._replace(images=tuple(images))


def _taken_over(world: World) -> Iterator[World]:
    """Another run takes over between two steps; one of its members may be new, and a lost one may not know."""
    begun = Begun(world.run + 1, world.run, len(world.front))
    after = world._replace(line=(begun, *world.line))
    for leaver in (None, *world.members):
        here = after if leaver is None else _fresh(after, (leaver,))
        here = here._replace(living=world.living)
        yield here
        yield from _losses(here, stamped=world.run)


def _losses(world: World, stamped: int | None = None) -> Iterator[World]:
    """Some seats lose their pods, with all that is in them; of the others some leave an image."""
    images: list[Sequence[Image | None]] = [[image] for image in world.images]
    for seat in world.members:
        left = [] if world.owed else [Image(stamped or world.run, world.living[seat] or (), seat)]
        images[seat] = list(dict.fromkeys([None, world.images[seat], *left]))
    for found in product(*images):
        yield world._replace(living=(None,) * SEATS, images=found)


def _rescued(world: World, rule: Rule) -> Iterator[World]:
    """A pod goes, and its image of the newest run becomes that run's last commit."""
    for seat, image in enumerate(world.images):
        offers = world.offers((seat,))
        if image and rule(offers, uid=UID, line=(Begun(world.run),), committed=world.known).image:
            yield world.with_commit(image.history)


def _damaged(world: World) -> Iterator[World]:
    """At any time: it is not seen before the next run begins."""
    if world.commits and world.damages:
        for damage in (Damage.OBJECTS, Damage.ENTRY):
            yield world._replace(damage=damage, damages=world.damages - 1)


def _next_runs(world: World, rule: Rule) -> Iterator[Beginning]:
    """The next run, with any members, any of them new: the others keep their images."""
    held = {seat for seat, image in enumerate(world.images) if image}
    seats = [(seats, new) for seats in _subsets(range(SEATS)) for new in _subsets(held.intersection(seats))]
    for members, replaced in seats if world.run < world.runs else ():
        if not members:
            continue
        before = _fresh(world, replaced)
        offers = before.offers(members)
        choice = rule(offers, uid=UID, line=before.line, committed=before.known)
        begun, image = before.committed, None
        if choice.image:
            image = before.images[holders_of(choice.image, offers)[0]]
        if image:
            begun = image.history
        line = (Begun(world.run + 1, image=choice.image), *before.line)
        living = tuple(begun if seat in members else None for seat in range(SEATS))
        after = before._replace(line=line, living=living, front=begun, owed=image is not None)
        yield Beginning(before, after, members, choice)


def _fresh(world: World, seats: tuple[int, ...]) -> World:
    images = tuple(None if seat in seats else image for seat, image in enumerate(world.images))
    return world._replace(images=images)


def _subsets(seats: Iterable[int]) -> Iterator[tuple[int, ...]]:
    found = list(seats)
    return chain.from_iterable(combinations(found, size) for size in range(len(found) + 1))


Committed = CommitStamp | None


def newest_step(offers: list[ImageOffer], *, uid: str, line: tuple[Begun, ...], committed: Committed) -> ImageChoice:
    """A wrong rule: the highest step wins."""
    best = max(((offer.stamp.step, offer.stamp.run) for offer in offers), default=(0, 0))
    return ImageChoice(ImageRef(best[1], best[0])) if best[0] > _step(committed) else ImageChoice()


def newest_run(offers: list[ImageOffer], *, uid: str, line: tuple[Begun, ...], committed: Committed) -> ImageChoice:
    """A wrong rule: any member of the newest run with an image wins."""
    best = max(((offer.stamp.run, offer.stamp.step) for offer in offers), default=(0, 0))
    return ImageChoice(ImageRef(*best)) if best[1] > _step(committed) else ImageChoice()


def also_in_commits(
    offers: list[ImageOffer], *, uid: str, line: tuple[Begun, ...], committed: Committed
) -> ImageChoice:
    """A wrong rule: it does not look at the newest commit."""
    return choose(offers, uid=uid, line=line, committed=None)


def by_steps_alone(offers: list[ImageOffer], *, uid: str, line: tuple[Begun, ...], committed: Committed) -> ImageChoice:
    """A wrong rule: it does not look at which run has made the newest commit."""
    beyond = [offer for offer in offers if offer.stamp.step > _step(committed)]
    return choose(beyond, uid=uid, line=line, committed=None)


def without_record(offers: list[ImageOffer], *, uid: str, line: tuple[Begun, ...], committed: Committed) -> ImageChoice:
    """A wrong rule: it does not read what a run has begun from."""
    bare = [replace(begun, image=None) for begun in line]
    return choose(offers, uid=uid, line=bare, committed=committed)


def last_run_alone(offers: list[ImageOffer], *, uid: str, line: tuple[Begun, ...], committed: Committed) -> ImageChoice:
    """A wrong rule: it does not read what a run has taken over."""
    return choose(offers, uid=uid, line=line[:1] and [replace(line[0], took_over=None)], committed=committed)


def _step(committed: Committed) -> int:
    return committed.step if committed else 0
