"""What may happen next in a small world, each with whether it is a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from perdure.checkpoint.background import events as on
from perdure.checkpoint.background.state import (
    Carried,
    begin,
    carried,
    may_hand_over,
    renewed,
    stands,
    unanswered,
    under_way,
    words,
)
from perdure.checkpoint.background.vector import ArenaUse, Words, reduced
from tests.unit.runtime.checkpoint.background.small import (
    EMPTY,
    FAULTS,
    HAS_PUT,
    HAS_READ,
    ORDERED,
    PLACE,
    Broken,
    Entry,
    Expected,
    Id,
    Process,
    Rank,
    Setting,
    World,
    append,
    change,
    may,
    name,
    spend,
    writer,
)

EXIT, READY = 4, 5
"""Behind the machine's own words in the vector."""
REST, WHOLE, MOMENT = 1, 2, 0.5
"""How much time the rest of a save takes, a whole one, and one PUT."""
GOAL = 4

Move = tuple[str, bool, Callable[[], World]]


def moves(setting: Setting, world: World) -> Iterator[Move]:
    """Every move that is possible in this world."""
    if world.over:
        return
    yield from _calls(setting, world)
    yield from _together(setting, world)
    for rank in range(setting.world):
        yield from _own(setting, world, rank)
    yield from _rank_0(setting, world)
    yield from _elsewhere(setting, world)


# Calls and hand-outs.


def _calls(setting: Setting, world: World) -> Iterator[Move]:
    for rank, one in enumerate(world.ranks):
        if one.place != "trains" or one.sent is not None or one.copies or stands(setting.state(world, rank)):
            continue
        if world.due == "open" and world.rounds == 0:
            yield f"rank {rank} reaches the goal", False, _bound(_reaches, world, rank)
            continue
        wishes: list[on.Wish | None] = [None, *setting.wishes] if world.due == "open" else [world.due]
        if world.due == "open" and world.wishes == 0:
            wishes = [wish for wish in wishes if wish in (None, on.Wish.LATER)]
        for wish in wishes:
            what = f", {wish.value}" if wish else ""
            yield f"rank {rank}: hand-out{what}", False, _bound(_call, setting, world, rank, wish, leaves=0)
            if world.terms:
                yield f"rank {rank}: SIGTERM{what}", False, _bound(_call, setting, world, rank, wish, leaves=1)


def _reaches(world: World, rank: int) -> World:
    return change(world, rank, place="leaves")


def _call(setting: Setting, world: World, rank: int, wish: on.Wish | None, *, leaves: int) -> World:
    """A rank's step: it reads the vector of the call before and sends its own; then its hand-out."""
    if world.due == "open":
        firm = wish in (on.Wish.THIS_STEP, on.Wish.NOW)
        world = world._replace(due=wish, rounds=world.rounds - 1, wishes=world.wishes - firm)
    _nothing_is_forgotten(world, rank)
    world = change(world, rank, calls=world.ranks[rank].calls + 1)
    seen = world.read
    if seen:
        world = setting.after(world, rank, _agreed(seen))
    if seen and seen[EXIT]:
        return _came(change(world, rank, place="leaves", sent=()))
    if leaves:
        world = world._replace(terms=world.terms - leaves)
    state = setting.state(world, rank)
    ready = world.offer and (may_hand_over(state) or setting.without == "guard")
    world = change(world, rank, sent=(*words(state).vector(), leaves, -int(ready)))
    if seen and seen[READY]:
        return _came(change(world, rank, place="stops"))
    return _came(_hand_out(setting, world, rank, wish))


@cache
def _agreed(seen: tuple[int, ...]) -> on.Agreed:
    return on.Agreed(Words.read(seen[:EXIT]))


def _came(world: World) -> World:
    """Once all ranks have made the call, its vector can be read."""
    sent = [one.sent for one in world.ranks if one.sent is not None]
    if len(sent) < len(world.ranks):
        return world
    vector = None if () in sent else tuple(max(column) for column in zip(*sent, strict=True))
    if vector:
        # All have to be ready.
        vector = (*vector[:READY], int(vector[READY] < 0))
    return world._replace(read=vector, due="open", ranks=tuple(one._replace(sent=None) for one in world.ranks))


