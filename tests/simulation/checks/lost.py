"""Whoever trains for a run that is lost is ended at once: it can save no more, and the next run waits for its end.

Counted from when its pod was told so; a simulated trainer has no memory of which it could leave an image.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise
from tests.simulation.checks.reading import assignment
from tests.simulation.objects import PODS, key_of, terminating
from tests.simulation.world import Fact

END_SECONDS: Final = 3.0
"""What the kubelet takes to show the pod its assignment, and the agent to kill."""
_DEAF: Final = (
    *("hung-agent", "frozen-trainer", "file-delay", "partition", "kubelet-silent", "all-kubelets-silent"),
    *("node-power", "node-object-deleted", "stuck-terminating"),
)
"""A pod may not hear of it at once."""


class Lost(Promise):
    """Looked at when a process ends."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._told: dict[tuple[str, int], float] = {}
        """By name of the pod and run: when it was told that the run is lost."""
        self._begun: dict[tuple[str, int, int], float] = {}
        """By name of the pod, run and rank: when a process was started."""
        self._parties: set[str] = set()
        """Pods that take part in a hand-over: whoever has voted is killed only if both runs are lost."""

    def on_change(self, change: Change) -> None:
        if change.kind == PODS and change.event != "DELETED" and not terminating(change.raw):
            for run in assignment(change.raw).get("lost") or ():
                self._told.setdefault((key_of(change.raw)[1], int(run)), self._case.now)

    def on_fact(self, fact: Fact) -> None:
        if fact.what == "party":
            self._parties.add(fact.who)
        if fact.what not in ("trainer-started", "trainer-ended"):
            return
        run = int(fact.facts["run"])
        process = fact.who, run, int(fact.facts["rank"])
        if fact.what == "trainer-started":
            self._begun[process] = fact.at
        elif process in self._begun:
            known = max(self._told.get((fact.who, run), fact.at), self._begun.pop(process))
            if fact.at - known > END_SECONDS and fact.who not in self._parties and not self._case.fired(*_DEAF):
                words = (
                    f"{fact.who} has trained for run {run} {fact.at - known:.1f} s after it was told that it is lost"
                )
                self._case.fail("lingers", words)
