"""A member in two hundred lines, for when the world is tried without the real agent and log code.

It keeps the contract of assignments and outcomes as the model tells it, and shares nothing with the code that does so
in earnest. Ranks of a run meet in one `Group`; rank 0 drives it and appends to the log.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.interface import MemberExit, MemberHost

SEAT_SECONDS: Final = 30.0
PEER_SECONDS: Final = 60.0
CLEAN: Final = ("completed", "checkpointed", "stopped")


@dataclass
class Log:
    """What a job's root holds."""

    entries: list[dict[str, Any]] = field(default_factory=list)

    def newest(self, *kinds: str) -> dict[str, Any] | None:
        return next((one for one in reversed(self.entries) if one["kind"] in kinds), None)

    def ended(self, run: int) -> bool:
        return any(one["run"] == run and (one["kind"] == "Closed" or one.get("final")) for one in self.entries)


@dataclass
class Group:
    """The ranks of one run."""

    world: int
    joined: dict[int, str] = field(default_factory=dict)
    """Addresses by rank."""
    full: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    how: str = ""
    error: dict[str, str] | None = None
    guilty: int = -1
    step: int = 0
    opened: int = 0
    first: int = 0
    """The step the run began at."""
    commit: dict[str, int] | None = None

    def end(self, how: str) -> None:
        if not self.ended.is_set():
            self.how = how
            self.ended.set()


