"""What holds in every possible world, and what has to be true where nothing more happens."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.live.protocol.machine import PartyPhase, known
from perdure.live.protocol.parties import PartyRole
from perdure.live.protocol.state import STANDING
from perdure.wire import ExitKind, HandoverWord
from tests.unit.runtime.live.moves import ENDS_OLDER, NEWER, has_stopped, keeps_what_went
from tests.unit.runtime.live.small import ENDED, FROZEN, KILLED, NEXT, RUN, UP, Setting, World, spent

OLDER = "ocfCFr"


def broken(setting: Setting, world: World) -> Iterator[str]:
    """The invariants that do not hold in this world."""
    phases = [setting.phase(world, number) for number in setting.everybody]
    went = [number for number in setting.everybody if _went(world, phases[number], number)]
    taken = "h" in world.log
    begun = next((place for place, letter in enumerate(world.log) if letter in NEWER), len(world.log))
    if went and not taken:
        yield "H1: somebody went, and the log does not say so"
    if taken and len(world.voted) < len(setting.everybody):
        yield "H2: taken over without every vote"
    if taken and "r" in world.log:
        yield "H2: both Opened and Refused count"
    if taken and any(letter in "fF" for letter in world.log[:begun]):
        yield "H2: taken over behind the older run's end"
    trains = [rank for rank in setting.old if phases[rank] is PartyPhase.ABORTED and world.procs[rank] == UP]
    trains = [rank for rank in trains if world.rounds[rank] >= 0 or rank not in world.voted]
    if taken and trains:
        yield "H3: the older run trains although it was taken over"
    if any(letter in OLDER for letter in world.log[begun:]):
        yield "H4: the older run wrote after a newer one had opened"
    left = {phases[rank] for rank in setting.old if world.rounds[rank] >= 0}
    if {PartyPhase.ABORTED, PartyPhase.SAVING} <= left and not world.agreed and not world.wants:
        yield "H7: of the older run's ranks one trains and one saves"
    if world.aborted and ("p" in world.log or taken):
        yield "H9: an aborted run opened"
    yield from _stopped_early(setting, world)
    yield from _sent_away(setting, world)
    yield from _told_falsely(setting, world)
    if _harmless(setting, world) and any(_loses(setting, world, number) for number in setting.everybody):
        yield "H6: finished steps are lost although nobody was killed"


def _stopped_early(setting: Setting, world: World) -> Iterator[str]:
    stopped = any(setting.phase(world, rank) in STANDING for rank in setting.old)
    if stopped and len(world.connected) < len(setting.everybody):
        yield "H14: an old rank has stopped before every party was connected"


def _sent_away(setting: Setting, world: World) -> Iterator[str]:
    """Where nothing else goes wrong, an older run that cannot change live ends, and its newcomers begin with it."""
    found = spent(setting, world, "obstacle")
    if not found or any(count for fault, count in setting.faults.items() if fault != "obstacle"):
        return
    in_time = world.clock == 0 or (world.clock < 3 and found == len(setting.old))  # a rank without one may be late
    if in_time and ExitKind.HANDOVER_FAILED.value in world.ends:
        yield "H15: a newcomer has ended, and the older run ends to begin with it in place"


def _told_falsely(setting: Setting, world: World) -> Iterator[str]:
    told = [one for number in setting.everybody if (one := known(setting.state(world, number)))]
    if "h" not in world.log:
        if any(one.word is HandoverWord.GO for one in told):
            yield "H11: an outcome says go, and the log does not"
    elif any(one.word is HandoverWord.ABORT or not one.voted for one in told):
        yield "H11: an outcome says that nothing comes of it, and the newer run has taken over"


def _went(world: World, phase: PartyPhase, number: int) -> bool:
    return phase is PartyPhase.TOOK_OVER or world.ends[number] == ExitKind.HANDED_OVER.value


def _loses(setting: Setting, world: World, number: int) -> bool:
    """Except a party that keeps its seat, because it may be the last: the silent ones go on."""
    state = setting.state(world, number)
    keeps = (state.joins and state.deaf and setting.attempt.world == 1) or keeps_what_went(setting, world, number)
    return world.ends[number] == ExitKind.PEER_LOST.value and not keeps


def _harmless(setting: Setting, world: World) -> bool:
    """No process was killed or stood still, and no run was declared lost."""
    lost = world.plan is not None and bool(world.plan[1])
    harmful = ("kill",) if "lost" in setting.without else ("kill", "freeze")
    return not any(spent(setting, world, fault) for fault in harmful) and not lost


def stuck(setting: Setting, world: World) -> Iterator[str]:
    """What is wrong if only deadlines are left, or not even these."""
    waiting = [
        number
        for number in setting.everybody
        if world.procs[number] == UP
        and (setting.phase(world, number) in STANDING or _waits_in_restore(setting, world, number))
    ]
    if waiting and world.clock == 3:
        yield f"H10: {[setting.phase(world, number).value for number in waiting]} for ever"
    if waiting and world.clock < 3 and FROZEN not in world.procs and _harmless(setting, world):
        yield f"H10: {[setting.phase(world, number).value for number in waiting]} up to its deadline without a cause"
    if _last_is_thrown_away(setting, world):
        yield "H13: whoever held the newest state alone has ended, and kept nothing of it"
    if _went_unheard(setting, world):
        yield "H13: the only rank of the newer run has died before it knew, and each leaver has let go of the state"
    if _thrown_away(setting, world):
        yield f"H13: an old rank stood at the newest step, and nothing of it is left behind {world.log}"
    if world.plan and "n" not in world.log and world.clock == 3 and not any(p == FROZEN for p in world.procs):
        last = NEXT if "h" in world.log or "p" in world.log else RUN
        members = setting.members if last == NEXT else tuple(setting.old)
        if (
            last in world.plan[1]
            or "e" in world.log
            or all(world.procs[n] == ENDED and world.ends[n] == "checkpointed" for n in members)
        ):
            yield f"P5: r+2 never opens behind {world.log}"


def _thrown_away(setting: Setting, world: World) -> bool:
    """Whether no rank trains on from the older run's last step, of which one of its ranks has left an image."""
    left = [rank for rank in setting.old if world.procs[rank] == ENDED and world.ends[rank] in ("peer-lost", "killed")]
    seats = [rank for rank in left if setting.attempt.parties[rank].part is PartyRole.STAYER]
    over = any(letter in world.log for letter in (*NEWER, *ENDS_OLDER))
    alive = any(world.procs[rank] in (UP, FROZEN) for rank in setting.old)
    return bool(left) and world.up and not (seats or over or alive)


