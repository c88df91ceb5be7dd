"""A job of real agents whose members are replaced one at a time, with a party killed or frozen in each hand-over.

A test stands in for the operator here: it sees the members' reports and how they end, never a trainer's knowledge. If
it cannot know which of two runs is current, it names both as lost, as the operator does.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from e2e.harness.lab import DIGITS
from e2e.harness.local_members import SECONDS, LocalMember, LocalMembers
from perdure.live.protocol.timing import SILENCE_SECONDS
from perdure.wire import Leave, Outcome
from tests.handover import forking

HOLDING: Final = Path(__file__).parents[2] / "e2e" / "scenarios" / "trainers" / "holding.py"
SCRIPT: Final = DIGITS / "train.py"
WORLD: Final = 3
SPARES: Final = 2
LIMIT_SECONDS: Final = 90
LONG_LIMIT_SECONDS: Final = 1800
UNPACED: Final = 1000
"""The run that is not slowed down."""
PACE: Final = {
    "PACE_SECONDS": "0.1",
    "PACE_HOLDS": "10",
    "PACE_HOLD_SECONDS": "3",
    "PACED_RUNS": str(UNPACED - 1),
}
BLINK_SECONDS: Final = 1.0
LONG_SECONDS: Final = 12.0
"""The old ranks wait 10 s in the stop."""


def arguments(epochs: int) -> list[str]:
    """For the script."""
    return [f"--epochs={epochs}", "--batch=48", "--deterministic"]


class Phase(StrEnum):
    """Of a hand-over; holding.py tells what each means."""

    CONNECTING = "connecting"
    RECEIVING = "receiving"
    VOTING = "voting"
    PUT = "put"


class Victim(StrEnum):
    """Whom it happens to."""

    STAYER = "stayer"
    LEAVER = "leaver"
    DECIDER = "decider"
    NEWCOMER = "newcomer"


class Harm(StrEnum):
    """What happens."""

    KILLED = "killed"
    BLINKS = "blinks"  # stands still for a moment
    FROZEN = "frozen"  # stands still until the others have decided, or nearly
    STUCK = "stuck"  # frozen until its pod is killed, when the others have finished
    AGENT = "agent"  # the same, of the agent: its trainer goes on


class Came(StrEnum):
    """The result of a hand-over."""

    WENT = "went"
    STAYED = "stayed"
    LOST = "lost"


FOR_GOOD: Final = (Harm.KILLED, Harm.STUCK)


@dataclass(frozen=True)
class Fault:
    """Something that happens in a hand-over."""

    harm: Harm
    victim: Victim
    phase: Phase

    def __str__(self) -> str:
        return f"{self.victim}-{self.harm}-{self.phase}"

    @property
    def expected(self) -> frozenset[Came]:
        """The possible results. A party that is only frozen for a while costs nothing."""
        if self.harm not in FOR_GOOD:
            return frozenset({Came.WENT, Came.STAYED})
        if self.phase is Phase.PUT:
            return frozenset({Came.WENT if self.victim is Victim.LEAVER else Came.LOST})
        return frozenset({Came.STAYED if self.victim is Victim.NEWCOMER else Came.LOST})


@dataclass
class Job:
    """Three ranks, or so many, and spare members that warm up; used as a context manager."""

    folder: Path
    epochs: int
    script: Path = SCRIPT
    world: int = WORLD
    more: Sequence[str] = ()
    """Of the script's arguments."""
    environ: Mapping[str, str] = field(default_factory=dict)
    run: int = 1
    """The one that is on."""
    planned: int = 1
    """The newest number that was used."""
    ranks: list[str] = field(default_factory=list)
    spares: list[str] = field(default_factory=list)
    came: list[Came] = field(default_factory=list)
    """Of each hand-over."""

    def __post_init__(self) -> None:
        self._numbers = count()
        self._hold, self._hurry = self.folder / "hold", self.folder / "hurry"
        self._ending: list[str] = []
        """Members that have nothing to do any more."""
        environ = PACE | {"HOLD": str(self._hold), "HOLD_SECONDS": "60", "HURRY": str(self._hurry)}
        environ |= {"PERDURE_EVERY_STEPS": "10", "SILENCE_SECONDS": str(SILENCE_SECONDS), **self.environ}
        argv = [sys.executable, str(HOLDING), str(self.script), *arguments(self.epochs), *self.more]
        self.members = forking.members(argv, self.folder, environ)

    def __enter__(self) -> Self:
        with ExitStack() as begun:  # what fails here ends its processes as well
            begun.push(self.members.__enter__())
            self.ranks, self.spares = self._names(self.world), self._names(SPARES)
            self.members.first_run(*self.ranks, beside=self.spares)
            self._trains(self.ranks, 1)
            begun.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.members.__exit__(kind, error, trace)

    def hand_over(self, fault: Fault, rank: int) -> Came:
        """Replaces this rank, and disturbs a party meanwhile; returns the result."""
        old, new = self._planned_ranks(rank)
        newcomer = new[rank]
        staying = [name for name in old if name != old[rank]]
        of = {Victim.DECIDER: staying[0], Victim.STAYER: staying[1], Victim.LEAVER: old[rank]}
        victim = self.members.members[{**of, Victim.NEWCOMER: newcomer}[fault.victim]]
        self.planned = following = self.planned + 1
        read = {name: len(self._said(name)) for name in {*old, *new}}
        holder = Victim.DECIDER if fault.phase is Phase.PUT else fault.victim
        with self._held(f"{fault.phase} {holder} {following}", {**of, Victim.NEWCOMER: newcomer}[holder]) as moment:
            limit = LONG_LIMIT_SECONDS if fault.harm is Harm.STUCK else LIMIT_SECONDS
            self.members.moves(old, new, run=self.run, following=following, limit=limit)
            moment.reached()
            if fault.phase is Phase.PUT:
                self._waits_for_traces(following)
            process = victim.process.pid if fault.harm is Harm.AGENT else _trainer(victim)
            os.kill(process, signal.SIGKILL if fault.harm is Harm.KILLED else signal.SIGSTOP)
        witnesses = {name: read[name] for name in staying if name != victim.name or fault.harm not in FOR_GOOD}
        others = {name: at for name, at in witnesses.items() if name != victim.name}
        if fault.harm is Harm.STUCK:
            self._ends_what_it_did(fault, following, others)
            self.members.kill(victim.name)
        elif fault.harm is not Harm.KILLED:
            self._stands_still(fault.harm, following, others)
            os.kill(process, signal.SIGCONT)
        came = self._what_came(following, witnesses)
        self._hurry.unlink()
        self._goes_on(came, following, old, new, victim.name if fault.harm in FOR_GOOD else "")
        self.came.append(came)
        return came

    def replace(self, rank: int) -> Came:
        """Replaces this rank, and disturbs nobody; returns the result."""
        old, new = self._planned_ranks(rank)
        self.planned = following = self.planned + 1
        witnesses = {name: len(self._said(name)) for name in old if name in new}
        self.members.moves(old, new, run=self.run, following=following, limit=LIMIT_SECONDS)
        came = self._what_came(following, witnesses)
        self._hurry.unlink()
        self._goes_on(came, following, old, new, "")
        self.came.append(came)
        return came

    def trainer(self, rank: int) -> int:
        """The process that trains there."""
        return _trainer(self.members.members[self.ranks[rank]])

    def stands_without_agents(self, seconds: float) -> None:
        """Every agent is frozen for so long, and training goes on; then each catches up."""
        steps = {name: self._steps_said(name) for name in self.ranks}
        for name in self.ranks:
            self.members.kill(name, signal.SIGSTOP)
        over = time.monotonic() + seconds
        self.members.waits("the agents have stood still", lambda: time.monotonic() > over)
        self.members.waits("all train on", lambda: all(self._steps_said(name) > steps[name] for name in self.ranks))
        for name in self.ranks:
            self.members.kill(name, signal.SIGCONT)

    def _steps_said(self, name: str) -> int:
        return self._said(name).count(f"PACE run {self.run}: ")

    def completes(self) -> list[Outcome]:
        """Lets it train to its end without any pace; the members' outcomes."""
        self._waits_for_ends()
        self.members.begins(UNPACED, self.ranks)
        return [self.members.members[name].outcome() for name in self.ranks]

    def ended(self) -> dict[str, Outcome]:
        """By name the outcomes of all members that have ended and left one."""
        found = {}
        for name, member in self.members.members.items():
            if member.process.poll() is not None and (member.folder / "termination-log").exists():
                found[name] = member.outcome()
        return found

    # Waits.

    def _said(self, name: str) -> str:
        return self.members.members[name].said

    def _waits_until_warm(self, name: str) -> None:
        self.members.waits(f"{name} is warm", lambda: self.members.members[name].warm)

    def _trains(self, names: list[str], run: int) -> None:
        def trains() -> bool:
            return all(f"PACE run {run}: 2 steps" in self._said(name) for name in names)

        self.members.waits(f"run {run} trains", trains)

    def _waits_for_traces(self, run: int) -> None:
        """Until each rank's last step before `run` is on record: a killed one then takes no evidence with it."""
        opened = next(entry for entry in self.members.root.entries() if (entry.kind, entry.run) == ("Opened", run))

        def traced() -> bool:
            steps = self.members.root.trace().steps
            return (
                len({one.rank for one in steps if (one.run, one.step) == (self.run, opened.body["step"])}) == self.world
            )

        self.members.waits("all traces of the last step", traced)

    def _stands_still(self, harm: Harm, following: int, others: dict[str, int]) -> None:
        end = time.monotonic() + (BLINK_SECONDS if harm is Harm.BLINKS else LONG_SECONDS)

        def over() -> bool:
            decided = harm is not Harm.BLINKS and all(self._words(name, at, following) for name, at in others.items())
            return decided or time.monotonic() > end

        self.members.waits("the others have decided", over)

    def _ends_what_it_did(self, fault: Fault, following: int, others: dict[str, int]) -> None:
        """Only the parties have noticed anything, and their limit is later than a test's."""

        def known() -> bool:
            if fault.phase is Phase.PUT:  # what comes behind go is a training like any other
                return all(self._words(name, at, following) for name, at in others.items())
            return all(self._came_to(self._said(name)[at:], following) for name, at in others.items())

        self.members.waits("the others have ended what they did", known)

    def _words(self, name: str, read: int, following: int) -> str:
        """What an agent has said of the hand-over: how it ended there."""
        said = self._said(name)[read:]
        found = re.search(rf"run {following} has (?:not )?taken over|ended: (?:peer-lost|failed)", said)
        return found[0] if found else ""

    def _what_came(self, following: int, witnesses: dict[str, int]) -> Came:
        """Once all of them show the same, or one shows a loss."""
        found: set[Came | None] = {None}

        def known() -> bool:
            found.clear()
            found.update(self._came_to(self._said(name)[read:], following) for name, read in witnesses.items())
            return None not in found and (len(found) == 1 or Came.LOST in found)

        self.members.waits(f"what has come of run {following}", known)
        return Came.LOST if Came.LOST in found else next(came for came in found if came)

    def _came_to(self, said: str, following: int) -> Came | None:
        if re.search(r"ended: (?:peer-lost|failed|fenced)", said):
            return Came.LOST
        if f"PACE run {following}: 2 steps" in said:
            return Came.WENT
        _, aborted, after = said.partition(f"run {following} has not taken over: abort")
        return Came.STAYED if aborted and after.count(f"PACE run {self.run}: ") > 1 else None

    # What the operator does.

    def _goes_on(self, came: Came, following: int, old: list[str], new: list[str], killed: str) -> None:
        match came:
            case Came.WENT:
                self.run, self.ranks = following, new
                self._ends(set(old) - set(new))
            case Came.STAYED:
                self._ends(set(new) - set(old))
            case Came.LOST:
                self._begins_anew(following, [name for name in old if name in new and name != killed])
                self._ends(set(old) - set(self.ranks) | set(new) - set(self.ranks))

    def _begins_anew(self, following: int, survivors: list[str]) -> None:
        """It is unknown which of the two runs is current, and each has lost a member: both are named."""
        self._keep_spares()
        fresh = [self.spares.pop(0) for _ in range(self.world - len(survivors))]
        for name in fresh:
            self._waits_until_warm(name)
        lost, self.planned = (self.run, following), self.planned + 1
        self.run, self.ranks = self.planned, [*survivors, *fresh]
        for name, member in self.members.members.items():
            if name not in self.ranks and name not in self.spares and member.process.poll() is None:
                member.assign(Leave(self.run, "lost", 60, lost))
        self.members.begins(self.run, self.ranks, lost=lost)
        self._trains(self.ranks, self.run)

    def _ends(self, names: set[str]) -> None:
        """No member without work stays: those that had none after the last hand-over are gone by now."""
        self._waits_for_ends()
        self._ending = sorted(names)

    def _waits_for_ends(self) -> None:
        for name in self._ending:
            self.members.members[name].process.wait(SECONDS)

    def _planned_ranks(self, rank: int) -> tuple[list[str], list[str]]:
        """The present ranks, and those with a warm newcomer in this place."""
        self._keep_spares()
        old, newcomer = list(self.ranks), self.spares.pop(0)
        self._waits_until_warm(newcomer)
        self._hurry.touch()  # until here the training waits: it has only so many steps
        return old, [newcomer if place == rank else name for place, name in enumerate(old)]

    def _keep_spares(self) -> None:
        for name in self._names(SPARES - len(self.spares)):
            self.members.standby(name)
            self.spares.append(name)

    def _names(self, wanted: int) -> list[str]:
        return [f"m{next(self._numbers)}" for _ in range(wanted)]

    def _held(self, moment: str, name: str) -> Moment:
        return Moment(self._hold, moment, self.members, self.members.members[name])


@dataclass(frozen=True)
class Moment:
    """The moment at which one party freezes; it continues when the `with` block is left."""

    file: Path
    words: str
    members: LocalMembers
    holder: LocalMember

    def __enter__(self) -> Self:
        self.file.write_text(self.words)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.unlink()

    def reached(self) -> None:
        """Waits until it stands still there."""
        self.members.waits(f"HOLD {self.words}", lambda: f"HOLD {self.words}" in self.holder.said)


def _trainer(member: LocalMember) -> int:
    """The process that trains there."""
    return int(re.findall(r"HOLD process (\d+)", member.said)[-1])
