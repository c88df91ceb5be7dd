"""A job of real processes whose ranks change while it trains; a test stands in for the operator and the agents.

The offers are there before the ranks begin, and each rank waits at one step until its part is ready: so the moment of
the change is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from e2e.harness.local_run import free_port
from perdure.live.protocol.parties import Party, PartyRole, attempt_of
from perdure.wire import Env, Handover, Leave, Train, write_assignment, write_handover
from perdure.wire.channel import Exiting, acknowledge_vote, read_report, write_offer
from tests.unit.runtime.live.nursery import Nursery
from tests.unit.runtime.records import entries, traced

WAIT_AT = 4
AGAIN_AT = 12
EVERY = 4
LIMIT = 60
WAIT = 75
"""Seconds for which newcomers that begin in place wait for the older run: LIMIT and the operator's margin."""
MOVES = {
    "rank-1-of-2": (2, 2, (1,), (1,)),
    "both-of-2": (2, 2, (0, 1), (0, 1)),
    "2-to-3": (2, 3, (1,), ()),
    "3-to-2": (3, 2, (), (1,)),
    "3-to-2-without-rank-0": (3, 2, (), (0,)),
    "all-of-2-to-1": (2, 1, (0,), (0, 1)),
}
"""Old ranks and new ones, joiners, and leavers: the ways in which a rank's own state can go."""
COMPARED = ("steps", "weights", "buffers", "optimizer", "rate", "random")


