"""A small world in which every order of events is tried: the real machines, and as little as they need around them.

One world is a value: the ranks' states, their uploaders and arenas, what lies in the store, the log, the PUTs on their
way, and how much may still go wrong. `Setting.after` carries out what a machine asks for. What may happen next is in
.moves, what must hold is checked where it happens and in .laws, and .explore walks through all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

from perdure.checkpoint.background import events as on
from perdure.checkpoint.background.machine import SavesState, Step, begin, step
from perdure.checkpoint.background.state import Carried, name_of
from tests.support.worlds import replaced_quickly

T = TypeVar("T")

FAULTS: Final = (
    "copy", "change", "fail", "die", "freeze", "late", "stuck", "refuse", "lost", "stream", "death", "fence", "abort",
)  # fmt: skip
PLACE: Final = {fault: place for place, fault in enumerate(FAULTS)}

TORN: Final = -1
"""Bytes of two steps."""
EMPTY: Final = -2
ORDERED, HAS_READ, HAS_PUT = range(3)

Id = tuple[int, int]
"""A save: its run and its number. Streamed ones have negative numbers."""
Kind = Literal["opened", "committed", "closed"]


class Entry(NamedTuple):
    """One entry of the log."""

    kind: Kind
    run: int
    save: Id = (0, 0)
    step: int = 0
    final: bool = False


class Process(NamedTuple):
    """One uploader."""

    number: int
    order: Id
    phase: int = ORDERED
    bytes: int = EMPTY
    frozen: bool = False
    killed: bool = False
    stuck: bool = False
    reads: bool = True
    """Whether it may still read its arena."""

    @property
    def works(self) -> bool:
        """Whether it has still to do with its order."""
        return self.reads or self.phase != HAS_PUT


class Rank(NamedTuple):
    """One rank and its machine's other parties."""

    state: int
    """A number in the setting's table: worlds are compared and looked up all the time."""
    calls: int = 0
    place: str = "trains"
    sent: tuple[int, ...] | None = None
    """Its vector for the call that is not complete."""
    copies: Id | None = None
    arena: int = EMPTY
    processes: tuple[Process, ...] = ()
    pipe: tuple[on.Event, ...] = ()
    timer: Id | None = None
    told: tuple[tuple[Id, int], ...] = ()
    """The commits that its hooks were called with, and at which call."""
    wants: int = 0
    """The step of a firm save that is neither made nor reported as missed; 0: none."""
    owed: bool = False
    """Whether its last save has failed or was dropped, and none was begun since."""


class Expected(NamedTuple):
    """What the ranks can be expected to save when they have begun to leave."""

    without: int
    """The least step if nothing goes wrong from here on."""
    with_one: int
    """The least step with one fault."""
    faults: int
    """How many faults were left."""
    tried: bool
    """Whether a whole save was tried, or there was never time for it and for the one under way."""


class World(NamedTuple):
    """Everything there is."""

    ranks: tuple[Rank, ...]
    run: int
    base: int
    """The step at which the run began."""
    read: tuple[int, ...] | None
    """The newest complete vector."""
    due: on.Wish | Literal["open"] | None
    """The work due at the call that not all ranks have made; "open": no rank has come to it yet."""
    rounds: int
    log: tuple[Entry, ...]
    pen: int
    """Up to where the run's writer has read the log."""
    flights: frozenset[tuple[int, Entry]]
    """PUTs on their way whose writer no longer waits for them, and their numbers."""
    parts: frozenset[tuple[Id, int, int]]
    """What lies in the store: the save, the rank, the bytes."""
    deleted: frozenset[Id]
    abandoned: frozenset[Id]
    prepares: Id | None
    appends: tuple[Id, int, bool] | None
    under_way: Id | None
    """As an omniscient observer sees it: begun on some rank, not in the log, failed nowhere."""
    drops: int
    offer: bool
    left: int
    whole: int | None
    finished: bool
    """Whether the time for finishing the save under way is counted."""
    expected: Expected | None
    over: bool
    orphans: frozenset[tuple[int, Process]]
    """Uploaders whose rank has gone, with the rank."""
    wishes: int
    terms: int
    offers: int
    faults: tuple[int, ...]


replaced_quickly(Process, Rank, World)


class Broken(Exception):
    """A law does not hold any more."""


