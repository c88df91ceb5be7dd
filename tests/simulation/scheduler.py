"""The scheduler: any node that Kubernetes could use, drawn at random.

What it heeds: unschedulable, taints, nodeSelector, required node affinity, required pod anti-affinity and CPU. What it
does not heed is what Kubernetes does not either: that a node is being deleted, or is about to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.simulation.apiserver import Change
from tests.simulation.objects import (
    NODES,
    PODS,
    UNSCHEDULABLE,
    Json,
    Refused,
    condition,
    key_of,
    labels_of,
    matches,
    node_of,
    set_condition,
    terminal,
    terminating,
    tolerates,
)
from tests.simulation.world import Debounced, World


class Scheduler:
    """Binds pods without a node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("scheduler")
        self._soon = Debounced(world, lambda: self._rng.uniform(0.005, 0.15), self._schedule)
        self.paused = False
        world.server.observe(self._on_change, PODS, NODES)

    def _on_change(self, change: Change) -> None:
        if change.kind == NODES or (change.kind == PODS and change.by != "scheduler"):
            self._soon()

    def _schedule(self) -> None:
        if self.paused:
            self._world.after(1.0, self._soon)
            return
        for pod in self._world.server.all(PODS):
            if not node_of(pod) and not terminating(pod) and not terminal(pod) and not _gated(pod):
                self._place(pod)

    def _place(self, pod: Json) -> None:
        feasible: list[Json] = []
        why: dict[str, int] = {}
        for node in self._world.server.all(NODES):
            problem = self._problem(pod, node)
            if problem:
                why[problem] = why.get(problem, 0) + 1
            else:
                feasible.append(node)
        namespace, name = key_of(pod)
        if not feasible:
            words = ", ".join(f"{count} {problem}" for problem, count in sorted(why.items()))
            message = f"0/{len(self._world.server.each(NODES))} nodes are available: {words}."
            self._mark(pod, "False", "Unschedulable", message)
            return
        if self._rng.random() < 0.6:  # the soft spread has a say, no vote
            fewest = min(self._alike(pod, node) for node in feasible)
            feasible = [node for node in feasible if self._alike(pod, node) == fewest]
        chosen = self._rng.choice(feasible)
        try:
            self._world.server.bind(namespace, name, chosen["metadata"]["name"])
        except Refused:
            return
        self._mark(pod, "True", "", "")

    def _mark(self, pod: Json, status: str, reason: str, message: str) -> None:
        old = condition(pod, "PodScheduled")
        if old is not None and (old["status"], old["message"]) == (status, message):
            return

        def change(raw: Json) -> None:
            set_condition(raw, "PodScheduled", status, self._world.now, reason=reason, message=message)

        self._world.server.change_status(PODS, *key_of(pod), change, by="scheduler")

    def _alike(self, pod: Json, node: Json) -> int:
        return sum(labels_of(one) == labels_of(pod) for one in self._world.pods_on(node["metadata"]["name"]))

    def _problem(self, pod: Json, node: Json) -> str:
        spec, tolerations = pod["spec"], pod["spec"].get("tolerations") or ()
        if spec.get("schedulerName") not in (None, "default-scheduler"):
            return "node(s) of another scheduler"
        if (node.get("spec") or {}).get("unschedulable") and not tolerates(
            tolerations, {"key": UNSCHEDULABLE, "effect": "NoSchedule"}
        ):
            return "node(s) were unschedulable"
        for taint in (node.get("spec") or {}).get("taints") or ():
            if taint["effect"] != "PreferNoSchedule" and not tolerates(tolerations, taint):
                return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
        if not _affine(spec, node):
            return "node(s) didn't match Pod's node affinity/selector"
        others = [one for one in self._world.pods_on(node["metadata"]["name"]) if not terminal(one)]
        if any(_repels(pod, other) or _repels(other, pod) for other in others):
            return "node(s) didn't match pod anti-affinity rules"
        if _cpu(spec) + sum(_cpu(one["spec"]) for one in others) > float(node["status"]["allocatable"]["cpu"]):
            return "Insufficient cpu"
        return ""


def _gated(pod: Json) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _cpu(spec: Json) -> float:
    total = 0.0
    for container in spec.get("containers") or ():
        text = str(((container.get("resources") or {}).get("requests") or {}).get("cpu", 0))
        total += float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    return total


def _affine(spec: Json, node: Json) -> bool:
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required: Json = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = required.get("nodeSelectorTerms")
    return terms is None or any(_term(one, node) for one in terms)


def _term(term: Json, node: Json) -> bool:
    fields = {"metadata.name": node["metadata"]["name"]}
    return matches({"matchExpressions": term.get("matchExpressions") or []}, labels_of(node)) and matches(
        {"matchExpressions": term.get("matchFields") or []}, fields
    )


def _repels(pod: Json, other: Json) -> bool:
    """Required anti-affinity within one node: every other topology is wider, and no pod here asks for one."""
    affinity: Json = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    terms: Iterable[Any] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    here = pod["metadata"]["namespace"]
    return any(
        other["metadata"]["namespace"] in (term.get("namespaces") or [here])
        and matches(term.get("labelSelector"), labels_of(other))
        for term in terms
    )