def _hand_out(setting: Setting, world: World, rank: int, wish: on.Wish | None) -> World:
    step = world.base + world.ranks[rank].calls
    going = under_way(setting.state(world, rank))
    same = going is not None and going.step == step
    if wish in (on.Wish.THIS_STEP, on.Wish.NOW):
        world = change(world, rank, wants=step)
    owed = world.ranks[rank].owed
    world = setting.after(world, rank, on.AtBoundary(step, wish, "due" if wish else "", same))
    one = world.ranks[rank]
    free = world.read is not None and world.read[2] in (ArenaUse.FREE, ArenaUse.NONE)
    if owed and one.owed and free and one.place == "trains" and not stands(setting.state(world, rank)):
        raise Broken("owed: a save that has failed is not made again")
    return world


def _nothing_is_forgotten(world: World, rank: int) -> None:
    if world.ranks[rank].wants:
        raise Broken("firm: training goes on, and a save of this very step was neither made nor told to be missed")


# Where all ranks are at the same place.


def _together(setting: Setting, world: World) -> Iterator[Move]:
    if any(one.copies for one in world.ranks):
        return
    places = {one.place for one in world.ranks}
    if len(places) > 1 or len({one.calls for one in world.ranks}) > 1 or any(one.sent for one in world.ranks):
        return
    place = places.pop()
    states = [setting.state(world, rank) for rank in range(setting.world)]
    standing = [stands(state) for state in states]
    if all(standing):
        yield from _standing(setting, world)
    elif any(standing):
        raise Broken("apart: one rank stands, and another one does not")
    elif place == "streams":
        yield from _streaming(setting, world)
    elif place == "stops":
        yield from _stopped(setting, world)
    elif place == "refuses":
        yield "the hand-over is aborted", False, _bound(_aborted, setting, world)
    elif place == "leaves":
        yield from _leaving(setting, world)
    elif place == "over":
        yield "the run is over", False, _bound(_over, setting, world)


def _all_words(setting: Setting, world: World) -> Words:
    return reduced(words(setting.state(world, rank)) for rank in range(setting.world))


def _standing(setting: Setting, world: World) -> Iterator[Move]:
    gathered = _all_words(setting, world)
    yield "the ranks gather", False, _bound(setting.all_after, world, on.Stood(gathered))
    if may(world, "late"):
        late = on.Stood(gathered, late=True)
        yield "the ranks have stood too long", True, _bound(setting.all_after, spend(world, "late"), late)


def _streaming(setting: Setting, world: World) -> Iterator[Move]:
    sent = world.appends or any(seq == len(world.log) + 1 for seq, _ in world.flights)
    if sent and setting.without != "beside":
        raise Broken("beside: a save streams while the append of another one has no answer")
    if world.prepares and world.prepares == world.under_way:
        raise Broken("beside: a save streams while another one is being committed")
    yield "a save streams", False, _bound(_streamed, setting, world, done=True)
    if may(world, "stream"):
        yield "a save cannot be streamed", True, _bound(_streamed, setting, spend(world, "stream"), done=False)


def _streamed(setting: Setting, world: World, *, done: bool) -> World:
    step = world.base + world.ranks[0].calls
    leaves = world.expected is not None
    if done and len(world.log) != world.pen:
        return _all_at(world, "over")
    for rank in range(setting.world):
        world = change(world, rank, place="leaves" if leaves else "trains")
    if done:
        count = sum(entry.save[1] < 0 for entry in world.log)
        world = append(world, Entry("committed", world.run, (world.run, -1 - count), step, leaves))
    if leaves:
        world = world._replace(left=world.left - (WHOLE if done else 1))
        world = world._replace(expected=world.expected and world.expected._replace(tried=True))
    return setting.all_after(world, on.Streamed(done))


