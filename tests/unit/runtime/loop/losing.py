"""A small world of ranks that train a sharded model and lose one: every order of what can happen, as far as one step
and the next.

Replicas are rows, shards columns: rank `row * shards + column`. In a step a rank gives its part to the reduce-scatter
of its row, then to the all-reduce of its column, which gives it its final gradient. It comes to the meeting, steps,
counts the step and asks for the next batch. A rank that dies or stands still may have told any of the others that it
comes; so may one whose message to a dead rank fails. A step may have several backward passes, each with an optimizer
behind it.

Rank 0 is the one that is harmed: no other place of a mesh differs from its. The step of a second one may break,
wherever that rank is: its script raises an error, or hangs, or takes too long once its agent has asked. What the others
do between the meeting and their next batch concerns nobody else, so it is one move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from itertools import chain, combinations

from perdure.log.images import Begun, ImageChoice, ImageOffer, Stamp, choose
from perdure.loop.last_step import LastStep, StepAction, StepEvent, StepPhase, StepReaction, react

UID = "job"
RUN = 1
VICTIM = 0

React = Callable[[LastStep, StepEvent], StepReaction]
Choose = Callable[..., ImageChoice]


class Stage(IntEnum):
    """What a rank has done of its step."""

    BATCH = 0
    GAVE = 1
    """Its part is on its way to its row."""
    SCATTERED = 2
    """It has the sum of its row, and gives it to its column."""
    REDUCED = 3
    """It has its final gradient."""
    CAME = 4
    STEPPED = 5
    """Its optimizer may have changed something."""
    COUNTED = 6


class Life(IntEnum):
    """Whether its process runs."""

    UP = 0
    FROZEN = 1
    DEAD = 2
    HANGS = 3
    """Its main thread stands still, and the others do not."""


BREAKS = " its step breaks"
FATE = {"the victim thaws": Life.UP, "the victim is killed": Life.DEAD}
"""What becomes of a rank that stands still. Nobody can wait for it."""


@dataclass(frozen=True)
class Rank:
    """One rank."""

    machine: LastStep
    step: int = 0
    """The steps that it has counted."""
    number: int = 0
    """Which backward pass of its step it is in."""
    stage: Stage = Stage.BATCH
    told: frozenset[int] = frozenset()
    """The ranks that know that it comes to the meeting before this pass's optimizer."""
    life: Life = Life.UP
    images: frozenset[tuple[int, bool]] = frozenset()
    """The step of each image that it has left, and whether that is what it holds."""
    left: bool = False
    """Whether it has said that no other image will follow."""
    failed: bool = False
    """Whether its own step has ended it, not the loss of another rank."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(tuple(vars(self).values())))

    def __hash__(self) -> int:
        return int(vars(self)["_hash"])

    @property
    def done(self) -> tuple[int, int, Stage]:
        """How far it has come."""
        return self.step, self.number, self.stage

    @property
    def stands(self) -> bool:
        """Whether its step has changed nothing so far."""
        return not self.number and self.stage < Stage.STEPPED

    @property
    def finished(self) -> int:
        """The steps that it has counted, without one that it knows to have finished alone."""
        counted = not self.number and self.stage is not Stage.STEPPED
        return self.step - (self.machine.alone and counted)


_KNOWN: dict[Rank, Rank] = {}
"""Each rank that was met, once: worlds are then compared by identity."""


@dataclass(frozen=True)
class World:
    """All ranks, and whether the fault has happened."""

    ranks: tuple[Rank, ...]
    harmed: bool = False


@dataclass(frozen=True)
class Setting:
    """A mesh, what may go wrong in it, and rules that may be other ones than the product's."""

    replicas: int
    shards: int
    fault: str
    """kill, freeze, doubt, or raise."""
    steps: int = 1
    meets: bool = True
    react: React = react
    choose: Choose = choose
    among: str = "world"
    """Who meets: the world, a row or a column."""
    breaks: int | None = None
    """The rank whose step may break, too."""
    passes: int = 1
    """The backward passes of a step, each with an optimizer behind it."""
    machine: LastStep | None = None
    when: Callable[[Rank], bool] = bool
    """Whether something may go wrong where the victim is."""

    @property
    def size(self) -> int:
        return self.replicas * self.shards

    def row(self, rank: int) -> list[int]:
        first = rank - rank % self.shards
        return list(range(first, first + self.shards))

    def column(self, rank: int) -> list[int]:
        return list(range(rank % self.shards, self.size, self.shards))

    def party(self, rank: int) -> list[int]:
        """Whom it meets."""
        return {"row": self.row, "column": self.column}.get(self.among, lambda _: list(range(self.size)))(rank)

    @property
    def lost(self) -> list[int]:
        """Whose images the next run does not have."""
        return [VICTIM] if self.fault in ("kill", "freeze") else []

    @property
    def survivors(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.lost]

    def first(self) -> World:
        return World((Rank(self.machine or LastStep(self.meets)),) * self.size)


