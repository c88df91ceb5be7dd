"""The parties of one hand-over attempt.

Old ranks are parties 0 to world-1; newcomers follow in the order of their new ranks. Pure: everything follows from the
assignment's block, so all parties get the same answers without communication. Called by the machines and by the shell
that connects the parties and moves the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from perdure.errors import UserError
from perdure.wire import Handover


class PartyRole(StrEnum):
    """A party's role in an attempt."""

    STAYER = "stayer"
    LEAVER = "leaver"
    NEWCOMER = "newcomer"


@dataclass(frozen=True)
class Party:
    """One process in an attempt."""

    number: int
    part: PartyRole
    old: int | None
    """Its rank in the living run; None for a newcomer."""
    new: int | None
    """Its rank in the newer run; None for a leaver."""
    decides: bool = False
    """Whether it is the decider: it keeps the attempt's store and appends Opened."""


@dataclass(frozen=True)
class Attempt:
    """An attempt to hand the living `run` over to run `next`."""

    run: int
    next: int
    world: int
    """How many ranks the living run has."""
    joins: tuple[int, ...]
    """New ranks of the newcomers, ascending."""
    leavers: tuple[int, ...]
    """Old ranks that leave, ascending."""
    pod: int = 1
    """How many ranks a pod has."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise UserError(f"run {self.next} cannot take over run {self.run}: {problem}: plan it without a hand-over")

    @property
    def new_world(self) -> int:
        """How many ranks the newer run has."""
        return self.world - len(self.leavers) + len(self.joins)

    @property
    def alone(self) -> bool:
        """Whether one pod has all ranks of the newer run, so that a single death ends it."""
        return self.new_world <= self.pod

    @property
    def decider(self) -> int:
        """The decider's party number: the lowest old rank that stays; if none stays, the lowest that leaves."""
        return min(set(range(self.world)) - set(self.leavers), default=self.leavers[0] if self.leavers else 0)

    @cached_property
    def parties(self) -> tuple[Party, ...]:
        """All of them, by number."""
        return (*self._old_ranks(), *self._newcomers())

    def of_old(self, rank: int) -> Party:
        """The party that holds this rank of the living run."""
        return self.parties[rank]

    def of_new(self, rank: int) -> Party:
        """The party that will hold this rank of the newer run."""
        return next(party for party in self.parties if party.new == rank)

    @property
    def newcomers(self) -> tuple[Party, ...]:
        """In the order of their new ranks."""
        return self.parties[self.world :]

    @property
    def tensor_receivers(self) -> tuple[int, ...]:
        """Parties that need what only old rank 0 has: the newcomers, and the stayer that becomes rank 0 after it.

        A stayer has all of it but rank 0's buffers, which a commit made here would give to every rank.
        """
        first = self.of_new(0)
        stayer = (first.number,) if first.part is PartyRole.STAYER and first.old != 0 else ()
        return (*stayer, *(party.number for party in self.newcomers))

    def predecessor_of(self, rank: int) -> int | None:
        """The old rank whose random generators this new rank continues with; None if it derives its own.

        Generators belong to a rank, so only a run of the same size can continue with them.
        """
        return rank if self.world == self.new_world else None

    def _old_ranks(self) -> Iterator[Party]:
        gone, taken = set(self.leavers), set(self.joins)
        left = iter([rank for rank in range(self.new_world) if rank not in taken])
        for rank in range(self.world):
            if rank in gone:
                yield Party(rank, PartyRole.LEAVER, rank, None, rank == self.decider)
            else:
                yield Party(rank, PartyRole.STAYER, rank, next(left), rank == self.decider)

    def _newcomers(self) -> Iterator[Party]:
        for index, rank in enumerate(self.joins):
            yield Party(self.world + index, PartyRole.NEWCOMER, None, rank)

    def _problem(self) -> str:
        """What is wrong with the attempt; "" for nothing."""
        if self.next <= self.run:
            return "its number is not higher"
        for ranks, world in ((self.leavers, self.world), (self.joins, self.new_world)):
            if list(ranks) != sorted(set(ranks)) or any(not 0 <= rank < world for rank in ranks):
                return f"{list(ranks)} are not ascending ranks of {world}"
        if self.new_world < 1:
            return "no rank would be left"
        if self.world == self.new_world and self.joins != self.leavers:
            return f"its world is as large, but newcomers {list(self.joins)} do not match leavers {list(self.leavers)}"
        return ""


def attempt_of(handover: Handover, next_run: int, pod: int = 1) -> Attempt:
    """The attempt that an assignment of run `next_run` offers, in pods of `pod` ranks.

    Raises UserError if the block contradicts itself.
    """
    return Attempt(handover.run, next_run, handover.world, handover.joins, handover.leavers, pod)