def _stopped(setting: Setting, world: World) -> Iterator[Move]:
    """All ranks have come to the stop; the vector in flight is read first."""
    if world.read is not None:
        yield "the ranks stop", False, _bound(_stops, setting, world)
        return
    yield "the hand-over is aborted", False, _bound(_aborted, setting, world)
    if world.run < setting.runs:
        for gone in (None, *range(setting.world)):
            label = "opened" if gone is None else f"opened, rank {gone} is replaced"
            yield label, False, _bound(_handed_over, setting, world, gone)


def _stops(setting: Setting, world: World) -> World:
    seen = world.read or ()
    world = setting.all_after(world._replace(read=None), _agreed(seen))
    if seen[EXIT]:
        return _all_at(world, "leaves")
    if not seen[READY] or not world.offer:
        return _goes_on(setting, _all_at(world, "trains"))
    return setting.all_after(world, on.Stops())


def _all_at(world: World, place: str) -> World:
    for rank, one in enumerate(world.ranks):
        if one.place != "over":
            world = change(world, rank, place=place)
    return world


def _aborted(setting: Setting, world: World) -> World:
    world = _all_at(world._replace(offer=False), "trains")
    return _goes_on(setting, setting.all_after(world, on.TrainsOn()))


def _goes_on(setting: Setting, world: World) -> World:
    for rank in range(setting.world):
        world = _hand_out(setting, world, rank, None)
    return world


def _handed_over(setting: Setting, world: World, gone: int | None) -> World:
    header = carried(setting.state(world, 0))
    dropped = world.under_way is not None
    world = append(world, Entry("opened", world.run + 1))
    step, due = world.base + world.ranks[0].calls, header.owed
    for rank in range(setting.world):
        world = setting.after(world, rank, on.HandsOver())
        if carried(setting.state(world, rank)) != header:
            raise Broken("apart: what the newer run has to know is not the same everywhere")
    world = world._replace(run=world.run + 1, base=step, offer=False, read=None, due="open", under_way=None)
    world = world._replace(abandoned=frozenset(), drops=world.drops + dropped, prepares=None)
    if world.appends:
        raise Broken("older: a newer run opens while an append of the older one has no answer")
    if world.drops > 1:
        raise Broken("drops: two saves in a row were dropped for hand-overs")
    for rank in range(setting.world):
        world = _in_the_newer_run(setting, world, rank, header, gone)
    if dropped and not due:
        raise Broken("owed: the newer run does not know that a save was dropped")
    return world


def _in_the_newer_run(setting: Setting, world: World, rank: int, header: Carried, gone: int | None) -> World:
    owed = bool(header.owed)
    if rank != gone:
        state = renewed(setting.state(world, rank), writer(world.run), rank)
        return change(world, rank, state=setting.number(state), calls=0, place="trains", owed=owed, told=(), timer=None)
    world = _ended(setting, world, rank)
    fresh = setting.newcomer(rank, begin(writer(world.run), rank, header))
    return world._replace(ranks=(*world.ranks[:rank], fresh._replace(owed=owed), *world.ranks[rank + 1 :]))


def _ended(setting: Setting, world: World, rank: int) -> World:
    """A process ends in order: nothing of it stays, except what cannot be ended."""
    world = setting.after(world, rank, on.Ends())
    stay = {(rank, process._replace(stuck=True)) for process in world.ranks[rank].processes if process.works}
    for process in world.ranks[rank].processes:
        if process.killed and not process.stuck:
            world = setting.after(world, rank, on.UploaderEnded(process.number))
    if any(not process.killed for process in world.ranks[rank].processes):
        raise Broken("behind: a process has ended, and an uploader of it lives")
    return world._replace(orphans=world.orphans | stay)


