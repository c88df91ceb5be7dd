"""What may happen next in a small world: deliveries in any order, and as many faults as the setting allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.live.protocol import events as on
from perdure.live.protocol.events import Alarm, Choice
from perdure.live.protocol.machine import PartyPhase, named
from perdure.live.protocol.parties import PartyRole
from perdure.live.protocol.state import STANDING, UNVOTED
from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord
from tests.unit.runtime.live.small import (
    ENDED,
    FROZEN,
    KILLED,
    NEXT,
    RUN,
    UP,
    Setting,
    World,
    finished,
    job,
    may,
    put,
    read,
    spend,
)  # fmt: skip

Move = tuple[str, World]
TRAINING = (PartyPhase.PREPARING, PartyPhase.ABORTED)
ENDS_OLDER = "fF"
NEWER = "hpn"
_NOTHING = "nothing happens until "
UNTIL_THE_LIMIT = f"{_NOTHING}1"
_AGREED: Final[dict[str, on.Event]] = {"stop": on.Stopped(), "exit": on.ExitAgreed(), "goal": on.TrainingDone()}


def moves(setting: Setting, world: World) -> list[Move]:
    """Everything that changes the world; at the deadlines only pending events."""
    found = [move for move in _moves(setting, world) if move[1] != world]
    if not found or all(label.startswith("thaw") for label, _ in found):
        waits = "lost" in setting.without and FROZEN in world.procs
        found += list(_seconds(setting, world)) or ([] if waits else _deadlines(setting, world))
    return found


def only_time_is_left(following: list[Move]) -> bool:
    """Whether nothing more happens but that time passes."""
    return all(label == "deadlines" or label.startswith("thaw") for label, _ in following)


def only_the_limit_is_left(following: list[Move]) -> bool:
    """Whether nothing more happens before the limit of the attempt."""
    return all(label == UNTIL_THE_LIMIT or label.startswith("thaw") for label, _ in following)


def _moves(setting: Setting, world: World) -> Iterator[Move]:
    yield from _older_run(setting, world)
    yield from _store(setting, world)
    for number in setting.everybody:
        if world.procs[number] == UP:
            yield from _work(setting, world, number)
            yield from _words(setting, world, number)
            yield from _links(setting, world, number)
            yield from _silences(setting, world, number)
            yield from _alarms(setting, world, number)
            yield from _requests(setting, world, number)
    yield from _newer_run(setting, world)
    yield from _later_run(setting, world)
    yield from _rescues(setting, world)
    yield from _faults(setting, world)


def _seconds(setting: Setting, world: World) -> Iterator[Move]:
    """The stop has lasted for seconds: the decider's patience is over, and losses are known."""
    if world.procs[setting.decider] == UP and setting.phase(world, setting.decider) in STANDING:
        after = setting.after(world, setting.decider, on.Passed(Alarm.SILENCE))
        if after != world:
            yield "the decider's patience is over", after
    for number in setting.everybody if "lost" not in setting.without else ():
        for other in _unheard(setting, world, number):
            after = setting.after(world, number, on.Silent(other, lost=True))
            if after != world:
                yield f"{number} takes {other} for lost", after


def _unheard(setting: Setting, world: World, number: int) -> Iterator[int]:
    """Of whom a party hears nothing, and would: the decider hears all, all others the decider alone."""
    if world.procs[number] != UP or not has_stopped(setting, world):
        return
    for other in setting.everybody if number == setting.decider else (setting.decider,):
        if other != number and (world.procs[other] == FROZEN or {number, other} & world.cut):
            yield other


def has_stopped(setting: Setting, world: World) -> bool:
    """Whether an old rank does not just train: before that no party waits for another."""
    return any(setting.phase(world, rank) is not PartyPhase.PREPARING for rank in setting.old)


