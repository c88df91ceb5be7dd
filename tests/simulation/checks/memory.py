"""Status fields that may never be taken back or changed, and names that are never reused: I8, I11, I12, I13."""

from __future__ import annotations

import json
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import failures, plans, status_of, to_come, training
from tests.simulation.objects import JOBS, PODS, Json, key_of, uid_of

RUNS_AT_MOST: Final = 2**52
"""JSON numbers end at twice that."""


class Memory(Promise):
    """Only the operator's writes count; others may edit anything."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._names: set[str] = set()
        self._plans: dict[tuple[str, int], str] = {}
        self._most: dict[tuple[str, str], int] = {}
        """By uid and field: its value so far."""

    def on_change(self, change: Change) -> None:
        if change.by == "backup":
            self._forget(uid_of(change.raw))
        if not by_operator(change):
            return
        if change.kind == PODS and change.event == "ADDED":
            name = "/".join(key_of(change.raw))
            if name in self._names and not self._case.fired("status-restored"):
                self._case.fail("I12", f"pod {name} is created a second time")
            self._names.add(name)
        elif change.kind == JOBS and change.event == "MODIFIED" and change.old is not None:
            self._check(uid_of(change.raw), key_of(change.raw)[1], status_of(change.raw))

    def _forget(self, uid: str) -> None:
        """Events that a backup does not know have not happened."""
        self._most = {key: value for key, value in self._most.items() if key[0] != uid}
        self._plans = {key: value for key, value in self._plans.items() if key[0] != uid}

    def _check(self, uid: str, name: str, status: Json) -> None:
        code, infrastructure = failures(status)
        for check, field, value in (
            ("I11", "failures.code", code),
            ("I11", "failures.infrastructure", infrastructure),
            ("I11", "commitSeq", int(status.get("commitSeq", 0))),
            ("I12", "nextMember", int(status.get("nextMember", 0))),
            ("I13", "run", int(status.get("run", 0))),
        ):
            if value < self._most.get((uid, field), 0):
                self._case.fail(check, f"{name}: {field} went down to {value}")
            self._most[uid, field] = value
        if int(status.get("run", 0)) > RUNS_AT_MOST:
            self._case.fail("numbers", f"{name}: the next run has number {status['run']}: soon there are no more")
        given = training(status) | to_come(status)
        newest, after = (
            max((int(one.rpartition("-")[2]) for one in given), default=-1),
            int(status.get("nextMember", 0)),
        )
        if newest >= after:
            self._case.fail("I12", f"{name}: the next member gets number {after}, and {newest} is given already")
        for plan in plans(status):
            text = json.dumps(plan, sort_keys=True)
            if self._plans.setdefault((uid, int(plan["run"])), text) != text:
                self._case.fail("I13", f"{name}: the plan of run {plan['run']} has changed: {text}")
            if not 1 <= len(plan["members"]) <= self._case.most[uid]:
                self._case.fail("I8", f"{name}: run {plan['run']} has {len(plan['members'])} members")