@dataclass(frozen=True)
class Setting:
    """One small world's beginning, and the rules that are taken out to see what they are good for."""

    faults: dict[str, int] = field(default_factory=dict)
    world: int = 2
    rounds: int = 5
    runs: int = 1
    wishes: tuple[on.Wish, ...] = (on.Wish.LATER,)
    """What may be due."""
    firm: int = 0
    """How many firm saves."""
    terms: int = 0
    """How many requests to leave."""
    hurries: bool = False
    """Whether anything waits for the ranks to leave."""
    offers: int = 0
    breaks: bool = False
    """Whether the script may end without a goal."""
    dropped: bool = False
    """Whether the run before has dropped a save."""
    roomless: frozenset[int] = frozenset()
    """Ranks that have no room for an arena."""
    react: Callable[[SavesState, on.Event], Step] = step
    without: str = ""
    """A rule of the world around the machines."""
    _states: list[SavesState] = field(default_factory=list)
    _numbers: dict[SavesState, int] = field(default_factory=dict)
    _steps: dict[tuple[int, on.Event], tuple[int, tuple[on.Action, ...]]] = field(default_factory=dict)
    own: dict[tuple[int, int, Rank, tuple[int, ...]], tuple[Any, ...]] = field(default_factory=dict)
    """See .moves."""

    def first(self) -> World:
        """The run has begun, and every rank that can has its arena."""
        before = Carried(dropped=self.dropped)
        ranks = tuple(self.newcomer(rank, begin(writer(1), rank, before)) for rank in range(self.world))
        return World(
            ranks=ranks, run=1, base=0, read=None, due="open", rounds=self.rounds, log=(Entry("opened", 1),), pen=1,
            flights=frozenset(), parts=frozenset(), deleted=frozenset(), abandoned=frozenset(), prepares=None,
            appends=None, under_way=None, drops=int(self.dropped), offer=False, left=0, whole=None,
            finished=False, expected=None, over=False, orphans=frozenset(), wishes=self.firm, terms=self.terms,
            offers=self.offers,
            faults=tuple(self.faults.get(fault, 0) for fault in FAULTS),
        )  # fmt: skip

    def newcomer(self, rank: int, state: SavesState) -> Rank:
        """A rank in a process of its own."""
        return Rank(self.reacts(self.number(state), on.Room(rank not in self.roomless))[0])

    def state(self, world: World, rank: int) -> SavesState:
        """What the machine holds."""
        return self._states[world.ranks[rank].state]

    def number(self, state: SavesState) -> int:
        """The state's number."""
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]

    def reacts(self, number: int, event: on.Event) -> tuple[int, tuple[on.Action, ...]]:
        """One step of a machine."""
        known = self._steps.get((number, event))
        if known is None:
            state, actions = self.react(self._states[number], event)
            known = self._steps[number, event] = self.number(state), actions
        return known

    def after(self, world: World, rank: int, event: on.Event) -> World:
        """The world when this rank has seen `event` and has begun its actions."""
        before = world.ranks[rank].state
        number, actions = self.reacts(before, event)
        if number != before:
            world = change(world, rank, state=number)
        for action in actions:
            world = self.done(world, rank, action)
        return world

    def all_after(self, world: World, event: on.Event) -> World:
        """The same of all ranks."""
        for rank in range(self.world):
            world = self.after(world, rank, event)
        return world

    def done(self, world: World, rank: int, action: on.Action) -> World:
        """The world when this rank has begun `action`."""
        match action:
            case on.Copy(save):
                return _begins_to_copy(world, rank, (world.run, save.number), save.step)
            case on.StartUpload(save, number):
                return _ordered(world, rank, (world.run, save.number), number)
            case on.KillUploader(number):
                return _killed(world, rank, number)
            case on.Prepare(save):
                return world._replace(prepares=(world.run, save.number))
            case on.Append(save, final):
                return world._replace(appends=((world.run, save.number), save.step, final), prepares=None)
            case on.Abandon(save):
                under_way = None if world.under_way == (world.run, save.number) else world.under_way
                abandoned = world.abandoned | {(world.run, save.number)}
                return world._replace(abandoned=abandoned, under_way=under_way)
        return self._told(world, rank, action)

    def _told(self, world: World, rank: int, action: on.Action) -> World:
        one = world.ranks[rank]
        match action:
            case on.TellCommitted(save, seq):
                return _hooks(world, rank, (world.run, save.number), save.step, seq)
            case on.TellFailed():
                return change(world, rank, owed=True)
            case on.TellMissed():
                return change(world, rank, wants=0)
            case on.Stream():
                return change(world, rank, place="streams", wants=0, owed=False)
            case on.StopFenced() | on.Close() | on.GiveUp() | on.Left():
                return _turn_over(world, rank, action)
            case on.RefuseHandover():
                return change(world, rank, place="refuses") if one.place == "stops" else world
        return world


def writer(run: int) -> str:
    """The mark of a run's rank 0."""
    return f"writer of run {run}"


