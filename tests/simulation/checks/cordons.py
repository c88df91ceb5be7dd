"""A mere cordon is a wish, and the job decides what follows (`disruption.onCordon`).

Ignore: no member leaves for it. MoveIfRoom: no member has to leave for it, and no run shrinks for it. Other signals of
the node, evictions and deletions count as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    announces,
    intent,
    on_cordon,
    plan_of,
    status_of,
    terminated,
    troubled,
    vacate,
    wanted,
)
from tests.simulation.objects import EVICTIONS, JOBS, NODES, PODS, Json, key_of, node_of, owner_of, terminating, uid_of

MEMORY_SECONDS: Final = 90.0
"""The greatest age of news about a node, a pod or a job's annotation."""
_UNSURE: Final = ("status-restored",)
"""Status shows an older intent."""


class Cordons(Promise):
    """Checked when the operator writes a status."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._troubled: dict[str, float] = {}
        """When a node, or a job by uid, last had a reason to leave other than a cordon."""
        self._ended: dict[str, float] = {}
        """By uid of the job: when one of its pods was last leaving."""

    def on_change(self, change: Change) -> None:
        raw, old = change.raw, change.old
        seen = [one for one in (raw, old) if one]
        if change.kind == NODES and (change.event == "DELETED" or any(map(troubled, seen))):
            self._troubled[key_of(raw)[1]] = self._case.now
        elif change.kind == PODS:
            self._note_pod(change)
        elif change.kind == EVICTIONS:
            self._note_eviction(raw)
        elif change.kind == JOBS and old is not None:
            if any(map(vacate, seen)) or raw["spec"] != old["spec"]:
                self._troubled[uid_of(raw)] = self._case.now
            if by_operator(change) and change.event != "DELETED" and not self._case.fired(*_UNSURE):
                for check, words in self._broken(raw, status_of(old), status_of(raw)):
                    self._case.fail(check, f"{key_of(raw)[1]}: {words}")

    def _note_pod(self, change: Change) -> None:
        pod = change.raw
        if change.event == "DELETED" or terminating(pod) or terminated(pod):
            self._ended[owner_of(pod)] = self._case.now
        if announces(pod):
            self._troubled[node_of(pod)] = self._case.now

    def _note_eviction(self, eviction: Json) -> None:
        pod = self._world.server.find(PODS, key_of(eviction)[0], eviction["spec"]["target"]["pod"]["name"])
        if pod is not None:
            self._troubled[node_of(pod)] = self._ended[owner_of(pod)] = self._case.now

    def _broken(self, job: Json, before: Json, after: Json) -> Iterator[tuple[str, str]]:
        word, was, now = on_cordon(job), intent(before), intent(after)
        if word == "Move" or self._is_recent(self._troubled, uid_of(job)):
            return
        new = [node for node in now.get("nodes") or () if node not in (was.get("nodes") or ())]
        heeded = [node for node in new if not self._is_troubled(node)]
        if word == "Ignore" and heeded:
            yield "heeded", f"it ignores cordons, and members are to leave {heeded}: {now['cause']}"
        if word == "MoveIfRoom" and self._is_a_wish(now) and now.get("leave") and not was.get("leave"):
            yield "forced", f"no member has to leave {now['nodes']}, and all are asked to: {now['cause']}"
        if word == "MoveIfRoom" and self._is_a_wish(was):
            yield from self._shrinks(job, plan_of(before), plan_of(after))

    def _shrinks(self, job: Json, old: Json, new: Json) -> Iterator[tuple[str, str]]:
        fewer = old and new and len(new["members"]) < min(len(old["members"]), wanted(job["spec"]))
        if fewer and not self._is_recent(self._ended, uid_of(job)):
            words = (
                f"run {new['run']} has {len(new['members'])} members, and all {len(old['members'])} might have gone on"
            )
            yield "shrunk", words

    def _is_a_wish(self, told: Json) -> bool:
        """Whether the nodes to leave are cordoned, and show nothing else."""
        nodes = told.get("nodes") or ()
        mere = bool(nodes) and not any(map(self._is_troubled, nodes))
        return mere and told.get("disruption") == "NodeLeaving"

    def _is_troubled(self, name: str) -> bool:
        node = self._world.node(name)
        return node is None or troubled(node) or self._is_recent(self._troubled, name)

    def _is_recent(self, when: dict[str, float], what: str) -> bool:
        return self._case.now - when.get(what, -1e9) < self._case.patience(MEMORY_SECONDS)
