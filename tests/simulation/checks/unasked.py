"""No member stops training unasked: one that saves and leaves was asked to, or one of its peers was.

No member is asked to leave for another size while the members of that size fail to start: they would fail afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import current, intent, run_told, status_of
from tests.simulation.objects import JOBS, PODS, key_of, owner_of, terminating, uid_of
from tests.simulation.world import Fact

_ANNOUNCED: Final = ("checkpointed", "handed-over")
"""Ends that do not happen by themselves."""
_ROOM: Final = ("Unschedulable", "QuotaExceeded")
"""What members that leave may change."""


class Unasked(Promise):
    """Checked when a trainer ends."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._asked: dict[str, int] = defaultdict(int)
        """By uid of the job: the newest run of which a member was asked to leave."""
        self._told: dict[str, int] = defaultdict(int)
        """By uid of a pod: the newest run that it was assigned. An agent does not return to an older one."""
        self._jobs: dict[str, str] = {}
        """By uid of a pod: the uid of the job that it was created for."""

    def on_change(self, change: Change) -> None:
        if change.kind == JOBS and by_operator(change):
            self._check_size(change)
        if change.kind != PODS:
            return
        pod = change.raw
        told = self._told[uid_of(pod)] = max(run_told(pod), self._told[uid_of(pod)])
        going = change.event == "DELETED" or terminating(pod)  # SIGTERM is a request to any run that it trains in
        uid = self._jobs.setdefault(uid_of(pod), owner_of(pod))  # it may lose its owner, and trains on
        self._asked[uid] = max(self._asked[uid], told if going else told - 1)

    def _check_size(self, change: Change) -> None:
        asked, before = intent(status_of(change.raw)), intent(status_of(change.old or {}))
        fallback, began = str(asked.get("fallbackReason") or ""), current(status_of(change.raw))
        _, late, why = fallback.rpartition("no standby was ready in time: ")
        resizes = asked.get("leave") and not before.get("leave") and asked.get("disruption") == "SizeChange"
        if resizes and late and why not in _ROOM:
            self._case.fail("unasked", f"{key_of(change.raw)[1]}: all leave for another size, and {why}")
        if resizes and not fallback and not began.get("outcomes"):
            self._case.fail("unasked", f"{key_of(change.raw)[1]}: all leave at once for another size")

    def on_fact(self, fact: Fact) -> None:
        if fact.what != "trainer-ended" or fact.facts["how"] not in _ANNOUNCED:
            return
        uid, run = str(fact.facts["uid"]), int(fact.facts["run"])
        if run > self._asked[uid]:
            words = (
                f"{fact.who} ends its training in run {run}, {fact.facts['how']}, and none of its members was asked to"
            )
            self._case.fail("unasked", words)