class StandIn:
    """One member."""

    def __init__(self, host: MemberHost) -> None:
        self._host = host
        env = {one["name"]: one.get("value", "") for one in host.pod["spec"]["containers"][0].get("env") or ()}
        self._uid, self._root = env.get("PERDURE_UID", ""), env.get("PERDURE_ROOT", "")
        self._processes = int(env.get("PERDURE_PROCESSES", "1"))
        self._grace = float(env.get("PERDURE_GRACE_SECONDS", "30"))
        self._newest = 0
        self._log: Log = host.network.shared.setdefault(("log", self._root), Log())

    async def live(self) -> MemberExit:
        await asyncio.sleep(self._host.behaviour.warm_seconds)
        self._host.mark_ready()
        while True:
            wanted = self._wanted()
            if self._host.sigterm.is_set() or wanted.get("leave"):
                return self._exit({"outcome": "stopped", "run": self._newest, "rank": 0})
            if wanted.get("run", 0) > self._newest and "rank" in wanted:
                self._newest = wanted["run"]
                outcome = await self._train(wanted)
                if not await self._hold_seat(outcome):
                    return self._exit(outcome)
                continue
            await self._change()

    def _wanted(self) -> dict[str, Any]:
        try:
            found = json.loads(self._host.read_assignment() or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    async def _change(self, limit: float | None = None, *events: asyncio.Event) -> None:
        """Until the assignment changes, a signal or event comes, or the time is over."""
        waits = [self._host.assignment_changed(), self._host.sigterm.wait(), *(one.wait() for one in events)]
        tasks = [asyncio.ensure_future(one) for one in waits]
        try:
            await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in tasks:
                one.cancel()

    async def _hold_seat(self, outcome: dict[str, Any]) -> bool:
        if outcome["outcome"] not in ("checkpointed", "peer-lost") or self._host.sigterm.is_set():
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(SEAT_SECONDS):
                while not self._host.sigterm.is_set():
                    wanted = self._wanted()
                    if wanted.get("run", 0) > self._newest:
                        return "rank" in wanted
                    await self._change()
        return False

    async def _train(self, mine: dict[str, Any]) -> dict[str, Any]:
        run, rank = mine["run"], mine["rank"]
        key = ("run", self._root, self._uid, run)
        group: Group = self._host.network.shared.setdefault(key, Group(mine["world"] // self._processes))
        group.joined[rank] = self._host.ip
        if len(group.joined) == group.world:
            group.full.set()
        self._host.tell("trainer-started", run=run, rank=rank, uid=self._uid)
        driver = asyncio.ensure_future(self._drive(group, mine)) if rank == 0 else None
        try:
            how = await self._wait(group, run)
        except asyncio.CancelledError:
            group.end("peer-lost")
            raise
        finally:
            if driver is not None:
                driver.cancel()
        self._host.tell("trainer-ended", run=run, rank=rank, uid=self._uid, how=how)
        outcome = {"outcome": how, "run": run, "rank": rank, "step": group.step, "opened": group.opened}
        if group.commit:
            outcome["commit"] = group.commit
        if how == "failed":
            outcome["error"] = group.error
        return outcome

    async def _wait(self, group: Group, run: int) -> str:
        """Until the group ends, or this member must leave it."""
        until: float | None = None
        while not group.ended.is_set():
            wanted = self._wanted()
            newer = wanted.get("run", 0) > run
            if self._host.sigterm.is_set() or newer:
                if newer and run in wanted.get("lost", ()):
                    group.end("peer-lost")
                    return "stopped"
                if not group.opened or group.step == group.first:
                    group.end("peer-lost")
                    return "stopped"
                group.asked.set()
                seconds = float(wanted.get("seconds", 0)) if newer else self._grace - 5
                until = self._host.monotonic() + seconds if until is None else until
            left = None if until is None else until - self._host.monotonic()
            if left is not None and left <= 0:
                group.end("peer-lost")
                return "exit-timeout"
            if self._host.sigterm.is_set():
                await asyncio.wait([asyncio.ensure_future(group.ended.wait())], timeout=left)
            else:
                await self._change(left, group.ended)
        return "failed" if group.how == "failed" and group.guilty == self._rank(group) else _peers(group.how)

    def _rank(self, group: Group) -> int:
        return next(rank for rank, ip in group.joined.items() if ip == self._host.ip)

    async def _drive(self, group: Group, mine: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(PEER_SECONDS):
                await group.full.wait()
        except TimeoutError:
            group.end("peer-lost")
            return
        run, host = mine["run"], self._host
        started = host.monotonic()
        while not self._may_open(run, mine, host.monotonic() - started):  # noqa: ASYNC110 - a log is polled
            await asyncio.sleep(0.5)
        await self._append(group, {"kind": "Opened", "run": run})
        if group.ended.is_set():
            return
        last = self._log.newest("Committed")
        group.step = group.first = int(last["step"]) if last else 0
        group.commit = {"seq": int(last["seq"]), "step": group.step} if last else None
        group.opened = run
        host.tell("opened", run=run, uid=self._uid, step=group.step)
        await asyncio.sleep(host.behaviour.import_seconds)
        await self._steps(group, run)

    async def _steps(self, group: Group, run: int) -> None:
        host, how = self._host, self._host.behaviour
        while not group.ended.is_set():
            if group.asked.is_set():
                await self._commit(group, run, final=True, how="checkpointed")
            elif group.step >= how.goal:
                await self._commit(group, run, final=True, how="completed")
            else:
                await asyncio.sleep(how.step_seconds)
                await self._together(group)
                group.step += 1
                host.tell("step", run=run, rank=0, step=group.step, uid=self._uid)
                if host.rng.random() < how.crash_per_step:
                    group.guilty = host.rng.choice(sorted(group.joined))
                    group.error = {"kind": "exception", "name": "ValueError", "tail": "ValueError: no"}
                    group.end("failed")
                elif group.step % how.every_steps == 0 and group.step < how.goal:
                    await self._commit(group, run, final=False, how="")

    async def _together(self, group: Group) -> None:
        """A collective: every rank has to be reached."""
        waited = 0.0
        while not all(self._host.network.reachable(self._host.ip, ip) for ip in group.joined.values()):
            await asyncio.sleep(1.0)
            waited += 1.0
            if waited > PEER_SECONDS:
                group.end("peer-lost")
                return

    async def _commit(self, group: Group, run: int, *, final: bool, how: str) -> None:
        await asyncio.sleep(self._host.behaviour.save_seconds)
        entry = {"kind": "Committed", "run": run, "step": group.step, "final": final}
        seq = await self._append(group, entry)
        if not group.ended.is_set():
            group.commit = {"seq": seq, "step": group.step}
            self._host.tell("committed", run=run, uid=self._uid, step=group.step, seq=seq, final=final)
            if final:
                group.end(how)

    async def _append(self, group: Group, entry: dict[str, Any]) -> int:
        while self._host.bucket.down or not self._host.network.storage_reachable(self._host.ip):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        opened = self._log.newest("Opened")
        if opened and (opened["uid"] != self._uid or opened["run"] > entry["run"]) and entry["kind"] != "Opened":
            group.opened = max(group.opened, opened["run"])
            group.end("fenced")
            return 0
        if entry["kind"] == "Opened" and opened and opened["uid"] == self._uid and opened["run"] >= entry["run"]:
            group.opened = opened["run"]
            group.end("fenced")
            return 0
        entry |= {"uid": self._uid, "seq": len(self._log.entries) + 1}
        self._log.entries.append(entry)
        return int(entry["seq"])

    def _may_open(self, run: int, mine: dict[str, Any], waited: float) -> bool:
        last = self._log.newest("Opened")
        if last is None or last["uid"] != self._uid or last["run"] >= run:
            return True
        return self._log.ended(last["run"]) or last["run"] in mine.get("lost", ()) or waited >= mine.get("wait", 0)

    def _exit(self, outcome: dict[str, Any]) -> MemberExit:
        message = json.dumps({"v": 1, "step": 0, "opened": 0, "seconds": {}} | outcome)
        clean = outcome["outcome"] in CLEAN
        return MemberExit(0 if clean else 1, "Completed" if clean else "Error", message)


def _peers(how: str) -> str:
    """How those ended who did nothing wrong themselves."""
    return "peer-lost" if how == "failed" else how


async def run_member(host: MemberHost) -> MemberExit:
    """See interface.RunMember."""
    return await StandIn(host).live()