def _leaving(setting: Setting, world: World) -> Iterator[Move]:
    gathered = _all_words(setting, world)
    if world.expected is not None:
        yield "the ranks gather to leave", False, _bound(_leaves, setting, world, gathered)
        waits = _leaves(setting, world, gathered) == world
        if waits and world.left >= 0 and (may(world, "late") or _stand_still(world)):
            fault = not _stand_still(world)
            later = spend(world, "late") if fault else world
            expected = world.expected._replace(without=0, with_one=0)
            yield "time passes", fault, _bound(later._replace, left=world.left - 1, expected=expected)
        return
    goal = world.read is not None and not world.read[EXIT]
    times: list[tuple[int, int | None]] = [(GOAL, WHOLE)] if goal else [(left, WHOLE) for left in range(4)]
    if setting.breaks:
        times += [(left, None) for left in range(3)]
    for left, whole in times:
        begun = world._replace(left=left, whole=whole, read=None)
        begun = begun._replace(expected=_expected(setting, begun))
        label = f"the ranks leave with time {left}" + ("" if whole else ", without another save")
        yield label, False, _bound(_leaves, setting, begun, gathered)


def _stand_still(world: World) -> bool:
    """Whether something waits for an event that may never come, and nothing else is in flight."""
    processes = [process for one in world.ranks for process in one.processes]
    frozen = any(process.frozen for process in processes)
    busy = any(not process.frozen and process.phase in (ORDERED, HAS_READ) for process in processes)
    on_its_way = busy or world.prepares or (world.appends and not world.flights)
    return (frozen or bool(world.flights)) and not on_its_way and not any(one.pipe for one in world.ranks)


def _leaves(setting: Setting, world: World, gathered: Words) -> World:
    going = under_way(setting.state(world, 0))
    step = world.base + world.ranks[0].calls
    same = going is not None and going.step == step
    if going and not world.finished and gathered.durable >= going.number:
        # Its upload has taken its time; it may have been over before they began to leave.
        world = world._replace(finished=True)
    rest = 0 if world.finished else REST
    asks = any(unanswered(setting.state(world, rank)) for rank in range(setting.world))
    left, hurries = world.left + MOMENT, setting.hurries
    event = on.Leaves(gathered, left, rest, world.whole, same, hurries=hurries, unanswered=asks)
    return setting.all_after(world, event)


def _expected(setting: Setting, world: World) -> Expected:
    """The lowest step that has to be saved at the end: without a fault, and with one."""
    committed = [entry.step for entry in world.log if entry.kind == "committed"]
    best = max(committed, default=0)
    going = under_way(setting.state(world, 0))
    good = going is not None and world.under_way == (world.run, going.number) and faultless(setting, world)
    step = going.step if going and good else 0
    full = (
        going is not None
        and good
        and all(setting.state(world, rank).durable == going.number for rank in range(setting.world))
    )
    now = world.base + world.ranks[0].calls
    left, one = world.left, max(best, step if world.left >= REST or full else 0)
    without = now if world.whole is not None and (left >= WHOLE or not going) else one
    tried = world.whole is None or left < REST + WHOLE
    second = full or (left >= WHOLE and world.whole is not None)
    return Expected(without, max(best, step if second else 0), sum(world.faults), tried)


def _over(setting: Setting, world: World) -> World:
    fenced = world.log[-1].run > world.run
    if world.expected and not fenced and not world.appends:
        without, with_one, faults, tried = world.expected
        best = max((entry.step for entry in world.log if entry.kind == "committed"), default=0)
        if not tried and best < world.base + world.ranks[0].calls and not spent(setting, world, "lost"):
            raise Broken("exit: there was time for a save of the newest step, and none was tried")
        if faults == sum(world.faults) and best < without:
            raise Broken("exit: the ranks have left an older step than they had time for")
        if faults == sum(world.faults) + 1 and best < with_one and not spent(setting, world, "refuse"):
            raise Broken("exit: one fault has cost a save that was at hand")
        ends = world.log[-1].kind == "closed" or world.log[-1].final or world.whole is None
        if not ends:
            raise Broken("exit: the turn has no end in the log")
    if not fenced and faultless(setting, world):
        named = {entry.save for entry in world.log if entry.kind == "committed" and entry.save[1] > 0}
        for one in world.ranks:
            if {what for what, _ in one.told} != {save for save in named if save[0] == world.run}:
                raise Broken("told: a commit was never told")
    for rank in range(setting.world):
        world = _ended(setting, world, rank)
    return world._replace(over=True)