class Job:
    """Run 1, with `world` ranks."""

    def __init__(
        self,
        nursery: Nursery,
        name: str,
        world: int,
        *,
        script: str = "scripts.train",
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        self.nursery = nursery
        self.name = name
        self.world = world
        self.root = nursery.folder / f"root-{name}"
        self.pids: dict[str, int] = {}
        self._script = script
        self._environ = environ or {}
        self._arguments = {"root": str(self.root), **arguments}
        self._late: dict[str, dict[str, str]] = {}
        """Newcomers that the old ranks do not wait for at first."""
        self._wait_at: int | None = None
        self._again: dict[str, list[tuple[int | str, str]]] = {}
        self._restarts: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {}
        """By the process that ends first: the name, environment and arguments of the one that follows it in its pod."""

    def begin(self) -> Job:
        """Starts its ranks."""
        port = free_port()
        for rank in range(self.world):
            self._start(f"old{rank}", _rank(1, rank, self.world, port))
        for name, environ in self._late.items():
            self._start(name, environ, {})
        return self

    def offered(
        self,
        world: int,
        joins: tuple[int, ...],
        leavers: tuple[int, ...],
        *,
        wait: bool = True,
        at: int | None = None,
        reports: bool = False,
        started: float = 0.0,
        restarted: tuple[int, ...] = (),
        **newcomer: Any,
    ) -> Job:
        """Its ranks get the offer to become run 2, with these newcomers, which are started, and without these leavers.

        `newcomer` are arguments of the new processes' script alone; without `wait` the old ranks do not wait until they
        are ready. With `at` the offer is unknown before that step. With `reports` newcomers report how they end, and
        their votes are not acknowledged. `started` is when their agents started them, in their clock's seconds.
        `restarted` are ranks of run 2 that agents start in the pods of stayers once these have left: no newcomers. They
        wait for the others for less than this nursery waits for them, so a test tells who has not come.
        An offer that has to come to nothing in a later step needs an `at`: on a slow machine the old ranks are ready
        before WAIT_AT, and hand over there.
        """
        self._wait_at = WAIT_AT if wait and at is None else None
        port, address = free_port(), f"127.0.0.1:{free_port()}"
        block = Handover(1, self.world, joins, leavers, address, LIMIT, f"token-{self.name}")
        for party in attempt_of(block, 2).parties:
            if party.part is PartyRole.NEWCOMER and party.new is not None:
                told = _told(block) | ({Env.REPORT_FD: "1"} if reports else {})
                told |= {Env.STARTED: repr(started)} if started else {}
                self._start(f"new{party.new}", _rank(2, party.new, world, port) | told, newcomer)
                continue
            if party.new in restarted:
                told = _rank(2, party.new or 0, world, port) | {Env.WAIT: str(WAIT), Env.RENDEZVOUS_SECONDS: str(WAIT)}
                self._restarts[f"old{party.old}"] = f"again{party.new}", told, newcomer
            if at is None:
                write_offer(self._offer_file(f"old{party.old}"), _offer(2, party, world, port, block))
            else:
                self._offer_at(f"old{party.old}", at, _offer(2, party, world, port, block))
        return self

    def told(self, *newcomers: str) -> Job:
        """Its processes, these newcomers among them, tell an agent what happens, in their output; it knows their votes
        for run 2."""
        self._environ = {**self._environ, Env.REPORT_FD: "1"}
        for name in (*(f"old{rank}" for rank in range(self.world)), *newcomers):
            acknowledge_vote(self._offer_file(name), 2)
        return self

    def offered_again(self, names: tuple[str, ...], leavers: tuple[int, ...]) -> Job:
        """Run 2, whose ranks these processes are, is offered to go on without some of them, at step AGAIN_AT."""
        left, port = len(names) - len(leavers), free_port()
        block = Handover(2, len(names), (), leavers, f"127.0.0.1:{free_port()}", LIMIT, f"again-{self.name}")
        for party, name in zip(attempt_of(block, 3).parties, names, strict=True):
            self._offer_at(name, AGAIN_AT, _offer(3, party, left, port, block))
        return self

    def replaced(self, *ranks: int) -> Job:
        """These ranks are replaced, one every EVERY steps, each by another process."""
        return self.moved(*(((rank,), (rank,)) for rank in ranks), apart=True)

    def moved(self, *moves: tuple[tuple[int, ...], tuple[int, ...]], apart: bool = False) -> Job:
        """Newcomers join and ranks leave, move by move, each in the first step behind the one before, or `apart` by
        EVERY steps. The newcomers of run 2 are called new2, or new2a, new2b and so on."""
        names = [f"old{rank}" for rank in range(self.world)]
        for run, (joins, leavers) in enumerate(moves, 2):
            port, address, world = free_port(), f"127.0.0.1:{free_port()}", len(names) + len(joins) - len(leavers)
            block = Handover(run - 1, len(names), joins, leavers, address, LIMIT, f"token-{self.name}-{run}")
            ranks = dict[int, str]()
            for party in attempt_of(block, run).parties:
                if party.old is None:
                    name = f"new{run}" + (ascii_lowercase[len(ranks.keys() & {*joins})] if len(joins) > 1 else "")
                    self._late[name] = _rank(run, party.new or 0, world, port) | _told(block)
                else:
                    name = names[party.old]
                    place = EVERY * (run - 1) if apart or run == 2 else f"run {run - 1}"
                    self._offer_at(name, place, _offer(run, party, world, port, block))
                if party.new is not None:
                    ranks[party.new] = name
            names = [ranks[rank] for rank in range(world)]
        return self

    def end(self) -> dict[str, Any]:
        """The results by process, when all have ended as they should."""
        found = self.ended()
        assert set(found.values()) == {0}, {name: self.output(name) for name, status in found.items() if status}
        return {name: self.nursery.result(f"{self.name}-{name}") for name in self.pids}

    def ended(self) -> dict[str, int]:
        """How each process has ended."""
        found = dict[str, int]()
        for name, following in self._restarts.items():
            found[name] = self.nursery.wait(self.pids[name])
            self._start(*following)
        return found | {name: self.nursery.wait(pid) for name, pid in self.pids.items() if name not in found}

    def output(self, name: str) -> str:
        """What a process has printed."""
        return self.nursery.output(f"{self.name}-{name}")

    def endings(self, name: str) -> list[Exiting]:
        """A process's report of its end."""
        found = [read_report(line) for line in self.output(name).splitlines()]
        return [report for report in found if isinstance(report, Exiting)]

    @property
    def log(self) -> list[dict[str, Any]]:
        """Its entries, oldest first."""
        return entries(self.root)

    def began(self, run: int) -> list[str]:
        """Which process was each rank of this run when it began, by the object that the log names."""
        (opened,) = (entry for entry in self.log if entry["kind"] == "Opened" and entry["run"] == run)
        told = json.loads((self.root / opened["members"]["key"]).read_text())
        return [member["name"] for member in told["members"]]

    @property
    def trace(self) -> list[dict[str, Any]]:
        """The lines of all its ranks."""
        return traced(self.root)

    def _offer_at(self, name: str, place: int | str, offer: Train | Leave) -> None:
        """In this step, or in the first of a run, by its name."""
        self._again.setdefault(name, []).append((place, write_assignment(offer)))

    def _offer_file(self, name: str) -> Path:
        return self.nursery.folder / f"{self.name}-{name}.offer"

    def _start(self, name: str, environ: Mapping[str, str], newcomer: Mapping[str, Any] | None = None) -> None:
        told = {"PERDURE_TRACE": "1", "PERDURE_CHECK_SECONDS": "0", "PERDURE_MEMBER": name, **self._environ, **environ}
        told["PERDURE_HANDOVER_FILE"] = str(self._offer_file(name))
        own = {"wait_at": self._wait_at} if newcomer is None else dict(newcomer)
        arguments = self._arguments | own | ({"again": self._again[name]} if name in self._again else {})
        self.pids[name] = self.nursery.start(f"{self.name}-{name}", self._script, arguments, told)


def undisturbed(nursery: Nursery, world: int, **given: Any) -> dict[str, Any]:
    """The results of a Job of which nobody changes the ranks; the first test of a file that asks for it has it
    trained."""
    asked = json.dumps([world, given], sort_keys=True, default=dict)
    if asked not in nursery.undisturbed:
        job = Job(nursery, f"undisturbed-{len(nursery.undisturbed)}", world, **given)
        nursery.undisturbed[asked] = job.begin().end()
    return nursery.undisturbed[asked]


def by_rank(results: Mapping[str, Any]) -> dict[int, Any]:
    """What each rank of the last run has at its end."""
    return {found["rank"]: {key: found[key] for key in COMPARED} for found in results.values() if "rank" in found}


def _rank(run: int, rank: int, world: int, port: int) -> dict[str, str]:
    found = {"PERDURE_RUN": run, "RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
    return {name: str(value) for name, value in found.items()} | {"MASTER_ADDR": "127.0.0.1"}


def _told(block: Handover) -> dict[str, str]:
    return {"PERDURE_HANDOVER": json.dumps(write_handover(block)), "PERDURE_WAIT": str(WAIT)}


def _offer(run: int, party: Party, world: int, port: int, block: Handover) -> Train | Leave:
    if party.new is None:
        return Leave(run, handover=block)
    return Train(run, party.new, world, f"127.0.0.1:{port}", handover=block)
