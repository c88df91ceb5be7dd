"""A member of the next run is replaced only for a reason: its pod has ended or is being deleted, its node is leaving,
or the template changed. A read overtaken by the watch never costs a healthy pod. All may also be released for lack of
room, before a run has begun, once they have held theirs for as long as the job may."""

from __future__ import annotations

from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    announces,
    condition,
    intent,
    on_cordon,
    plan_of,
    status_of,
    terminated,
    troubled,
    upcoming,
    vacate,
)
from tests.simulation.objects import (
    EVICTIONS,
    JOBS,
    NODES,
    PODS,
    Json,
    key_of,
    node_of,
    owner_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)

MEMORY_SECONDS: Final = 90.0
"""The greatest age of news about a node, or the spec."""
NEWS_SECONDS: Final = 1.0
CLOCK_SECONDS: Final = 3.0
_UNSURE: Final = ("late-write", "lost-answer", "timeout", "relabel", "orphan-job", "status-restored")
"""A pod may appear after it was given up for not appearing, or exist unseen."""

_OF_THE_ROOT: Final = ("StorageRefused", "CheckpointsDamaged", "LogLost")
"""Only a user can fix it."""


class Replacing(Promise):
    """Checked when status drops a name."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._troubled: dict[str, float] = {}
        """When a node last changed in, or left, a state other than healthy, whichever pods may use it; and by a pod's
        uid when its Eviction last changed."""
        self._cordoned: dict[str, float] = {}
        """When it last changed, or ceased to be, cordoned."""
        self._edited: dict[str, float] = {}
        """When the spec of a job, by uid, was changed."""

    def on_change(self, change: Change) -> None:
        if change.kind == NODES:
            self._note(change)
        elif change.kind == EVICTIONS:
            self._troubled[key_of(change.raw)[1]] = self._case.now
        if change.kind != JOBS or change.old is None:
            return
        if change.raw["spec"] != change.old["spec"] or vacate(change.raw) or vacate(change.old):
            self._edited[uid_of(change.raw)] = self._case.now
        if not by_operator(change) or change.event == "DELETED" or intent(status_of(change.old)).get("prepare"):
            return
        if terminating(change.raw):
            return  # no more are created, and those without a run go
        before, after = (
            int((status_of(one).get("gang") or {}).get("attempts") or 0) for one in (change.old, change.raw)
        )
        if after > before:
            self._check_release(change.raw, status_of(change.old))
        else:
            self._check(change.raw, upcoming(status_of(change.old)), upcoming(status_of(change.raw)))

    def _note(self, change: Change) -> None:
        seen, name = [one for one in (change.raw, change.old) if one], key_of(change.raw)[1]
        if change.event == "DELETED" or any(map(troubled, seen)):
            self._troubled[name] = self._case.now
        if any(one["spec"].get("unschedulable") for one in seen):
            self._cordoned[name] = self._case.now

    def _check_release(self, job: Json, before: Json) -> None:
        """It has held room for long enough, and does not train."""
        name, most = key_of(job)[1], float(job["spec"]["startTimeoutSeconds"])
        pods = (self._world.server.find(PODS, key_of(job)[0], one) for one in upcoming(before).get("members") or ())
        ages = [
            self._case.now - seconds_of(pod["metadata"]["creationTimestamp"]) for pod in pods if pod and node_of(pod)
        ]
        if plan_of(before):
            self._case.fail(
                "release", f"{name} lets its members go for want of room, and run {before.get('run')} is on"
            )
        if max(ages, default=0.0) < most - CLOCK_SECONDS:
            self._case.fail(
                "release", f"{name} lets its members go, which hold their nodes since {sorted(ages)} s at most"
            )

    def _check(self, job: Json, before: Json, after: Json) -> None:
        if not after or after.get("run") != before.get("run") or self._is_recent(self._edited, uid_of(job)):
            return
        if self._case.fired(*_UNSURE) or any("operator" in fault for fault in self._world.fired):
            return
        status = status_of(job)
        if not after.get("members") and condition(status, "Running").get("reason") in _OF_THE_ROOT:
            return  # without a run, and waiting for a user: others may need their room
        for name in sorted(set(before.get("members") or ()) - set(after.get("members") or ())):
            pod = self._world.server.find(PODS, key_of(job)[0], name)
            if pod is not None and owner_of(pod) == uid_of(job) and self._is_fit(job, pod):
                self._case.fail("groundless", f"{name} is replaced, and nothing is wrong with it")

    def _is_fit(self, job: Json, pod: Json) -> bool:
        asked = self._case.is_asked_for(pod) or self._is_recent(self._troubled, uid_of(pod))
        if asked or terminating(pod) or terminal(pod) or terminated(pod) or announces(pod):
            return False
        young, node = self._case.now - seconds_of(pod["metadata"]["creationTimestamp"]) < NEWS_SECONDS, node_of(pod)
        going = on_cordon(job) != "Ignore" and self._is_cordoned(node)
        return not young and not (node and (going or self._is_troubled(node)))

    def _is_cordoned(self, node: str) -> bool:
        """Now, or lately."""
        there = self._world.node(node)
        now = there is not None and bool(there["spec"].get("unschedulable"))
        return now or self._is_recent(self._cordoned, node)

    def _is_troubled(self, node: str) -> bool:
        """Now, however long it has not changed, or lately."""
        there = self._world.node(node)
        return (there is not None and troubled(there)) or self._is_recent(self._troubled, node)

    def _is_recent(self, when: dict[str, float], what: str) -> bool:
        return self._case.now - when.get(what, -1e9) < MEMORY_SECONDS