def _silences(setting: Setting, world: World, number: int) -> Iterator[Move]:
    """After 3 s: before anything that takes longer, and at any moment. With `doubt` also about living parties."""
    for other in _unheard(setting, world, number):
        yield f"{number} hears nothing of {other}", setting.after(world, number, on.Silent(other))
    if may(world, "doubt") and has_stopped(setting, world):
        for other in setting.everybody if number == setting.decider else (setting.decider,):
            doubted = setting.after(world, number, on.Silent(other)) if other != number else world
            if doubted != world:
                yield f"{number} takes {other} for silent", spend(doubted, "doubt")


def gone(world: World, number: int) -> bool:
    return world.procs[number] in (KILLED, ENDED)


def _deadlines(setting: Setting, world: World) -> Iterator[Move]:
    if world.clock < 3:
        passed = world._replace(clock=world.clock + 1)
        yield "deadlines" if passed.clock == 3 else f"{_NOTHING}{passed.clock}", passed
    for number in setting.everybody if world.clock == 3 else ():
        if world.procs[number] == UP:
            after = setting.after(world, number, on.Passed(Alarm.DEADLINE))
            if after != world:
                yield f"{number} at its deadline", after


def _older_run(setting: Setting, world: World) -> Iterator[Move]:
    """The vector of the older run, its collectives, its exit save, its background commit."""
    old = setting.old
    phases = [setting.phase(world, rank) for rank in old]
    alive = all(world.procs[rank] == UP for rank in old)
    trains = alive and all(phase in TRAINING for phase in phases) and not world.agreed
    asks = any(_votes_exit(setting, world, rank) for rank in old)
    if trains and all(named(setting.state(world, rank)) == NEXT for rank in old):
        yield "the vector names the attempt", world._replace(agreed=frozenset(("stop", rank) for rank in old))
    if trains and asks:
        yield "the vector says exit", world._replace(agreed=frozenset(("exit", rank) for rank in old))
    if trains and may(world, "goal") and PartyPhase.PREPARING in phases:
        yield "the goal is reached", spend(world, "goal")._replace(agreed=frozenset(("goal", rank) for rank in old))
    for what, rank in world.agreed:
        if world.procs[rank] == UP:
            there = world._replace(agreed=world.agreed - {(what, rank)})
            yield f"{rank} comes to: {what}", setting.after(there, rank, _AGREED[what])
            if what == "stop" and may(world, "unable"):
                yield f"{rank} comes to: stop, and cannot", setting.after(spend(world, "unable"), rank, on.Unable("x"))
    yield from _round(setting, world)
    yield from _exit_save(setting, world)
    for rank in old:
        broken = (
            phases[rank] in (*TRAINING, PartyPhase.SAVING)
            and world.procs[rank] == UP
            and "save-done" not in world.jobs[rank]
        )
        if broken and any(_missing(world, other) for other in old if other != rank):
            ends, procs = put(world.ends, rank, "peer-lost"), put(world.procs, rank, ENDED)
            yield f"{rank} has lost a peer of r", world._replace(ends=ends, procs=procs)
    if may(world, "commit") and world.procs[0] == UP and phases[0] not in (PartyPhase.SAVING, PartyPhase.ENDED):
        sent = world.puts | {(0, "C" if world.marked else "c", world.pen + 1, True)}
        yield "a commit of r leaves in the background", spend(world, "commit")._replace(puts=sent)


def _votes_exit(setting: Setting, world: World, rank: int) -> bool:
    state = setting.state(world, rank)
    unmasked = state.exits if state.phase is PartyPhase.ABORTED else state.exit_requested and not state.leaves
    return rank in world.wants or unmasked


def _missing(world: World, rank: int) -> bool:
    return world.procs[rank] == KILLED or (world.procs[rank] == ENDED and world.ends[rank] != "checkpointed")


def _round(setting: Setting, world: World) -> Iterator[Move]:
    given = [world.rounds[rank] for rank in setting.old]
    for rank in setting.old:
        if world.procs[rank] != UP or setting.phase(world, rank) is not PartyPhase.ROUND:
            continue
        if "round" in setting.without:
            yield f"{rank} acts alone", setting.after(world, rank, on.RoundDone(Choice(given[rank])))
        elif min(given) >= 0:
            yield f"{rank} leaves the round", setting.after(world, rank, on.RoundDone(Choice(max(given))))
        if any(_missing(world, other) for other in setting.old):
            yield f"{rank}: the round fails", setting.after(world, rank, on.RoundDone(None))


