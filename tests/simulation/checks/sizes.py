"""Sizes of jobs that share a pool: only allowed ones, as large as there is room for, and settled.

Causes from outside are nodes that come, go or change, users' edits, faults, and jobs that end. Between two of them
sizes change a few times at most. A job does not hold unused room.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    LONGEST_REST_SECONDS,
    ROLE,
    assignment,
    finished,
    intent,
    is_being_pulled,
    plan_of,
    rests,
    sizes,
    spares,
    status_of,
    upcoming,
    wanted,
)
from tests.simulation.checks.room import fits
from tests.simulation.objects import (
    JOBS,
    NODES,
    Json,
    is_ready,
    key_of,
    labels_of,
    node_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)
from tests.simulation.world import Fact

CHANGES: Final = 5
"""Of one job's size without a cause from outside: one for each member of the largest, and one for the job that it made
room for."""
MEMORY_SECONDS: Final = 1200.0
"""A run begins with a size that was right when it was planned; a store outage may delay it for long."""
GROWN_SECONDS: Final = 120.0
"""Beside growAfterSeconds: new members start, and one run becomes the next, by an exit save if necessary. While an
image is pulled for a new member nothing of it has passed: growTimeoutSeconds limits that."""
IDLE_SECONDS: Final = 60.0
CLOCK_SECONDS: Final = 3.0


class Sizes(Promise):
    """Checked once a second after faults have stopped, and when status changes."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._healed = False
        self._changes: dict[str, list[str]] = defaultdict(list)
        """By uid of the job: its changes since the last cause."""
        self._allowed: dict[str, list[tuple[float, set[int]]]] = defaultdict(list)
        """By uid of the job: until when it had other sizes, in processes, the last ones without an end."""
        self._read: dict[str, int] = defaultdict(int)
        """By root: how many entries of the log were read."""

    def on_fact(self, fact: Fact) -> None:
        if fact.what == "heals":
            self._healed = True
        elif fact.what == "opened":
            self._check_worlds()

    def on_change(self, change: Change) -> None:
        if change.kind == NODES:
            self._changes.clear()
        if change.kind != JOBS:
            return
        before, after = change.old or {}, change.raw
        if not by_operator(change) or finished(after) != finished(before) or change.event == "DELETED":
            self._changes.clear()
        if change.old is None or after["spec"] != before["spec"]:
            self._note_sizes(after)
        if by_operator(change) and change.old is not None:
            self._check_change(after, before)
            self._check_rest(after, before)

    def _note_sizes(self, job: Json) -> None:
        allowed = self._allowed[uid_of(job)]
        if allowed:
            fixed = not job["spec"].get("elastic")  # until it has grown it keeps the size of its run: see takeover.py
            allowed[-1] = 1e9 if fixed else self._case.now + MEMORY_SECONDS, allowed[-1][1]
        each = int(job["spec"].get("processesPerReplica", 1))
        allowed.append((1e9, {size * each for size in sizes(job["spec"])}))

    def _check_worlds(self) -> None:
        """What began, by the log: read often, because no fact reports an entry whose writer got no answer."""
        self._case.judge(self._case.evidence.look())
        for root, reader in self._case.evidence.readers.items():
            new = reader.lines[self._read[root] :]
            self._read[root] += len(new)
            for line in new:
                known = self._allowed.get(line.run[0])
                if line.kind != "Opened" or not known:
                    continue
                world = int(line.body["world"])
                if not any(world in each for until, each in known if until >= self._case.now):
                    words = f"run {line.run[1]} began with {world} processes, its job may have {sorted(known[-1][1])}"
                    self._case.fail("I8", f"{root}: {words}")

    def _check_change(self, job: Json, old: Json) -> None:
        before, after = plan_of(status_of(old)), plan_of(status_of(job))
        if not self._healed or not before or not after or len(before["members"]) == len(after["members"]):
            return
        changes = self._changes[uid_of(job)]
        changes.append(f"{len(before['members'])} to {len(after['members'])} at {self._case.now:.0f} s")
        if len(changes) > CHANGES:
            self._case.fail("unsettled-size", f"{key_of(job)[1]} changes its size without a cause: {changes}")

    def _check_rest(self, job: Json, old: Json) -> None:
        """Failed attempts are repeated after as long, then twice as long each time, up to an hour."""
        growth, before = (status_of(one).get("growth") or {} for one in (job, old))
        elastic = job["spec"].get("elastic")
        if not elastic or not growth or growth == before or self._case.fired("status-restored"):
            return
        least = int(elastic["growTimeoutSeconds"])
        longest = max(least, LONGEST_REST_SECONDS)
        rest, due = seconds_of(growth["until"]) - self._case.now, min(least * 2 ** (growth["attempts"] - 1), longest)
        early = due - rest > self._case.patience(CLOCK_SECONDS)  # the write may have been in flight for a while
        if (early or rest - due > CLOCK_SECONDS) and growth["generation"] == job["metadata"]["generation"]:
            words = f"attempt {growth['attempts']} was in vain, the next one is {rest:.0f} s later, and not {due} s"
            self._case.fail("growth-pause", f"{key_of(job)[1]}: {words}")

    def silence(self) -> None:
        super().silence()
        self._check_worlds()

    def look(self) -> None:
        self._check_worlds()
        if not self._healed or self._case.scene.pool is None:
            return
        for job in self._world.server.each(JOBS):
            if not finished(job) and not terminating(job) and not job["spec"].get("suspend"):
                self._look_at_growth(job)
                self._look_at_excess(job)

    def _look_at_growth(self, job: Json) -> None:
        """A run that is too small, although there is room for a larger one."""
        status, elastic = status_of(job), job["spec"].get("elastic")
        members = {one["uid"] for one in plan_of(status).get("members") or ()}
        larger = [size for size in sizes(job["spec"]) if len(members) < size <= wanted(job["spec"])]
        offered = upcoming(status).get("plan")
        if not elastic or not members or not larger or offered or rests(job, self._case.now):
            self._lasting("growth", uid_of(job), False, 0.0, "")
            return
        new = [pod for pod in self._holding(job) if uid_of(pod) not in members]
        holds, pulls = len(new), any(map(is_being_pulled, new))
        room = larger[0] - len(members) <= holds + fits(self._case, job)
        patience = float(elastic["growAfterSeconds"]) + self._case.patience(GROWN_SECONDS)
        words = f"{key_of(job)[1]} has {len(members)} members and room for {larger[0]}: {status.get('conditions')}"
        self._lasting("growth", uid_of(job), room and not pulls, patience, words)

    def _look_at_excess(self, job: Json) -> None:
        """Pods that are no members, and do not become any, keep others out."""
        size = len(plan_of(status_of(job)).get("members") or ())
        holding = self._holding(job)
        most = max(size, wanted(job["spec"])) + spares(job)
        quiet = not intent(status_of(job)) and all(_is_well(node) for node in self._world.server.each(NODES))
        words = f"{key_of(job)[1]} is to have {most} pods, and holds room with {sorted(map(_name, holding))}"
        excess = quiet and len(holding) > most
        self._lasting("excess", uid_of(job), excess, self._case.patience(IDLE_SECONDS), words)

    def _holding(self, job: Json) -> list[Json]:
        """Its pods that have a node and are not about to leave it."""
        return [
            pod
            for pod in self._case.pods(uid_of(job))
            if node_of(pod) and not terminal(pod) and not terminating(pod)
            if labels_of(pod).get(ROLE) != "former" and not assignment(pod).get("leave")
        ]


def _name(pod: Json) -> str:
    return key_of(pod)[1]


def _is_well(node: Json) -> bool:
    spec = node.get("spec") or {}
    return is_ready(node) and not spec.get("unschedulable") and not spec.get("taints") and not terminating(node)
