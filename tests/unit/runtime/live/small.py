"""A small world in which every order of events is tried: the real machines, and as little as they need around them.

One world is a value: the parties' states, what each waits for, the log, the PUTs on their way, the words said and
heard, and how much may still go wrong. `World.after` carries out what a machine asks for. What may happen next is in
.moves, what must always hold is in .laws, and .explore walks through all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Final, NamedTuple, TypeVar

from perdure.live.protocol import events as on
from perdure.live.protocol.machine import PartyPhase, PartyState, Step, begin, step
from perdure.live.protocol.parties import Attempt, PartyRole
from perdure.log.entry import Committed, Entry, Event, ManifestRef, Opened, Refused
from perdure.log.verdict import Verdict, verdict
from perdure.wire import HandoverWord
from tests.support.worlds import replaced_quickly

T = TypeVar("T")

FAULTS: Final = (
    "kill", "freeze", "cut", "flip", "down", "reduce", "ack", "unable", "sigterm", "goal", "commit", "plan",
    "doubt", "obstacle",
)  # fmt: skip
_PLACE: Final = {fault: place for place, fault in enumerate(FAULTS)}

RUN, NEXT, LATER = 1, 2, 3
UID = "job"
KILLED, UP, FROZEN, ENDED = range(4)

# Entries of the log, in one letter each: o Opened r, c commit, f final commit, C and F the same with `aborted`,
# r Refused, h Opened r+1 takesOver r, p Opened r+1 in place, e final commit of r+1, n Opened r+2.
OLDER = "ocfCFr"
Job = str
Put = tuple[int, str, int, bool]
"""Its owner, content, number, and whether its answer is still awaited."""


class World(NamedTuple):
    """Everything there is."""

    states: tuple[int, ...]
    """Numbers in the setting's table: worlds are compared and looked up all the time."""
    jobs: tuple[frozenset[Job], ...]
    procs: tuple[int, ...]
    ends: tuple[str, ...]
    told: tuple[str, ...]
    """The word that each agent got."""
    known: tuple[int, ...]
    """Up to where each party has read the log."""
    log: str
    puts: frozenset[Put]
    pen: int
    """Up to where the older run's writer has read the log."""
    up: bool
    """Whether the store answers."""
    connected: frozenset[int]
    """Parties that have set this key."""
    said: frozenset[tuple[int, HandoverWord]]
    voted: frozenset[int]
    seen: frozenset[int]
    agreed: frozenset[tuple[str, int]]
    """What the older run's vector has decided and a rank has not come to yet."""
    rounds: tuple[int, ...]
    """What each old rank gave to the round, -1: nothing yet."""
    marked: bool
    """Whether the older run's writer marks its entries as aborted."""
    aborted: bool
    """Whether an old rank knows that the attempt was aborted: what no party could see is remembered for the laws."""
    wants: frozenset[int]
    """Old ranks that vote for an exit."""
    clock: int
    """0 before the limit, 1 after it, 2 after the quiet time, 3 at the deadlines."""
    cut: frozenset[int]
    """Parties without a link to the decider."""
    plan: tuple[int | None, frozenset[int]] | None
    """Run r+2: which run its block takes over, and which are lost."""
    newer: frozenset[int]
    """Parties that know of it."""
    faults: tuple[int, ...]
    """How often each of FAULTS may still happen."""


replaced_quickly(World)


