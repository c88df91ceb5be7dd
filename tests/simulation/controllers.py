"""kube-controller-manager, as far as it touches pods: budgets, garbage, node lifecycle, taints, pod GC.

Every controller sees a change a moment late and acts on what it finds then.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.kubelet import Kubelet
from tests.simulation.objects import (
    BUDGETS,
    EVENTS,
    FOREGROUND,
    JOBS,
    LEASES,
    NODES,
    NOT_READY,
    ORPHAN,
    PODS,
    REVISIONS,
    UNREACHABLE,
    UNSCHEDULABLE,
    Json,
    Refused,
    clone,
    is_ready,
    key_of,
    labels_of,
    matches,
    node_of,
    phase_of,
    set_condition,
    terminal,
    terminating,
    tolerates,
    uid_of,
)
from tests.simulation.world import Debounced, World

GRACE_PERIOD: Final = (40.0, 50.0)
"""Of silence until a node's Ready is Unknown."""
BY: Final = "controller-manager"


class Budgets:
    """The disruption controller."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("budgets")
        self.slow = 0.0
        self._soon = Debounced(world, lambda: self._rng.uniform(0.02, 0.3) + self._rng.random() * self.slow, self._sync)
        world.server.observe(self._on_change, PODS, BUDGETS)

    def _on_change(self, change: Change) -> None:
        if change.by != "disruption":
            self._soon()

    def _sync(self) -> None:
        for budget in self._world.server.all(BUDGETS):
            self._count(budget)

    def _count(self, budget: Json) -> None:
        spec, namespace = budget.get("spec") or {}, budget["metadata"]["namespace"]
        covered = [
            one for one in self._world.server.all(PODS, namespace) if matches(spec.get("selector"), labels_of(one))
        ]
        alive = [one for one in covered if not terminal(one)]
        healthy = sum(is_ready(one) and not terminating(one) for one in alive)
        desired = self._desired(spec, covered)
        status = {
            "observedGeneration": budget["metadata"]["generation"],
            "currentHealthy": healthy,
            "desiredHealthy": 0 if desired is None else desired,
            "expectedPods": len(covered),
            "disruptionsAllowed": 0 if desired is None else max(healthy - desired, 0),
        }

        def change(raw: Json) -> None:
            raw["status"] = {**(raw.get("status") or {}), **status}

        self._world.server.change_status(BUDGETS, *key_of(budget), change, by="disruption")

    def _desired(self, spec: Json, covered: list[Json]) -> int | None:
        """None where the controller cannot tell: it allows nothing then."""
        least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
        expected = self._expected(covered)
        if most is not None:
            return None if expected is None else max(expected - _scaled(most, expected), 0)
        if isinstance(least, str):
            return None if expected is None else _scaled(least, expected)
        return int(least) if least is not None else 0

    def _expected(self, covered: list[Json]) -> int | None:
        """From the scale subresource of the pods' controllers."""
        total, seen = 0, set()
        for pod in covered:
            owner = next((one for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")), None)
            job = owner and self._world.server.find(JOBS, pod["metadata"]["namespace"], owner["name"])
            if not owner or job is None:
                return None
            if owner["uid"] not in seen:
                seen.add(owner["uid"])
                total += int(job["spec"].get("replicas", 1))
        return total


def _scaled(value: object, of: int) -> int:
    if isinstance(value, str):
        return -(-int(value.removesuffix("%")) * of // 100)
    return int(str(value))


def evict(world: World, namespace: str, name: str) -> None:
    """The eviction subresource; raises Refused as the API server does."""
    pod = world.server.get(PODS, namespace, name)
    if terminating(pod):
        return
    if not terminal(pod) and phase_of(pod) != "Pending":
        budgets = [
            one
            for one in world.server.all(BUDGETS, namespace)
            if matches((one.get("spec") or {}).get("selector"), labels_of(pod))
        ]
        if len(budgets) > 1:
            raise Refused(500, "InternalError", "This pod has more than one PodDisruptionBudget")
        if budgets:
            _take_disruption(world, pod, budgets[0])

    def doom(raw: Json) -> None:
        set_condition(raw, "DisruptionTarget", "True", world.now, reason="EvictionByEvictionAPI")

    world.tell("eviction", "evicted", pod=f"{namespace}/{name}", uid=uid_of(pod), raw=pod)
    if not terminal(pod):
        world.server.change_status(PODS, namespace, name, doom, by="eviction")
    world.server.delete(PODS, namespace, name, by="eviction", uid=uid_of(pod))


def _take_disruption(world: World, pod: Json, budget: Json) -> None:
    status = budget.get("status") or {}
    policy = (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy")
    if not is_ready(pod):
        healthy_enough = status.get("currentHealthy", 0) >= status.get("desiredHealthy", 1) > 0
        if policy == "AlwaysAllow" or healthy_enough:
            return
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"] or not status.get("disruptionsAllowed"):
        world.fire("eviction-refused")
        raise Refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")

    def take(raw: Json) -> None:
        raw["status"]["disruptionsAllowed"] -= 1

    world.server.change_status(BUDGETS, *key_of(budget), take, by="eviction")


class Garbage:
    """Dependents of deleted objects are deleted; those of an orphaning owner lose their reference."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("garbage")
        world.server.observe(self._on_change)

    def _on_change(self, change: Change) -> None:
        if change.event == "DELETED" and change.kind == JOBS:
            self._world.after(self._rng.uniform(0.05, 2.0), self._collect, uid_of(change.raw))
        elif change.event == "ADDED" and change.raw["metadata"].get("ownerReferences"):
            self._world.after(self._rng.uniform(1.0, 5.0), self._check, change.kind, change.raw)
        elif change.kind == JOBS and _waits_for(change.raw, ORPHAN):
            self._world.after(self._rng.uniform(0.05, 1.0), self._orphan, change.raw)
        elif change.kind == JOBS and _begins_to_wait(change):
            self._world.after(self._rng.uniform(0.05, 1.0), self._empty, change.raw, True)

    def _collect(self, owner: str) -> None:
        for kind in (PODS, BUDGETS, REVISIONS):
            for raw in self._world.server.all(kind):
                if owner in _owners(raw):
                    self._delete(kind, raw)

    def _check(self, kind: str, raw: Json) -> None:
        there = self._world.server.find(kind, *key_of(raw))
        if there is None or uid_of(there) != uid_of(raw) or kind in (EVENTS, LEASES):
            return
        alive = {uid_of(job) for job in self._world.server.each(JOBS)}
        if _owners(there) and not _owners(there) & alive:
            self._delete(kind, there)

    def _delete(self, kind: str, raw: Json) -> None:
        try:
            self._world.server.delete(kind, *key_of(raw), by="garbage", uid=uid_of(raw))
        except Refused:
            return

    def _empty(self, owner: Json, first: bool = False) -> None:
        """Its dependents go first, in no order, and later only what blocks its deletion: it goes when none is left."""
        uid = uid_of(owner)
        there = self._world.server.find(JOBS, *key_of(owner))
        if there is None or uid_of(there) != uid:
            return
        blocked = False
        for kind in (BUDGETS, PODS, REVISIONS):
            for raw in self._world.server.all(kind, owner["metadata"]["namespace"]):
                if uid in _owners(raw):
                    blocks = any(one.get("blockOwnerDeletion") for one in raw["metadata"]["ownerReferences"])
                    blocked |= blocks
                    if not terminating(raw) and (first or blocks):
                        self._world.after(self._rng.uniform(0.0, 2.0), self._delete, kind, raw)
        if blocked:
            self._world.after(self._rng.uniform(1.0, 3.0), self._empty, owner)
        else:
            self._release(owner, FOREGROUND)

    def _release(self, owner: Json, finalizer: str) -> None:
        there = self._world.server.find(JOBS, *key_of(owner))
        if there is not None and uid_of(there) == uid_of(owner):

            def release(raw: Json) -> None:
                kept = [one for one in raw["metadata"].get("finalizers") or () if one != finalizer]
                raw["metadata"]["finalizers"] = kept

            self._world.server.change(JOBS, *key_of(owner), release, by="garbage")

    def _orphan(self, owner: Json) -> None:
        uid = uid_of(owner)

        def leave(raw: Json) -> None:
            owners = raw["metadata"].get("ownerReferences") or []
            raw["metadata"]["ownerReferences"] = [one for one in owners if one["uid"] != uid]

        for kind in (PODS, BUDGETS, REVISIONS):
            for raw in self._world.server.all(kind, owner["metadata"]["namespace"]):
                if uid in _owners(raw):
                    self._world.server.change(kind, *key_of(raw), leave, by="garbage")
                    self._world.after(self._rng.uniform(0.05, 2.0), self._orphan, owner)
                    return  # one after the other

        self._release(owner, ORPHAN)


def _waits_for(raw: Json, finalizer: str) -> bool:
    """Whether it is being deleted, and not gone before the garbage collector has done that."""
    return terminating(raw) and finalizer in (raw["metadata"].get("finalizers") or ())


def _begins_to_wait(change: Change) -> bool:
    """For its dependents."""
    return _waits_for(change.raw, FOREGROUND) and not _waits_for(change.old or change.raw, FOREGROUND)


def _owners(raw: Json) -> set[str]:
    return {str(one["uid"]) for one in raw["metadata"].get("ownerReferences") or ()}


class NodeLifecycle:
    """Silence becomes Ready=Unknown, that becomes taints, taints become deletions; pods of no node are collected."""

    def __init__(self, world: World, kubelets: dict[str, Kubelet]) -> None:
        self._world = world
        self._kubelets = kubelets
        self._rng = world.rng("lifecycle")
        self._patience = {name: self._rng.uniform(*GRACE_PERIOD) for name in kubelets}
        self._tolerated: dict[tuple[str, str], float] = {}
        self._orphans: dict[str, float] = {}
        self._taint_soon = Debounced(world, lambda: self._rng.uniform(0.02, 0.3), self._taint)
        world.server.observe(self._on_change, NODES)
        world.after(self._rng.uniform(0, 5), self._monitor)

    def _on_change(self, _: Change) -> None:
        self._taint_soon()

    def _monitor(self) -> None:
        for name, kubelet in self._kubelets.items():
            node = self._world.node(name)
            if node is None:
                continue
            silent = kubelet.silent_since
            if silent is not None and self._world.now - silent >= self._patience.setdefault(name, 45.0):
                if _ready(node) != "Unknown":
                    self._lose(node)
            elif silent is None and _ready(node) == "Unknown":
                kubelet.report("True")
        self._collect_pods()
        self._taint()
        self._evict_tainted()
        self._world.after(5.0, self._monitor)

    def _lose(self, node: Json) -> None:
        def change(raw: Json) -> None:
            words = "Kubelet stopped posting node status."
            set_condition(raw, "Ready", "Unknown", self._world.now, reason="NodeStatusUnknown", message=words)

        self._world.server.change_status(NODES, *key_of(node), change, by=BY)

        def unready(raw: Json) -> None:
            set_condition(raw, "Ready", "False", self._world.now, reason="NodeNotReady")

        for pod in self._world.pods_on(node["metadata"]["name"]):
            if is_ready(pod):
                self._world.server.change_status(PODS, *key_of(pod), unready, by=BY)

    def _taint(self) -> None:
        nodes = self._world.server.all(NODES)
        outage = bool(nodes) and all(_ready(node) != "True" for node in nodes)
        for node in nodes:
            taints = {
                (one["key"], one["effect"])
                for one in (node.get("spec") or {}).get("taints") or ()
                if one["key"] in (NOT_READY, UNREACHABLE, UNSCHEDULABLE)
            }
            wanted = set()
            if node["spec"].get("unschedulable"):
                wanted.add((UNSCHEDULABLE, "NoSchedule"))
            key = {"False": NOT_READY, "Unknown": UNREACHABLE}.get(_ready(node))
            if key:
                wanted.add((key, "NoSchedule"))
                if not outage:
                    wanted.add((key, "NoExecute"))
            if wanted != taints:
                self._set_taints(node, wanted)

    def _set_taints(self, node: Json, wanted: set[tuple[str, str]]) -> None:
        def change(raw: Json) -> None:
            mine = (NOT_READY, UNREACHABLE, UNSCHEDULABLE)
            others = [one for one in raw["spec"].get("taints") or () if one["key"] not in mine]
            new = others + [{"key": key, "effect": effect} for key, effect in sorted(wanted)]
            raw["spec"]["taints"] = new

        self._world.server.change(NODES, *key_of(node), change, by=BY)

    def _evict_tainted(self) -> None:
        """The taint manager."""
        now, due = self._world.now, {}
        for node in self._world.server.all(NODES):
            name = node["metadata"]["name"]
            taints = [one for one in node["spec"].get("taints") or () if one["effect"] == "NoExecute"]
            for pod in self._world.pods_on(name) if taints else ():
                for taint in taints:
                    mark = (uid_of(pod), taint["key"])
                    due[mark] = self._tolerated.get(mark, now)
                    if now - due[mark] >= _tolerated_seconds(pod, taint) and not terminating(pod):
                        self._doom(pod)
                        break
        self._tolerated = due

    def _doom(self, pod: Json) -> None:
        def change(raw: Json) -> None:
            set_condition(raw, "DisruptionTarget", "True", self._world.now, reason="DeletionByTaintManager")

        self._world.fire("taint-deletion")
        self._world.server.change_status(PODS, *key_of(pod), change, by="taint-manager")
        self._world.server.delete(PODS, *key_of(pod), by="taint-manager", uid=uid_of(pod))

    def _collect_pods(self) -> None:
        """Pod GC: pods of nodes that do not exist, after a while; terminating ones that were never bound."""
        nodes, now = {node["metadata"]["name"] for node in self._world.server.each(NODES)}, self._world.now
        for pod in self._world.server.all(PODS):
            lost = bool(node_of(pod)) and node_of(pod) not in nodes
            if not lost:
                self._orphans.pop(uid_of(pod), None)
            elif now - self._orphans.setdefault(uid_of(pod), now) >= 40.0:
                self._world.fire("pod-gc")

                def fail(raw: Json) -> None:
                    raw["status"] = {**clone(raw.get("status") or {}), "phase": "Failed"}
                    set_condition(raw, "DisruptionTarget", "True", now, reason="DeletionByPodGC")

                self._world.server.change_status(PODS, *key_of(pod), fail, by="pod-gc")
                self._world.server.finish_delete(PODS, pod, by="pod-gc")


def _ready(node: Json) -> str:
    for one in (node.get("status") or {}).get("conditions") or ():
        if one["type"] == "Ready":
            return str(one["status"])
    return "Unknown"


def _tolerated_seconds(pod: Json, taint: Json) -> float:
    toleration = tolerates(pod["spec"].get("tolerations") or (), taint)
    if toleration is None:
        return 0.0
    seconds = toleration.get("tolerationSeconds")
    return float("inf") if seconds is None else float(seconds)