def _exit_save(setting: Setting, world: World) -> Iterator[Move]:
    """All old ranks save together; what the writer meets is as in the real one."""
    saving = [rank for rank in setting.old if "save" in world.jobs[rank]]
    if len(saving) == len(setting.old) and world.up and all(world.procs[rank] == UP for rank in saving):
        pen, marked = world.pen, world.marked
        while pen < len(world.log) and world.log[pen] in "rcC":
            marked = marked or world.log[pen] == "r"
            pen += 1
        log = world.log
        if pen == len(log):
            log += "F" if marked and "mark" not in setting.without else "f"
            pen += 1
        after = world._replace(log=log, pen=pen, marked=marked)
        for rank in saving:
            after = job(finished(after, rank, "save"), rank, "save-done")
        yield "r: exit save", after


def _store(setting: Setting, world: World) -> Iterator[Move]:
    for item in world.puts:
        owner, what, place, waited = item
        after = world._replace(puts=world.puts - {item})
        own = not gone(world, owner)
        if world.up and len(world.log) + 1 == place:
            landed = after._replace(log=world.log + what)
            yield f"{owner}'s PUT {what} lands at {place}", _answer(setting, landed, item) if own and waited else landed
        elif world.up and len(world.log) >= place:
            yield (
                f"{owner}'s PUT {what} meets 412 at {place}",
                _answer(setting, after, item) if own and waited else after,
            )
        if waited and own and what in "hr" and may(world, "flip"):
            late = spend(after, "flip")._replace(puts=after.puts | {(owner, what, place, False)})
            yield f"{owner}'s PUT {what} is late", job(late, owner, "silence")
        if what in "hr" and may(world, "flip"):
            lost = spend(after, "flip")
            yield f"{owner}'s PUT {what} is lost", job(lost, owner, "silence") if waited and own else lost
        elif not own:
            yield f"{owner}'s PUT {what} dies with it", after
    if world.up and may(world, "down"):
        yield "the store is down", spend(world, "down")._replace(up=False)
    if not world.up:
        yield "the store is up", world._replace(up=True)


def _answer(setting: Setting, world: World, item: tuple[int, str, int, bool]) -> World:
    """The answer travels back to its sender; the older run's writer takes its own at once."""
    owner, what, place, _ = item
    if what in "cC":
        own = world.log[place - 1] == what
        refused = world.log[place - 1] == "r"
        if refused:
            again = world.puts | {(owner, "C", place + 1, True)}
            return world._replace(pen=place, marked=True, puts=again)
        return world._replace(pen=place) if own else world
    if what == "h" and "bytes" in setting.without and world.log[place - 1] in "cC":
        first = setting.attempt.of_new(0).number
        if first == 0:
            return job(world, owner, "answer-go")
    return job(world, owner, "answer")


def _work(setting: Setting, world: World, number: int) -> Iterator[Move]:
    """What a party has begun comes to an end."""
    for what in world.jobs[number]:
        done = finished(world, number, what)
        match what:
            case "connect" | "meet":
                yield from _connecting(setting, world, number, what)
            case "move":
                yield from _move(setting, world, done, number)
            case "tell":
                if may(world, "ack"):
                    silent = spend(done, "ack")
                    yield f"{number}'s agent is silent", setting.after(silent, number, on.Passed(Alarm.ACK))
                yield f"{number} votes", setting.after(done, number, on.Acknowledged())
            case "vote":
                yield from _vote(setting, world, done, number)
            case "save-done":
                yield f"{number} has saved", setting.after(done, number, on.OlderRunEnded())
            case _:
                yield from _log_answers(setting, world, number, what)


