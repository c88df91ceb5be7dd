"""The ranks of one run, together: how they find each other, their collectives, and the steps they train.

Modelled after `perdure.group` and the real session, as far as other pods can notice: rank 0 listens at its address, the
store's first key is the run, a collective needs every rank, a dead peer is noticed only where its reset arrives, and
all ranks read a request to exit one step after it was made. One timer for the whole run does the steps: ranks in
lockstep need no coroutine each.

`trainer` calls it; one `Fabric` serves all members of a history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import PeerLost
from perdure.loop.data.sampling import SamplingPlan
from tests.simulation.interface import Behaviour, Network
from tests.simulation.store import OUTSIDE, Changes
from tests.simulation.witness import Trained, Trouble, Witness

COLLECTIVE_SECONDS: Final = 1800.0
STALLED_SECONDS: Final = 2.0
"""How often a collective that cannot go on is looked at again."""
BATCH: Final = 8
LOADER: Final = "train"


class ScriptError(Exception):
    """The user's own code raised."""


@dataclass
class Track:
    """Where training stands: the real plan of samples, walked by whole batches."""

    plan: SamplingPlan
    epochs: int
    step: int = 0
    epoch: int = 0
    consumed: int = 0
    saved: bool = False

    @classmethod
    def of(cls, behaviour: Behaviour) -> Track:
        """As many epochs as divide the goal; the last batch of each is ragged."""
        epochs = next(count for count in (4, 3, 2, 1) if behaviour.goal % count == 0)
        samples = behaviour.goal // epochs * BATCH
        return cls(SamplingPlan(LOADER, samples - 3 if samples > 3 else samples, BATCH), epochs)

    @property
    def at_goal(self) -> bool:
        """Whether nothing is left to train."""
        return self.epoch >= self.epochs or (self.epoch == self.epochs - 1 and self.consumed >= self.plan.end)

    def resume(self, step: int, epoch: int, cursor: Mapping[str, Any]) -> None:
        """Go on from a commit."""
        self.step, self.epoch, self.saved = step, epoch, True
        self.consumed = self.plan.resume(cursor, epoch)

    def advance(self) -> tuple[int, int]:
        """One step; the range of samples it consumed."""
        self.begin_epoch()
        start = self.consumed
        self.consumed = min(start + BATCH, self.plan.end)
        self.step, self.saved = self.step + 1, False
        return start, self.consumed

    def begin_epoch(self) -> None:
        """The body of the epoch before is over."""
        if self.consumed >= self.plan.end:
            self.epoch, self.consumed, self.saved = self.epoch + 1, 0, False


@dataclass(frozen=True)
class Verdict:
    """Why the ranks stopped training for a moment."""

    exit: bool = False
    save: str = ""
    """The reason of a periodic commit."""
    goal: bool = False
    attempt: int = 0
    """The run that every rank is ready to become."""


@dataclass(eq=False)
class Seat:
    """One rank of a gang."""

    rank: int
    ip: str
    rng: random.Random
    requested: Callable[[], bool]
    stepped: Callable[[int], None]
    out_of_memory: Callable[[], None]
    ready_for: Callable[[], int] = lambda: 0
    """Which run the rank would become at the next hand-out."""
    leaving: bool = False
    """It closes the log before the first step, and steps no more."""
    hung: bool = False
    frozen: bool = False
    """Stopped, for a while."""
    gone: bool = False
    waiting: asyncio.Future[Any] | None = None

    @property
    def is_still(self) -> bool:
        """Whether its process does nothing."""
        return self.hung or self.frozen