@dataclass(frozen=True)
class Setting:
    """One small world's beginning, and the rules that are taken out to see what they are good for."""

    attempt: Attempt
    faults: dict[str, int] = field(default_factory=dict)
    late: int = 2
    """How far the clock may go while something else is still possible."""
    without: frozenset[str] = frozenset()
    connecting: bool = False
    """Whether the parties have yet to connect in the beginning."""
    react: Callable[[PartyState, on.Event], Step] = step
    _states: list[PartyState] = field(default_factory=list)
    _numbers: dict[PartyState, int] = field(default_factory=dict)
    _steps: dict[tuple[int, on.Event], tuple[int, tuple[on.Action, ...]]] = field(default_factory=dict)

    def state(self, world: World, number: int) -> PartyState:
        """Where a party stands."""
        return self._states[world.states[number]]

    def phase(self, world: World, number: int) -> PartyPhase:
        """What a party is doing."""
        return self._states[world.states[number]].phase

    def _number(self, state: PartyState) -> int:
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]

    def _step(self, number: int, event: on.Event) -> tuple[int, tuple[on.Action, ...]]:
        known = self._steps.get((number, event))
        if known is None:
            state, actions = self.react(self._states[number], event)
            known = self._steps[number, event] = self._number(_essence(state)), actions
        return known

    @cached_property
    def decider(self) -> int:
        return self.attempt.decider

    @cached_property
    def old(self) -> range:
        return range(self.attempt.world)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Parties of run r+1."""
        return tuple(party.number for party in self.attempt.parties if party.new is not None)

    @cached_property
    def everybody(self) -> range:
        return range(len(self.attempt.parties))

    def first(self) -> World:
        """All are warm and connected, unless they have yet to connect; the older run trains."""
        count = len(self.everybody)
        none: tuple[frozenset[Job], ...] = (frozenset(),) * count
        states = tuple(self._number(begin(self.attempt, number)[0]) for number in self.everybody)
        empty: frozenset[int] = frozenset()
        world = World(
            states=states, jobs=none, procs=(UP,) * count, ends=("",) * count, told=("",) * count, known=(1,) * count,
            log="o", puts=frozenset(), pen=1, up=True, connected=empty, said=frozenset(), voted=empty, seen=empty,
            agreed=frozenset(), rounds=(-1,) * len(self.old), marked=False, aborted=False, wants=empty,
            clock=0, cut=empty, plan=None, newer=empty, faults=tuple(self.faults.get(fault, 0) for fault in FAULTS),
        )  # fmt: skip
        for number in self.everybody:
            for event in (on.StoreSeen(True), on.AllWarm()):
                world = self.after(world, number, event)
        for number in () if self.connecting else self.everybody:
            world = self.after(finished(world, number, "connect"), number, on.Connected())
        for number in () if self.connecting else self.everybody:
            world = self.after(finished(world, number, "meet"), number, on.AllConnected())
        return world

    def after(self, world: World, number: int, event: on.Event) -> World:
        """The world when this party has seen `event` and has begun its actions."""
        before = world.states[number]
        state, actions = self._step(before, event)
        if state == before and not actions:
            return world
        world = world._replace(states=put(world.states, number, state))
        for action in actions:
            world = self._done(world, number, action)
        # Answers that the party would ignore need not be waited for.
        left = world.jobs[number] & _ANSWERED.get(self._states[state].phase, frozenset())
        return world._replace(jobs=put(world.jobs, number, left))

    def _done(self, world: World, number: int, action: on.Action) -> World:
        if type(action) in _JOBS:
            world = job(world, number, _JOBS[type(action)])
        match action:
            case on.Vote():
                return world._replace(voted=world.voted | {number})
            case on.AppendOpened() | on.AppendRefused():
                kind = "h" if isinstance(action, on.AppendOpened) else "r"
                place = world.known[number] + 1
                puts = (world.puts - {(number, kind, place, False)}) | {(number, kind, place, True)}
                return world._replace(puts=puts)
            case on.TrainOn(aborted) | on.SaveAndExit(aborted) if aborted:
                return self._marked(world, number)
            case on.ExitProcess(kind):
                procs, ends = put(world.procs, number, ENDED), put(world.ends, number, kind.value)
                return world._replace(procs=procs, ends=ends, jobs=put(world.jobs, number, frozenset()))
        return self._told(world, number, action)

    def _told(self, world: World, number: int, action: on.Action) -> World:
        """What others learn of an action."""
        match action:
            case on.SayToAll(word):
                return world._replace(said=world.said | {(number, word)})
            case on.SetConnected():
                return world._replace(connected=world.connected | {number})
            case on.SetSeen() if self.attempt.parties[self.decider].part is PartyRole.LEAVER:
                return world._replace(seen=world.seen | {number})
            case on.BeginRound(choice):
                return world._replace(rounds=put(world.rounds, number, int(choice)))
            case on.TellEnded(word):
                return world._replace(told=put(world.told, number, word.value))
            case on.AskExit():
                return world._replace(wants=world.wants | {number})
        return world

    def _marked(self, world: World, number: int) -> World:
        in_round = world.rounds[number] >= 0
        return world._replace(marked=world.marked or number == 0, aborted=world.aborted or in_round)


_JOBS: Final[dict[type[on.Action], Job]] = {
    on.Connect: "connect",
    on.SetConnected: "meet",
    on.MoveState: "move",
    on.TellVoting: "tell",
    on.Vote: "vote",
    on.ReadLog: "read",
    on.SaveAndExit: "save",
}
_ANSWERED: Final[dict[PartyPhase, frozenset[Job]]] = {
    PartyPhase.PREPARING: frozenset({"connect", "meet"}),
    PartyPhase.MOVING: frozenset({"move", "read"}),
    PartyPhase.RUNNING_ON: frozenset({"read"}),
    PartyPhase.TELLING: frozenset({"tell", "read"}),
    PartyPhase.VOTED: frozenset({"vote"}),
    PartyPhase.ASKING: frozenset({"read", "answer", "silence"}),
    PartyPhase.DECIDING: frozenset({"answer", "answer-go", "silence"}),
    PartyPhase.SAVING: frozenset({"save", "save-done"}),
}


def _essence(state: PartyState) -> PartyState:
    """Without what its phase never looks at again: fewer worlds, and none of them lost."""
    match state.phase:
        case PartyPhase.ENDED | PartyPhase.JOINING | PartyPhase.TOOK_OVER:
            deaf = state.deaf and state.joins
            return PartyState(state.attempt, state.me, state.phase, deaf=deaf, voted=state.voted, word=state.word)
        case PartyPhase.SAVING if not state.decides:
            return PartyState(state.attempt, state.me, state.phase)
        case PartyPhase.VOTED | PartyPhase.ASKING | PartyPhase.DECIDING | PartyPhase.ROUND | PartyPhase.ABORTED if (
            not state.leaves
        ):
            return replace(state, needed=frozenset(), missed=frozenset(), deaf=state.deaf and state.joins)
    return state


def put(values: tuple[T, ...], number: int, value: T) -> tuple[T, ...]:
    return (*values[:number], value, *values[number + 1 :])


def job(world: World, number: int, what: Job) -> World:
    return world._replace(jobs=put(world.jobs, number, world.jobs[number] | {what}))


def finished(world: World, number: int, what: Job) -> World:
    return world._replace(jobs=put(world.jobs, number, world.jobs[number] - {what}))


def may(world: World, fault: str) -> bool:
    return world.faults[_PLACE[fault]] > 0


def spend(world: World, fault: str) -> World:
    place = _PLACE[fault]
    return world._replace(faults=put(world.faults, place, world.faults[place] - 1))


def spent(setting: Setting, world: World, fault: str) -> int:
    return setting.faults.get(fault, 0) - world.faults[_PLACE[fault]]


@cache
def read(log: str) -> Verdict:
    """What the real reading says about this much of the log."""
    entries = [entry(seq + 1, letter) for seq, letter in enumerate(log)]
    return verdict(entries, uid=UID, run=RUN, next_run=NEXT)


def entry(seq: int, letter: str) -> Entry:
    run = {"h": NEXT, "p": NEXT, "e": NEXT, "n": LATER}.get(letter, RUN)
    manifest = ManifestRef("", 0, "")
    events: dict[str, Event] = {
        "o": Opened(2, None),
        "n": Opened(2, None),
        "p": Opened(2, None),
        "h": Opened(2, None, RUN, 1),
        "r": Refused(NEXT),
    }
    event = events.get(letter) or Committed(1, 0, {}, letter in "fFe", "", manifest)
    return Entry(seq, None, UID, run, "w", None, None, "", event, NEXT if letter in "CF" else 0)