def spent(setting: Setting, world: World, fault: str) -> int:
    return setting.faults.get(fault, 0) - world.faults[FAULTS.index(fault)]


def faultless(setting: Setting, world: World) -> bool:
    return sum(world.faults) == sum(setting.faults.values())


# One rank's copy and upload.


class Own(NamedTuple):
    """A move that begins at one rank alone."""

    label: str
    fault: bool
    rank: int
    one: Rank
    """The rank, when its machine has seen it."""
    faults: tuple[int, ...]
    part: tuple[Id, int] | None = None
    """What it puts into the store: the save, and the bytes."""
    actions: tuple[on.Action, ...] = ()
    """What its machine asks for."""

    def after(self, setting: Setting, world: World) -> World:
        """The world behind it."""
        ranks = (*world.ranks[: self.rank], self.one, *world.ranks[self.rank + 1 :])
        world = world._replace(ranks=ranks, faults=self.faults)
        if self.part:
            world = put_part(world, self.part[0], self.rank, self.part[1])
        for action in self.actions:
            world = setting.done(world, self.rank, action)
        return world


def _own(setting: Setting, world: World, rank: int) -> Iterator[Move]:
    """They are the same in many worlds."""
    one = world.ranks[rank]
    key = rank, world.base, one, world.faults
    known = setting.own.get(key)
    if known is None:
        at = _At(setting, rank, world.base + one.calls, one, world.faults)
        known = setting.own[key] = (*_copying(at), *_uploading(at))
    for own in known:
        yield own.label, own.fault, _bound(own.after, setting, world)


@dataclass(frozen=True)
class _At:
    """One rank in a world."""

    setting: Setting
    rank: int
    step: int
    one: Rank
    faults: tuple[int, ...]

    def may(self, fault: str) -> bool:
        return self.faults[PLACE[fault]] > 0

    def move(
        self,
        label: str,
        one: Rank,
        event: on.Event | None = None,
        *,
        fault: str = "",
        part: tuple[Id, int] | None = None,
    ) -> Own:
        """Its machine sees `event`, if any. A `fault` may happen once less from then on."""
        faults = self.faults
        if fault:
            place = PLACE[fault]
            faults = (*faults[:place], faults[place] - 1, *faults[place + 1 :])
        actions: tuple[on.Action, ...] = ()
        if event is not None:
            number, actions = self.setting.reacts(one.state, event)
            one = one._replace(state=number)
        return Own(label, bool(fault), self.rank, one, faults, part, actions)


def _copying(at: _At) -> Iterator[Own]:
    one, rank = at.one, at.rank
    if not one.copies:
        return
    save, copied = name(one.copies), one._replace(copies=None)
    yield at.move(f"rank {rank} seals", copied._replace(arena=at.step), on.Sealed(save))
    if at.may("copy"):
        yield at.move(f"rank {rank} cannot copy", copied, on.CopyFailed(save, "no memory"), fault="copy")
    if at.may("change"):
        yield at.move(f"rank {rank} copies a mixture", copied, on.CopyChanged(save), fault="change")


def _uploading(at: _At) -> Iterator[Own]:
    one, rank = at.one, at.rank
    for place, process in enumerate(one.processes):
        uploader = _Uploader(at, process, one.processes[:place] + one.processes[place + 1 :])
        yield from _works(uploader)
        if process.killed:
            yield from _is_killed(uploader)
        elif not process.frozen:
            yield from _is_hurt(uploader)
    if one.pipe and one.place != "over":
        event = one.pipe[0]
        yield at.move(f"rank {rank} hears {type(event).__name__}", one._replace(pipe=one.pipe[1:]), event)
    if one.timer and one.place != "over":
        free = any(process.frozen for process in one.processes)
        if free or at.may("late"):
            over, event = one._replace(timer=None), on.Late(name(one.timer))
            yield at.move(f"rank {rank}: the deadline", over, event, fault="" if free else "late")


