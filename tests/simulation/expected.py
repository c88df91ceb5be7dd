"""What the operator owes by now: announcements heeded, members labelled and protected, lost nodes given up.

Where `claims` looks at what the operator says and does, this module looks at what it leaves undone. Each debt is
counted from the moment the world shows it, while a leader works, and is generous: news take time, more so where a watch
is slow, silent or cut. Asked by `checks` once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.simulation.claims import FINISHED, ROLE, assignment, intent
from tests.simulation.objects import (
    BUDGETS,
    JOBS,
    NODES,
    PODS,
    Json,
    is_ready,
    key_of,
    labels_of,
    node_of,
    owner_of,
    terminal,
    terminating,
    uid_of,
)
from tests.simulation.scene import Scene

SECONDS: Final = 60.0
UNLABELLED_SECONDS: Final = 20.0
"""Evictions ask for the label: every second without it counts."""
DEAF_SECONDS: Final = 420.0
"""Where a watch may have lost the news: the next resync tells them."""
DEAF: Final = ("watch", "lag", "api", "server-error", "timeout", "lost-answer", "operator")
UID: Final = "perdure.dev/job-uid"
_TAINTS: Final = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"})


class Expected:
    """Debts of the operator, by check and object, and since when."""

    def __init__(self, scene: Scene, fail: Callable[[str, str], None]) -> None:
        self._scene = scene
        self._world = scene.world
        self._fail = fail
        self._since: dict[tuple[str, str], float] = {}

    def silence(self) -> None:
        """No leader works: nothing can be expected."""
        self._since.clear()

    def look(self) -> None:
        """Called every second while a leader works."""
        due = {(check, what): words for job in self._world.server.each(JOBS) for check, what, words in self._debts(job)}
        self._since = {debt: self._since.get(debt, self._world.now) for debt in due}
        deaf = any(word in fault for fault in self._world.fired for word in DEAF)
        for (check, what), since in self._since.items():
            patience = UNLABELLED_SECONDS if check == "unlabelled" else SECONDS
            if self._world.now - since >= (DEAF_SECONDS if deaf else patience):
                self._fail(check, due[check, what])

    def _debts(self, job: Json) -> Iterator[tuple[str, str, str]]:
        status, name = job.get("status") or {}, key_of(job)[1]
        plan = (status.get("current") or {}).get("plan")
        if terminating(job) or status.get("phase") in FINISHED or plan is None:
            return
        members = {one["uid"]: one for one in plan["members"]}
        pods = [pod for pod in self._world.server.each(PODS) if uid_of(pod) in members and not terminal(pod)]
        if not intent(status):
            yield from self._unheeded(job, plan, pods)
            for pod in pods:
                if labels_of(pod).get(ROLE) != "member" and not terminating(pod) and self._told(pod, plan):
                    yield "unlabelled", uid_of(pod), f"{key_of(pod)[1]} trains for {name} without the role of a member"
        if pods and not self._protected(job):
            yield "unprotected", name, f"the budget of {name} lets its members be evicted"

    def _told(self, pod: Json, plan: Json) -> bool:
        return int(assignment(pod).get("run") or 0) == int(plan["run"])

    def _unheeded(self, job: Json, plan: Json, pods: list[Json]) -> Iterator[tuple[str, str, str]]:
        """Reasons for the run to end, while status has no intent."""
        name, spec = key_of(job)[1], job["spec"]
        if spec.get("suspend"):
            yield "unheeded", name, f"{name} is suspended, and run {plan['run']} goes on"
        if len(plan["members"]) != int(spec.get("replicas", 1)):
            yield "unheeded", name, f"{name} is to have {spec.get('replicas')} members, run {plan['run']} goes on"
        nodes = {key_of(node)[1]: node for node in self._world.server.each(NODES)}
        for pod in pods:
            node = nodes.get(node_of(pod))
            if node is None or _announced(node):
                words = f"node {node_of(pod)} is going away, and nobody asks {key_of(pod)[1]} to leave"
                yield "unheeded", uid_of(pod), words

    def _protected(self, job: Json) -> bool:
        """Every pod that the budget counts has to stay, whoever owns it."""
        uid = uid_of(job)
        budget = next((one for one in self._world.server.each(BUDGETS) if owner_of(one) == uid), None)
        least = ((budget or {}).get("spec") or {}).get("minAvailable")
        if budget is None or not isinstance(least, int) or budget["spec"].get("maxUnavailable") is not None:
            return False
        labelled = (pod for pod in self._world.server.each(PODS) if labels_of(pod).get(ROLE) == "member")
        counted = [pod for pod in labelled if labels_of(pod).get(UID) == uid and is_ready(pod)]
        return least >= len(counted)


def _announced(node: Json) -> bool:
    taints = {one["key"] for one in node["spec"].get("taints") or ()}
    return bool(node["spec"].get("unschedulable")) or terminating(node) or bool(taints & _TAINTS)