def _last_is_thrown_away(setting: Setting, world: World) -> bool:
    """Whether the only old rank has died in the stop, no party said abort, and a newcomer that had voted just ended."""
    died = len(setting.old) == 1 and world.procs[0] == KILLED and setting.phase(world, 0) in STANDING
    voted = [number for number in world.voted if setting.state(world, number).joins]
    kept = any(world.procs[number] != ENDED or world.ends[number] == "peer-lost" for number in voted)
    return died and bool(voted) and not kept and not world.said and "h" not in world.log


def _went_unheard(setting: Setting, world: World) -> bool:
    """Whether all that may hold the state has ended, and the newer run's only pod has died before it knew."""
    ranks = [party.number for party in setting.attempt.parties if party.new is not None]
    died = setting.attempt.alone and all(world.procs[rank] == KILLED for rank in ranks)
    knew = any(setting.phase(world, rank) is PartyPhase.TOOK_OVER for rank in ranks)
    if not died or knew or "h" not in world.log:
        return False
    left = [rank for rank in setting.attempt.leavers if world.procs[rank] != KILLED]
    return bool(left) and all(world.ends[rank] == ExitKind.HANDED_OVER.value for rank in left)


def slow(setting: Setting, world: World) -> Iterator[str]:
    """What is wrong if nothing more happens before the limit: an attempt's acts take seconds, the limit minutes."""
    waiting = [
        setting.phase(world, number).value
        for number in setting.everybody
        if world.procs[number] == UP
        and setting.phase(world, number) in STANDING
        and (number in setting.old or has_stopped(setting, world))
    ]
    if waiting and world.up:
        yield f"H12: {waiting} up to the limit, though whoever they wait for is gone or silent"


def _waits_in_restore(setting: Setting, world: World, number: int) -> bool:
    return setting.state(world, number).joins and setting.phase(world, number) in (
        PartyPhase.MOVING,
        PartyPhase.PREPARING,
    )