@dataclass(frozen=True)
class _Uploader:
    """One uploader of a rank."""

    at: _At
    process: Process
    others: tuple[Process, ...]

    @property
    def who(self) -> str:
        return f"uploader {self.process.number} of rank {self.at.rank}"

    def becomes(self, **changes: object) -> Rank:
        changed = self.process._replace(**changes)  # type: ignore[arg-type]
        return self.at.one._replace(processes=(*self.others, changed))

    def says(self, event: on.Event, **changes: object) -> Rank:
        pipe = self.at.one.pipe
        return self.becomes(**changes)._replace(pipe=pipe if self.process.killed else (*pipe, event))

    def gone(self) -> Rank:
        return self.at.one._replace(processes=self.others)


def _works(of: _Uploader) -> Iterator[Own]:
    at, process = of.at, of.process
    if process.frozen:
        # No fault, but nothing may wait for it either.
        yield at.move(f"{of.who} thaws", of.becomes(frozen=False))._replace(fault=True)
    elif process.phase == ORDERED:
        yield at.move(f"{of.who} reads", of.becomes(phase=HAS_READ, bytes=at.one.arena))
    elif process.phase == HAS_READ:
        durable = of.says(on.Durable(name(process.order), process.number), phase=HAS_PUT)
        yield at.move(f"{of.who} has put its part", durable, part=(process.order, process.bytes))
    if process.phase != ORDERED and process.reads and not (process.frozen or process.killed):
        released = on.Released(name(process.order), process.number)
        yield at.move(f"{of.who} releases", of.says(released, reads=False))


def _is_killed(of: _Uploader) -> Iterator[Own]:
    at, process = of.at, of.process
    if process.stuck or at.one.place == "over":
        return
    yield at.move(f"{of.who} is reaped", of.gone(), on.UploaderEnded(process.number))
    if at.may("stuck"):
        yield at.move(f"{of.who} is stuck", of.becomes(stuck=True), on.UploaderStuck(process.number), fault="stuck")


def _is_hurt(of: _Uploader) -> Iterator[Own]:
    at, process = of.at, of.process
    if at.may("fail") and process.phase in (ORDERED, HAS_READ):
        failed = on.Failed(name(process.order), "the store refuses")
        yield at.move(f"{of.who} fails", of.says(failed, phase=HAS_PUT), fault="fail")
    if at.may("die"):
        yield at.move(f"{of.who} dies", of.gone(), on.UploaderEnded(process.number), fault="die")
    if at.may("freeze") and process.works:
        yield at.move(f"{of.who} freezes", of.becomes(frozen=True), fault="freeze")


def put_part(world: World, save: Id, rank: int, held: int) -> World:
    """A PUT that does not overwrite."""
    if any(part[:2] == (save, rank) for part in world.parts):
        return world
    return world._replace(parts=world.parts | {(save, rank, held)})


# Rank 0 and the log.


def _rank_0(setting: Setting, world: World) -> Iterator[Move]:
    if world.ranks[0].place == "over" and not world.appends:
        return
    if world.prepares:
        save = name(world.prepares)
        done = world._replace(prepares=None)
        yield "the manifest is written", False, _bound(setting.after, done, 0, on.Prepared(save))
        if may(world, "refuse"):
            refused = on.NotPrepared(save, "the store refuses")
            yield "the manifest is refused", True, _bound(setting.after, spend(done, "refuse"), 0, refused)
    if world.appends:
        yield from _appending(setting, world, *world.appends)