def _connecting(setting: Setting, world: World, number: int, what: str) -> Iterator[Move]:
    done = finished(world, number, what)
    if what == "connect":
        yield f"{number} is connected", setting.after(done, number, on.Connected())
        if may(world, "unable"):
            yield f"{number} cannot", setting.after(spend(done, "unable"), number, on.Unable("x"))
        if may(world, "obstacle") and number in setting.old:
            yield f"{number} is not live", setting.after(spend(done, "obstacle"), number, on.NotLive("x"))
    elif len(world.connected) == len(setting.everybody):
        yield f"{number} knows that all are connected", setting.after(done, number, on.AllConnected())


def _log_answers(setting: Setting, world: World, number: int, what: str) -> Iterator[Move]:
    done = finished(world, number, what)
    match what:
        case "read" if world.up:
            read_on = done._replace(known=put(world.known, number, len(world.log)))
            answer = on.LogAnswered(_verdict(setting, read_on, number))
            yield f"{number} reads the log", setting.after(read_on, number, answer)
        case "answer" if world.up:
            read_on = done._replace(known=put(world.known, number, world.known[number] + 1))
            answer = on.LogAnswered(_verdict(setting, read_on, number))
            yield f"{number} has its answer", setting.after(read_on, number, answer)
            if may(world, "flip"):
                lost = spend(done, "flip")
                yield f"{number}'s answer is lost", setting.after(lost, number, on.LogAnswered(None))
        case "answer-go":
            yield f"{number} takes a commit for its own", setting.after(done, number, on.LogAnswered(Verdict.GO))
        case "silence":
            yield f"{number} has no answer", setting.after(done, number, on.LogAnswered(None))


def _verdict(setting: Setting, world: World, number: int) -> Verdict:
    log = world.log[: world.known[number]]
    if "mark" in setting.without:
        log = log.replace("C", "c").replace("F", "f")
    return read(log)


def _move(setting: Setting, world: World, done: World, number: int) -> Iterator[Move]:
    """A newcomer has its state when all old ranks have sent it."""
    moved = all(
        setting.phase(world, rank) in (PartyPhase.TELLING, PartyPhase.VOTED, PartyPhase.DECIDING)
        for rank in setting.old
    )
    if number in setting.old or moved:
        for event in (on.Moved(), on.FirstBatch()):
            done = setting.after(done, number, event)
        if may(world, "ack"):
            yield f"{number} has moved state", done
        else:
            # To the machine it is all one whether it still moves state or talks to its agent.
            told = setting.after(finished(done, number, "tell"), number, on.Acknowledged())
            yield f"{number} has moved state, and votes", told
    if may(world, "unable"):
        yield f"{number} cannot", setting.after(spend(world, "unable"), number, on.Unable("x"))


def _vote(setting: Setting, world: World, done: World, number: int) -> Iterator[Move]:
    whole = len(world.voted) == len(setting.everybody)
    if "whole" in setting.without:
        whole = len(world.voted) >= len(setting.old)
    if whole:
        yield f"{number}: all have voted", setting.after(done, number, on.VoteReduced(True))
    left = any(gone(world, other) or setting.phase(world, other) is PartyPhase.ROUND for other in setting.everybody)
    if left or may(world, "reduce"):
        failed = done if left else spend(done, "reduce")
        yield f"{number}: the vote fails", setting.after(failed, number, on.VoteReduced(False))


def _words(setting: Setting, world: World, number: int) -> Iterator[Move]:
    for sayer, word in world.said:
        if sayer != number and not {number, sayer} & world.cut:
            yield f"{number} hears {word} from {sayer}", setting.after(world, number, on.Heard(word))


def _links(setting: Setting, world: World, number: int) -> Iterator[Move]:
    decider = setting.decider
    if number != decider and (gone(world, decider) or number in world.cut) and "link" not in setting.without:
        yield f"{number}'s link is closed", setting.after(world, number, on.LinkClosed())
    for other in setting.everybody if number == decider else ():
        if other in world.seen and setting.phase(world, number) is PartyPhase.LINGERING:
            yield f"the decider sees that {other} knows", setting.after(world, number, on.SeenBy(other))
        if other != number and (gone(world, other) or other in world.cut):
            yield f"the decider loses {other}", setting.after(world, number, on.PartyGone(other))