@dataclass(frozen=True)
class Found:
    """What a walk has found: how many worlds, the steps that were lost in the worst, and the shortest way there."""

    worlds: int
    lost: int
    way: tuple[str, ...]
    stuck: tuple[str, ...]
    """The way to a world in which a survivor waits for ever."""
    apart: tuple[str, ...]
    """The way to a world in which the next run begins with shards of two steps."""
    ends: int
    """In how many worlds a next run may begin."""

    @property
    def good(self) -> bool:
        """Whether no step is lost, nobody waits for ever, and nothing is mixed."""
        return not (self.lost or self.stuck or self.apart) and bool(self.ends)


def explore(setting: Setting, *, first_only: bool = False) -> Found:
    """Walks through every world of this setting, breadth first; with `first_only` up to the first that is not good."""
    first = setting.first()
    came: dict[World, tuple[World, str] | None] = {first: None}
    left = deque([first])
    lost, ends = 0, 0
    way: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    while left:
        world = left.popleft()
        following = list(moves(setting, world))
        if _over(setting, world):
            ends += 1
            worse, mixed = _judged(setting, world)
            if worse > lost:
                lost, way = worse, _way(came, world)
            apart = apart or (_way(came, world) if mixed else ())
        elif world.harmed and not any(after != world for label, after in following if _comes_in_time(label)):
            stuck = stuck or _way(came, world)
        if first_only and (lost or stuck or apart):
            break
        for label, after in following:
            if after not in came:
                came[after] = world, label
                left.append(after)
    return Found(len(came), lost, way, stuck, apart, ends)


def _comes_in_time(label: str) -> bool:
    return label not in FATE and not label.endswith(BREAKS)