def _appending(setting: Setting, world: World, save: Id, step: int, final: bool) -> Iterator[Move]:
    entry = Entry("committed", save[0], save, step, final)
    done = world._replace(appends=None)
    if len(world.log) == world.pen:
        yield (
            "the commit is appended",
            False,
            lambda: setting.after(append(done, entry), 0, on.Appended(name(save), len(world.log) + 1)),
        )
        if may(world, "lost"):
            sent = spend(done, "lost")._replace(flights=world.flights | {(world.pen + 1, entry)})
            yield "the append has no answer", True, _bound(setting.after, sent, 0, on.NoAnswer(name(save)))
    elif world.log[world.pen] == entry:
        known = done._replace(pen=world.pen + 1)
        found = on.Appended(name(save), world.pen + 1)
        yield "the commit is found in the log", False, _bound(setting.after, known, 0, found)
    elif world.log[world.pen].run == world.run:
        # An earlier entry of the same writer, whose PUT had no answer.
        yield "rank 0 reads on", False, _bound(world._replace, pen=world.pen + 1)
    else:
        fenced = on.CommitFenced(name(save), "another run owns the log")
        yield "rank 0 is fenced", False, _bound(setting.after, done, 0, fenced)


def _elsewhere(setting: Setting, world: World) -> Iterator[Move]:
    for seq, entry in world.flights:
        if seq == len(world.log) + 1:
            yield "a late PUT arrives", False, _bound(append, world, entry, late=True)
    for save in world.abandoned:
        yield f"the folder of {save} is deleted", False, _bound(_deleted, world, save)
    for rank, process in world.orphans:
        less = world._replace(orphans=world.orphans - {(rank, process)})
        held = process.bytes if process.phase >= HAS_READ else EMPTY
        yield "an orphaned uploader puts its part", False, _bound(put_part, less, process.order, rank, held)
    if world.offers and not world.offer and world.run < setting.runs and world.expected is None:
        offered = world._replace(offer=True, offers=world.offers - 1)
        yield "a hand-over is offered", False, lambda: offered
    if world.offer and may(world, "abort"):
        withdrawn = spend(world._replace(offer=False), "abort")
        yield "the offer is withdrawn", True, lambda: withdrawn
    if may(world, "fence") and world.log[-1].run == world.run:
        yield "another run opens", True, _bound(append, spend(world, "fence"), Entry("opened", 9), late=True)
    if may(world, "death") and world.run < setting.runs:
        yield "a rank dies", True, _bound(_died, setting, spend(world, "death"))


def _deleted(world: World, save: Id) -> World:
    if any(entry.save == save for entry in world.log):
        raise Broken("whole: the folder of a commit is deleted")
    return world._replace(abandoned=world.abandoned - {save}, deleted=world.deleted | {save})


def _died(setting: Setting, world: World) -> World:
    """All of the run end with the one that dies, and the next run opens from the newest commit."""
    for rank in range(setting.world):
        _ended(setting, world, rank)  # any of them may be one that lives and ends in order
    flights = world.flights
    if world.appends:
        save, step, final = world.appends
        flights |= {(world.pen + 1, Entry("committed", save[0], save, step, final))}
    orphans = {
        (rank, process._replace(bytes=one.arena if process.phase == ORDERED else process.bytes, phase=HAS_READ))
        for rank, one in enumerate(world.ranks)
        for process in one.processes
        if process.phase in (ORDERED, HAS_READ)
    }
    # The PUT of a dead rank 0 may arrive before the next run opens, or be too late.
    world = world._replace(flights=flights, orphans=world.orphans | orphans, appends=None, prepares=None)
    step = max((entry.step for entry in world.log if entry.kind == "committed"), default=0)
    world = append(world, Entry("opened", world.run + 1))
    run = world.run + 1
    ranks = tuple(setting.newcomer(rank, begin(writer(run), rank)) for rank in range(setting.world))
    return world._replace(
        ranks=ranks, run=run, base=step, read=None, due="open", abandoned=frozenset(), under_way=None, offer=False,
        left=0, whole=None, finished=False, expected=None, drops=0,
    )  # fmt: skip


def _bound(act: Callable[..., World], *arguments: object, **named: object) -> Callable[[], World]:
    return lambda: act(*arguments, **named)