def _alarms(setting: Setting, world: World, number: int) -> Iterator[Move]:
    if world.clock >= 1:
        yield f"{number}: limit", setting.after(world, number, on.Passed(Alarm.LIMIT))
        if setting.phase(world, number) is PartyPhase.ABORTED:
            yield f"{number}: last call", setting.after(world, number, on.Passed(Alarm.LAST_CALL))
    if world.clock >= 2:
        yield f"{number}: quiet", setting.after(world, number, on.Passed(Alarm.QUIET))
        if setting.phase(world, number) is PartyPhase.JOINING and not _may_form(setting, world):
            ends, procs = put(world.ends, number, "stopped"), put(world.procs, number, ENDED)
            yield f"{number}: nobody joins", world._replace(ends=ends, procs=procs)


def _requests(setting: Setting, world: World, number: int) -> Iterator[Move]:
    if may(world, "sigterm") and setting.attempt.parties[number].part is not PartyRole.NEWCOMER:
        yield f"SIGTERM at {number}", setting.after(spend(world, "sigterm"), number, on.Sigterm())
    if world.plan and number not in world.newer:
        takes_over, lost = world.plan
        known = world._replace(newer=world.newer | {number})
        phase = setting.phase(world, number)
        newcomer = setting.state(world, number).joins
        runs = (
            {RUN, NEXT}
            if phase in (PartyPhase.VOTED, PartyPhase.ASKING, PartyPhase.DECIDING)
            else {_run_of(setting, world, number)}
        )
        killed = runs <= lost or (newcomer and phase in UNVOTED and takes_over != NEXT) or phase is PartyPhase.JOINING
        if killed:
            yield (
                f"the agent kills {number}",
                known._replace(procs=put(known.procs, number, ENDED), ends=put(known.ends, number, "killed")),
            )
        else:
            yield f"{number} learns of r+2", setting.after(known, number, on.Newer(takes_over))


def _run_of(setting: Setting, world: World, number: int) -> int:
    joined = setting.state(world, number).joins or setting.phase(world, number) is PartyPhase.TOOK_OVER
    return NEXT if joined else RUN


def _may_form(setting: Setting, world: World) -> bool:
    """Whether all ranks of r+1 are there to begin it in place."""

    def there(number: int) -> bool:
        if setting.state(world, number).joins:
            return setting.phase(world, number) is PartyPhase.JOINING and world.procs[number] == UP
        free = world.ends[number] == "checkpointed" or (world.ends[number] == "peer-lost" and not world.told[number])
        return world.procs[number] == ENDED and free and world.told[number] != "abort" and world.plan is None

    return all(there(number) for number in setting.members)


def _newer_run(setting: Setting, world: World) -> Iterator[Move]:
    log = world.log if "mark" not in setting.without else world.log.replace("C", "c").replace("F", "f")
    if (
        world.up
        and read(log) is Verdict.ENDED
        and "p" not in world.log
        and "n" not in world.log
        and _may_form(setting, world)
    ):
        yield "r+1 begins in place", world._replace(log=world.log + "p")
    joined = [setting.phase(world, number) is PartyPhase.TOOK_OVER for number in setting.members]
    if (
        all(joined)
        and all(world.procs[number] == UP for number in setting.members)
        and world.plan
        and "e" not in world.log
    ):
        takes_over, lost = world.plan
        if takes_over != NEXT and NEXT not in lost and world.up and world.log[-1] == "h":
            yield "r+1 saves and ends", world._replace(log=world.log + "e")