def _way(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    way: list[str] = []
    while before := came[world]:
        world, label = before
        way.append(label)
    return tuple(reversed(way))


def _over(setting: Setting, world: World) -> bool:
    """Whether all survivors have left what they leave. The victim may go on, or stand still, or be dead."""
    return world.harmed and all(world.ranks[rank].left for rank in setting.survivors)


def chosen(setting: Setting, world: World, without: Collection[int]) -> ImageChoice:
    """What the next run begins from, without the images of these ranks."""
    return setting.choose(_offers(setting, world, without), uid=UID, line=[Begun(RUN)], committed=None)


def _offers(setting: Setting, world: World, without: Collection[int]) -> list[ImageOffer]:
    return [
        ImageOffer(
            number,
            Stamp(UID, RUN, step, number, setting.size),
            str(step),
            part=number % setting.shards,
            parts=setting.shards,
        )
        for number, one in enumerate(world.ranks)
        if number not in without
        for step, _ in one.images
    ]


TO_THE_COMMIT = 99
"""The next run begins at the newest commit."""


def _judged(setting: Setting, world: World) -> tuple[int, bool]:
    """How many finished steps the next run does without, and whether it would begin with shards of two steps, also if
    another rank's images are lost.

    A step is finished once all ranks have counted it; where they meet, once one has: all the others can. Nothing counts
    as lost if no survivor holds some shard any more, but for one whose own step has broken.
    """
    front = (max if setting.meets else min)(one.finished for one in world.ranks)
    choices = [(without, chosen(setting, world, without)) for without in _losses(setting)]
    mixed = any(choice.image and not _whole(setting, world, choice.image.step, without) for without, choice in choices)
    image = choices[0][1].image
    holders = {rank % setting.shards for rank in setting.survivors if not world.ranks[rank].failed}
    if len(holders) < setting.shards:
        return 0, mixed
    return (max(0, front - image.step) if image else TO_THE_COMMIT), mixed


def _losses(setting: Setting) -> list[set[int]]:
    """Whose images the next run may not have: the victim's, and, at a second loss, another one's."""
    return [set(setting.lost), *({*setting.lost, rank} for rank in setting.survivors)]


def _whole(setting: Setting, world: World, step: int, without: set[int]) -> bool:
    """Whether each shard of this step is in an image."""
    left = [(number, one) for number, one in enumerate(world.ranks) if number not in without]
    return len({number % setting.shards for number, one in left if (step, True) in one.images}) == setting.shards


def moves(setting: Setting, world: World) -> Iterator[tuple[str, World]]:
    """Each thing that can happen next, and the world behind it."""
    for number, one in enumerate(world.ranks):
        if one.life is Life.FROZEN:
            for label, life in FATE.items():
                yield label, _with(world, number, replace(one, life=life))
        if one.life in (Life.UP, Life.HANGS) and one.machine.phase is not StepPhase.ENDED:
            yield from _asks(setting, world, number, one)
        if one.life is Life.UP:
            yield from _works(setting, world, number, one)
            if number == VICTIM and not world.harmed and setting.when(one):
                yield from _faults(setting, world, one)


def _works(setting: Setting, world: World, number: int, one: Rank) -> Iterator[tuple[str, World]]:
    ended = one.machine.phase is StepPhase.ENDED
    here = one.step, one.number
    if one.stage is Stage.BATCH and one.step < setting.steps and _all(world, setting.row(number), (*here, 0)):
        yield f"{number} does its backward pass", _with(world, number, replace(one, stage=Stage.GAVE))
    if one.stage is Stage.GAVE and _all(world, setting.row(number), (*here, Stage.GAVE)):
        yield f"{number} has the sum of its row", _with(world, number, replace(one, stage=Stage.SCATTERED))
    if one.stage is Stage.SCATTERED and _all(world, setting.column(number), (*here, Stage.SCATTERED)):
        yield f"{number} has its final gradient", _with(world, number, replace(one, stage=Stage.REDUCED))
    if one.stage is Stage.REDUCED:
        yield from _comes(setting, world, number, one)
    if one.stage is Stage.CAME:
        yield from _meets(setting, world, number, one)
    if one.stage in (Stage.STEPPED, Stage.COUNTED):
        yield f"{number} is behind its step", _with(world, number, _behind(setting, one))
    gone = any(map(_is_gone, world.ranks))
    if gone and not ended and one.stage in (Stage.BATCH, Stage.GAVE, Stage.SCATTERED):
        yield f"{number} fails", _after(setting, world, number, one, StepEvent.FAILED)


def _asks(setting: Setting, world: World, number: int, one: Rank) -> Iterator[tuple[str, World]]:
    if world.harmed:
        yield f"{number} is asked for an image", _after(setting, world, number, one, StepEvent.ASKED)
    if one.machine.asked:
        late = replace(one, failed=one.failed or one.stage >= Stage.STEPPED)  # else it waits for others
        yield f"{number} is late", _after(setting, world, number, late, StepEvent.LATE)
    if number == setting.breaks and one.life is Life.UP:
        yield f"{number} raises:{BREAKS}", _raises(setting, world, number, one)
        yield f"{number} hangs:{BREAKS}", _with(world, number, replace(one, failed=True, life=Life.HANGS))


def _comes(setting: Setting, world: World, number: int, one: Rank) -> Iterator[tuple[str, World]]:
    came = _acted(setting, one, StepEvent.WILL_STEP)
    if came.machine.phase is StepPhase.MEETS:
        others = frozenset(setting.party(number)) - {number}
        yield f"{number} comes to the meeting", _with(world, number, replace(came, stage=Stage.CAME, told=others))
        for told in _subsets(others - one.told) if any(map(_is_gone, world.ranks)) else ():
            failing = replace(came, stage=Stage.CAME, told=one.told | told)
            yield f"{number} tells {set(told)} and fails", _after(setting, world, number, failing, StepEvent.SILENCE)
    elif came != one:
        yield f"{number} steps", _after(setting, world, number, one, StepEvent.WILL_STEP)


def _meets(setting: Setting, world: World, number: int, one: Rank) -> Iterator[tuple[str, World]]:
    others = [other for other in setting.party(number) if other != number]
    if all(_has_come(world.ranks[other], one, number) for other in others):
        yield f"{number} passes the meeting", _after(setting, world, number, one, StepEvent.MET)
    if any(_is_gone(world.ranks[other]) for other in others):
        yield f"{number} loses the meeting", _after(setting, world, number, one, StepEvent.SILENCE)


def _faults(setting: Setting, world: World, one: Rank) -> Iterator[tuple[str, World]]:
    harmed = replace(world, harmed=True)
    if setting.fault == "doubt":
        if one.stage is Stage.CAME:
            yield f"{VICTIM} is cut off", _after(setting, harmed, VICTIM, one, StepEvent.SILENCE)
        return
    if setting.fault == "raise":
        yield f"{VICTIM} raises:{BREAKS}", _raises(setting, harmed, VICTIM, one)
        return
    life = Life.DEAD if setting.fault == "kill" else Life.FROZEN
    yield f"{VICTIM}: {setting.fault}", _with(harmed, VICTIM, replace(one, life=life))
    if one.stage is Stage.REDUCED and setting.meets:
        for told in _subsets(frozenset(setting.party(VICTIM)) - {VICTIM}):
            words = f"{VICTIM}: {setting.fault} when it has told {set(told)}"
            yield words, _with(harmed, VICTIM, replace(one, life=life, told=told))


def _raises(setting: Setting, world: World, number: int, one: Rank) -> World:
    """An error ends its process behind what it leaves."""
    return _after(setting, world, number, replace(one, failed=True, life=Life.DEAD), StepEvent.FAILED)


def _has_come(other: Rank, one: Rank, number: int) -> bool:
    here, there = (one.step, one.number), (other.step, other.number)
    return there > here or (there == here and number in other.told)


def _is_gone(one: Rank) -> bool:
    """Whether its connections close."""
    return one.life is Life.DEAD or one.machine.phase is StepPhase.ENDED


def _all(world: World, ranks: list[int], done: tuple[int, int, int]) -> bool:
    return all(world.ranks[rank].done >= done for rank in ranks)


def _with(world: World, number: int, one: Rank) -> World:
    one = _KNOWN.setdefault(one, one)
    return World((*world.ranks[:number], one, *world.ranks[number + 1 :]), world.harmed)


@cache
def _subsets(ranks: frozenset[int]) -> list[frozenset[int]]:
    members = sorted(ranks)
    return [frozenset(some) for some in chain.from_iterable(combinations(members, n) for n in range(len(members) + 1))]


def _after(setting: Setting, world: World, number: int, one: Rank, event: StepEvent) -> World:
    """The world behind an event of this rank."""
    one = _acted(setting, one, event)
    while number not in (VICTIM, setting.breaks) and one.stage in (Stage.STEPPED, Stage.COUNTED):
        one = _behind(setting, one)
    return _with(world, number, one)


def _behind(setting: Setting, one: Rank) -> Rank:
    """It begins its next backward pass, counts its step, or asks for its next batch."""
    if one.stage is Stage.STEPPED and one.number + 1 < setting.passes:
        return replace(one, stage=Stage.BATCH, number=one.number + 1, told=frozenset())
    if one.stage is Stage.STEPPED:
        return replace(one, stage=Stage.COUNTED, step=one.step + 1, number=0, told=frozenset())
    return _acted(setting, replace(one, stage=Stage.BATCH), StepEvent.STOOD)


def _acted(setting: Setting, one: Rank, event: StepEvent) -> Rank:
    """The rank behind an event, and behind what it then does at once."""
    machine, actions = setting.react(one.machine, event)
    one = replace(one, machine=machine)
    for action in actions:
        if action in (StepAction.KEEP, StepAction.LEAVE):
            one = replace(one, images=one.images | {(one.step, one.stands)})
        elif action is StepAction.PROCEED:
            one = replace(one, stage=Stage.STEPPED)
    return replace(one, left=True) if {StepAction.LEAVE, StepAction.TELL} & set(actions) else one