@cache
def name(save: Id) -> str:
    """The name that the machines give it."""
    return name_of(writer(save[0]), save[1])


def change(world: World, rank: int, **changes: object) -> World:
    """The world with another rank."""
    ranks = world.ranks
    return world._replace(ranks=(*ranks[:rank], ranks[rank]._replace(**changes), *ranks[rank + 1 :]))  # type: ignore[arg-type]


def _begins_to_copy(world: World, rank: int, save: Id, step: int) -> World:
    one = world.ranks[rank]
    if any(process.reads for process in one.processes):
        raise Broken("reader: an arena is overwritten while an uploader may read it")
    if step != world.base + one.calls:
        raise Broken("firm: a copy is labelled with another step than that of the hand-out")
    begun = world._replace(under_way=save) if world.under_way is None or world.under_way < save else world
    wants = 0 if step == one.wants else one.wants
    return change(begun, rank, copies=save, arena=TORN, timer=save, owed=False, wants=wants)


def _ordered(world: World, rank: int, save: Id, number: int) -> World:
    processes = world.ranks[rank].processes
    if any(process.works for process in processes):
        raise Broken("reader: an arena has two readers")
    others = tuple(process for process in processes if process.number != number)
    return change(world, rank, processes=(*others, Process(number, save)))


def _turn_over(world: World, rank: int, action: on.StopFenced | on.Close | on.GiveUp | on.Left) -> World:
    if isinstance(action, on.StopFenced) and world.log[-1].run <= world.run:
        raise Broken("fenced: a rank ends for a run that nobody has seen")
    if isinstance(action, on.GiveUp):
        world = world._replace(expected=None)
    if rank == 0 and isinstance(action, on.Close) and len(world.log) == world.pen:
        world = append(world, Entry("closed", world.run))
    return change(world, rank, place="over")


def _killed(world: World, rank: int, number: int) -> World:
    processes = tuple(
        process._replace(killed=True) if process.number == number else process
        for process in world.ranks[rank].processes
    )
    return change(world, rank, processes=processes)


def _hooks(world: World, rank: int, save: Id, step: int, seq: int) -> World:
    one = world.ranks[rank]
    entry = world.log[seq - 1] if 0 < seq <= len(world.log) else None
    if entry is None or entry.save != save or entry.step != step:
        raise Broken("told: hooks are told of what no entry names")
    for other in world.ranks:
        for what, when in other.told:
            if what == save and (other is one or when != one.calls):
                raise Broken("told: hooks are told twice, or not at the same hand-out")
    wants = 0 if step == one.wants else one.wants
    return change(world, rank, told=(*one.told, (save, one.calls)), wants=wants, owed=False)


def append(world: World, entry: Entry, *, late: bool = False) -> World:
    """The log with one more entry. `late`: the answer is no longer awaited."""
    for before in world.log:
        if before.run > entry.run:
            raise Broken("older: a run writes after a newer one has opened")
        if before.run == entry.run and (before.kind == "closed" or before.final):
            raise Broken("order: a run writes after its end")
        if entry.kind == "committed" and before.kind == "committed":
            if before.save == entry.save:
                raise Broken("order: two entries name the same folder")
            if before.run == entry.run and before.save >= entry.save and entry.save[1] > 0 and before.save[1] > 0:
                raise Broken("order: the numbers of commits do not grow")
            if before.step > entry.step and before.run == entry.run:
                raise Broken("order: the steps of commits do not grow")
    flights = frozenset(flight for flight in world.flights if flight[0] > len(world.log) + 1)
    world = world._replace(log=(*world.log, entry), flights=flights)
    if entry.kind == "committed":
        world = world._replace(drops=0)
        if entry.save == world.under_way:
            world = world._replace(under_way=None)
        check_whole(world, entry)
    return world if late else world._replace(pen=len(world.log))


def check_whole(world: World, entry: Entry) -> None:
    """What a commit names is whole, of one step, and there."""
    if entry.save[1] < 0:
        return
    bytes_of = sorted((rank, held) for save, rank, held in world.parts if save == entry.save)
    if entry.save in world.deleted:
        raise Broken("whole: a commit names a folder that is deleted")
    if bytes_of != [(rank, entry.step) for rank in range(len(world.ranks))]:
        raise Broken("whole: a commit names parts that are missing or of another step")


def may(world: World, fault: str) -> bool:
    return world.faults[PLACE[fault]] > 0


def spend(world: World, fault: str) -> World:
    place = PLACE[fault]
    left = world.faults[place] - 1
    return world._replace(faults=(*world.faults[:place], left, *world.faults[place + 1 :]))