def _later_run(setting: Setting, world: World) -> Iterator[Move]:
    """The operator plans r+2 from what it sees, and r+2 opens by the log's rule."""
    if world.plan is None and may(world, "plan"):
        for takes_over, lost in _plans(setting, world):
            yield (
                f"the operator plans r+2: {takes_over}, lost {sorted(lost)}",
                spend(world, "plan")._replace(plan=(takes_over, lost)),
            )
    if world.plan and world.up and "n" not in world.log and _opens_later(setting, world):
        yield "r+2 opens", world._replace(log=world.log + "n")


def keeps_what_went(setting: Setting, world: World, number: int) -> bool:
    """Whether this leaver has read go, and keeps the state in its seat: to an observer it has not ended."""
    return world.ends[number] == ExitKind.PEER_LOST and setting.state(world, number).word is HandoverWord.GO


def _plans(setting: Setting, world: World) -> list[tuple[int | None, frozenset[int]]]:
    """Right in both worlds: the operator cannot know whether the hand-over has taken place."""
    dead = {
        party.part
        for party in setting.attempt.parties
        if gone(world, party.number)
        and world.ends[party.number] != "handed-over"
        and not keeps_what_went(setting, world, party.number)
    }
    if PartyRole.STAYER in dead:
        return [(None, frozenset({RUN, NEXT}))]
    if PartyRole.LEAVER in dead:
        return [(NEXT, frozenset({RUN}))]
    if PartyRole.NEWCOMER in dead:
        return [(RUN, frozenset({NEXT}))]
    return [(None, frozenset()), (RUN, frozenset()), (NEXT, frozenset())]


def _opens_later(setting: Setting, world: World) -> bool:
    takes_over, lost = world.plan or (None, frozenset())
    last = NEXT if "h" in world.log or "p" in world.log else RUN
    ended = {RUN: any(letter in world.log for letter in ENDS_OLDER), NEXT: "e" in world.log}
    if "block" in setting.without and takes_over is not None:
        return ended[takes_over] or takes_over in lost
    return ended[last] or last in lost


def _rescues(setting: Setting, world: World) -> Iterator[Move]:
    """The agent of a leaver commits its trainer's image, unless the log says that this is over.

    Its PUT stands right behind the last entry it read, so nothing comes in between. To read first is a rule of its own.
    """
    over = "rescue-reads" not in setting.without and any(letter in world.log for letter in (*NEWER, *ENDS_OLDER))
    for rank in setting.old if world.up and "rescue" not in setting.without and not over else ():
        if setting.attempt.parties[rank].part is PartyRole.LEAVER and world.ends[rank] in ("peer-lost", "killed"):
            mark = "f" if "rescue-marks" in setting.without else "F"
            log, ends = world.log + mark, put(world.ends, rank, "rescued")
            yield f"the agent of {rank} commits its image", world._replace(log=log, ends=ends)


def _faults(setting: Setting, world: World) -> Iterator[Move]:
    decider = setting.decider
    for number in setting.everybody:
        if world.procs[number] != UP:
            continue
        if may(world, "kill"):
            killed = spend(world, "kill")
            yield (
                f"kill -9 {number}",
                killed._replace(procs=put(killed.procs, number, KILLED), jobs=put(killed.jobs, number, frozenset())),
            )
        if may(world, "cut") and number != decider and number not in world.cut:
            yield f"the link of {number} is cut", spend(world, "cut")._replace(cut=world.cut | {number})
        stands = setting.phase(world, number) in STANDING or setting.state(world, number).joins
        if may(world, "freeze") and stands and (has_stopped(setting, world) or "connect" in world.jobs[number]):
            yield f"{number} freezes", spend(world, "freeze")._replace(procs=put(world.procs, number, FROZEN))
    for number in setting.everybody:
        if world.procs[number] == FROZEN:
            yield f"thaw {number}", world._replace(procs=put(world.procs, number, UP))
    if world.clock < setting.late and any(
        setting.phase(world, number) not in TRAINING or setting.state(world, number).joins
        for number in setting.everybody
    ):
        yield f"clock {world.clock + 1}", world._replace(clock=world.clock + 1)