class Gang:
    """All ranks of one run that have met."""

    def __init__(self, name: str, world: int, network: Network, behaviour: Behaviour, told: Told) -> None:
        self.name, self.world = name, world
        self.track = Track.of(behaviour)
        self.seats: dict[int, Seat] = {}
        self.arrived = Changes()
        self.offered = False
        """Whether any rank was ever offered a hand-over."""
        self.save_asked = False
        """Whether a rank was asked for a save that was not made since."""
        self._network, self._behaviour, self._told = network, behaviour, told
        self._said: dict[int, Any] = {}
        self._training = False
        self._timer: asyncio.TimerHandle | None = None
        self._stepping = False
        self._stalled_since: float | None = None
        self._pending_exit = False
        self._pending_attempt = 0
        self._gone = 0

    # meeting

    def join(self, seat: Seat) -> None:
        """One more rank is here."""
        self.seats[seat.rank] = seat
        self.arrived.tell()

    def holds(self, rank: int) -> bool:
        """Whether a living process is that rank: a copy of its pod finds nothing to connect to."""
        return rank in self.seats and not self.seats[rank].gone

    @property
    def complete(self) -> bool:
        """Whether all ranks are here."""
        return len(self.seats) == self.world

    def leave(self, seat: Seat) -> None:
        """The rank's process has ended: every reachable peer gets a reset."""
        seat.gone, seat.waiting = True, None
        self._gone += 1
        self.arrived.tell()
        self._look()

    def lost_by(self, seat: Seat) -> Seat | None:
        """A rank that is gone, as far as this one can know."""
        reach = self._network.reachable
        if not self._gone:
            return None
        return next((other for other in self.seats.values() if other.gone and reach(other.ip, seat.ip)), None)

    # collectives

    async def gather(self, seat: Seat, value: Any) -> list[Any]:
        """Every rank's value, by rank. PeerLost where one is gone."""
        found: list[Any] = await self._take_part(seat, value, training=False)
        return found

    async def broadcast(self, seat: Seat, value: Any) -> Any:
        """Rank 0's value."""
        return (await self.gather(seat, value))[0]

    async def train(self, seat: Seat) -> Verdict:
        """Step until all have something else to do."""
        verdict: Verdict = await self._take_part(seat, None, training=True)
        return verdict

    async def _take_part(self, seat: Seat, value: Any, *, training: bool) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        seat.waiting, self._said[seat.rank], self._training = answer, value, training
        self._look()
        return await answer

    def _look(self) -> None:
        """The collective goes on, fails, or waits."""
        if self._stepping and self._timer and not self._gone:
            return
        self._tell_losses()
        if not any(_waits(seat) for seat in self.seats.values()):
            self._rest()
            return
        if len(self._said) == self.world and self._whole():
            self._stalled_since = None
            if not self._training:
                self._rest()
                self._finish([self._said[rank] for rank in range(self.world)])
            else:
                self._begin_step()
        elif self._broken():
            self._stall()

    def _step(self) -> None:
        """A step's time is over: it is done, unless a rank is missing."""
        self._timer = None
        if not self._whole() or self._trouble():
            self._stall()
            return
        track = self.track
        if any(seat.leaving for seat in self.seats.values()):
            self._told.trained_partly()
            for seat in self.seats.values():
                if not seat.leaving:
                    seat.stepped(track.step + 1)  # it is one step ahead of the rank that closes the log
            self._stall()
            return
        start, stop = track.advance()
        self._told.trained(track, start, stop)
        for seat in self.seats.values():
            seat.stepped(track.step)
        verdict = self._check()
        if verdict:
            self._finish(verdict)
        else:
            self._begin_step()

    def _begin_step(self) -> None:
        pace = self._behaviour.step_seconds * self.seats[0].rng.uniform(0.8, 1.3)
        self._wake_in(pace, stepping=True)

    def _check(self) -> Verdict | None:
        """What all ranks agree on after a step; sent in one step, read in the next, except in a world of one.

        If all were ready to become another run, the newest vote is read, too: it alone counts for that.
        """
        said = any(seat.requested() for seat in self.seats.values())
        named = self._named() if self.offered else 0
        agreed, attempt = self._pending_exit, self._pending_attempt
        self._pending_exit, self._pending_attempt = said, named
        if self.world == 1 or (attempt and not agreed):
            agreed, attempt, self._pending_exit, self._pending_attempt = said, named, False, 0
        else:
            attempt = 0
        goal = self.track.at_goal
        if agreed and not goal:
            return Verdict(exit=True)
        asked, self.save_asked = self.save_asked, False
        due = "goal" if agreed else "cadence" if self._told.due(self.track.step) else "asked" if asked else ""
        return Verdict(save=due, goal=goal, attempt=0 if goal else attempt) if due or goal or attempt else None

    def _named(self) -> int:
        """The run that all ranks name, 0 where they do not name the same."""
        named = {seat.ready_for() for seat in self.seats.values()}
        return named.pop() if len(named) == 1 else 0

    def _trouble(self) -> bool:
        """Whether the script's own faults keep a rank from finishing this step."""
        behaviour, step = self._behaviour, self.track.step + 1
        if any(seat.is_still for seat in self.seats.values()):
            return True
        if behaviour.oom_at_step == step:
            self._told.trouble("out of memory")
            self.seats[step % self.world].out_of_memory()
            return True
        if behaviour.crash_per_step or behaviour.hang_per_step:
            for seat in self.seats.values():
                luck = seat.rng.random()
                if luck < behaviour.crash_per_step and seat.waiting and not seat.waiting.done():
                    self._told.trouble("a script raises")
                    seat.waiting.set_exception(ScriptError(f"step {step}: loss is nan"))
                    return True
                seat.hung = seat.hung or luck > 1 - behaviour.hang_per_step
        return any(seat.is_still for seat in self.seats.values())

    def _finish(self, result: Any) -> None:
        self._said = {}
        for seat in self.seats.values():
            if seat.waiting and not seat.waiting.done():
                seat.waiting.set_result(result)
            seat.waiting = None

    def _whole(self) -> bool:
        """Whether every rank lives and hears the next one."""
        if self._gone:
            return False
        if self.world == 1:
            return True
        reach, seats = self._network.reachable, self.seats
        return all(reach(seats[rank].ip, seats[(rank + 1) % self.world].ip) for rank in range(self.world))

    def _broken(self) -> bool:
        return len(self._said) == self.world or self._gone > 0

    def _tell_losses(self) -> None:
        if not self._gone:
            return
        for seat in list(self.seats.values()):
            if _waits(seat) and seat.waiting and not seat.is_still:
                lost = self.lost_by(seat)
                if lost:
                    seat.waiting.set_exception(PeerLost(f"rank {lost.rank} is gone"))

    def _stall(self) -> None:
        """A rank sends nothing: wait and look again, until the collective's own timeout."""
        loop = asyncio.get_running_loop()
        if not self._gone:
            self._told.trouble("a rank is cut off, hangs or closes the log")
        self._stalled_since = loop.time() if self._stalled_since is None else self._stalled_since
        if loop.time() - self._stalled_since >= COLLECTIVE_SECONDS:
            for seat in list(self.seats.values()):
                if _waits(seat) and seat.waiting and not seat.is_still:
                    seat.waiting.set_exception(PeerLost(f"no answer for {COLLECTIVE_SECONDS:g} s"))
            return
        self._wake_in(STALLED_SECONDS, stepping=False)

    def _wake_in(self, seconds: float, *, stepping: bool) -> None:
        if self._timer:
            self._timer.cancel()
        self._stepping = stepping
        act = self._step if stepping else self._again
        self._timer = asyncio.get_running_loop().call_later(seconds, act, context=OUTSIDE)

    def _rest(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer, self._stepping = None, False

    def _again(self) -> None:
        self._timer = None
        self._look()


def _waits(seat: Seat) -> bool:
    return not seat.gone and seat.waiting is not None and not seat.waiting.done()


class Told:
    """A gang's questions and reports about its run."""

    def __init__(self, uid: str, run: int, due: Callable[[int], bool], witness: Witness, step: Callable[[int], None]):
        self.uid, self.run, self.due = uid, run, due
        self._witness, self._step = witness, step

    def trained(self, track: Track, start: int, stop: int) -> None:
        """A step is done."""
        self._witness.trained.append(Trained(self.uid, self.run, track.step, track.epoch, start, stop))
        self._step(track.step)

    def trained_partly(self) -> None:
        """A step is done by some, and tell of it."""
        self._witness.partly.add((self.uid, self.run))

    def trouble(self, what: str) -> None:
        """A rank asked to save now may fail for this."""
        self._witness.trouble.append(Trouble(asyncio.get_running_loop().time(), what))


class Fabric:
    """Who listens where."""

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, int], Gang] = {}
        self.changed = Changes()

    @classmethod
    def of(cls, network: Network) -> Fabric:
        """The one of this history."""
        found: Fabric = network.shared.setdefault("fabric", cls())
        return found

    def listen(self, ip: str, port: int, gang: Gang) -> bool:
        """Whether the port was free."""
        if (ip, port) in self._listeners:
            return False
        self._listeners[ip, port] = gang
        self.changed.tell()
        return True

    def close(self, gang: Gang) -> None:
        """Rank 0 is gone."""
        self._listeners = {address: other for address, other in self._listeners.items() if other is not gang}
        self.changed.tell()

    def find(self, ip: str, port: int, name: str) -> Gang | None:
        """The gang that listens there, if it is the wanted one."""
        gang = self._listeners.get((ip, port))
        return gang if gang and gang.name == name else None
