"""The scheduler: any node that Kubernetes could use, drawn at random; and preemption if there is none.

It respects: unschedulable, taints, nodeSelector, required node affinity, required pod anti-affinity, requests, and
priorities. Like Kubernetes it ignores that a node is being deleted, or is about to be. Preemption is as `preemption`
has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
from tests.simulation.preemption import NEVER, Choice, choose, lower_than, priority
from tests.simulation.resources import allocatable, lacking, left, requests
from tests.simulation.world import Debounced, World


class Scheduler:
    """Binds pods without a node."""

    def __init__(self, world: World, *, in_turn: bool = True) -> None:
        """`in_turn`: of one priority, pods come in the order of their names; otherwise in a drawn order, as in a long
        queue."""
        self._world = world
        self._rng = world.rng("scheduler")
        self._soon = Debounced(world, lambda: self._rng.uniform(0.005, 0.15), self._schedule)
        self._in_turn = in_turn
        self.paused = False
        world.server.observe(self._on_change, PODS, NODES)

    def _on_change(self, change: Change) -> None:
        if change.kind == NODES or (change.kind == PODS and change.by != "scheduler"):
            self._soon()

    def _schedule(self) -> None:
        if self.paused:
            self._world.after(1.0, self._soon)
            return
        waiting = [
            pod
            for pod in self._world.server.all(PODS)
            if not node_of(pod) and not terminating(pod) and not terminal(pod) and not _gated(pod)
        ]
        if not self._in_turn:
            self._rng.shuffle(waiting)
        for pod in sorted(waiting, key=priority, reverse=True):
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
            self._preempt(pod)
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

    def _preempt(self, pod: Json) -> None:
        """Make room on the node where it costs least; the pod gets it once the victims are gone."""
        if pod["spec"].get("preemptionPolicy") == NEVER or self._waits_for_victims(pod):
            return
        server = self._world.server
        nodes = [node for node in server.all(NODES) if self._is_helped(pod, node)]
        choice = choose(pod, nodes, lambda node, without: self._problem(pod, node, without) == "", server)
        if choice is not None:
            self._take_room(pod, choice)

    def _is_helped(self, pod: Json, node: Json) -> bool:
        """Whether it is other pods that are in the way, and some of them count for less."""
        victims = lower_than(pod, self._world.pods_on(node["metadata"]["name"]))
        return bool(victims) and not self._problem(pod, node, [one["metadata"]["uid"] for one in victims])

    def _waits_for_victims(self, pod: Json) -> bool:
        """A pod that was promised a node takes no more room while its victims still exist."""
        node = str((pod.get("status") or {}).get("nominatedNodeName") or "")
        return bool(node) and any(map(terminating, lower_than(pod, self._world.pods_on(node))))

    def _take_room(self, pod: Json, choice: Choice) -> None:
        server, now, (namespace, name) = self._world.server, self._world.now, key_of(pod)

        def doom(raw: Json) -> None:
            words = f"default-scheduler: preempting to accommodate a higher priority pod ({name})"
            set_condition(raw, "DisruptionTarget", "True", now, reason="PreemptionByScheduler", message=words)

        for victim in choice.victims:
            self._world.fire("preemption")
            self._world.tell("scheduler", "preempts", pod=key_of(victim)[1], on=choice.node, by=name)
            server.change_status(PODS, *key_of(victim), doom, by="scheduler")
            server.delete(PODS, *key_of(victim), by="scheduler", uid=victim["metadata"]["uid"])

        def nominate(raw: Json) -> None:
            raw["status"]["nominatedNodeName"] = choice.node

        server.change_status(PODS, namespace, name, nominate, by="scheduler")

    def _promised(self, pod: Json, node: str) -> list[Json]:
        """Pods that wait for room there which lower ones may not take: of the same priority, or of a higher one."""
        if "preemption" not in self._world.fired:
            return []
        return [
            one
            for one in self._world.server.each(PODS)
            if (one.get("status") or {}).get("nominatedNodeName") == node
            and not node_of(one)
            and not terminating(one)
            and priority(one) >= priority(pod)
            and key_of(one) != key_of(pod)
        ]

    def _mark(self, pod: Json, status: str, reason: str, message: str) -> None:
        old = condition(pod, "PodScheduled")
        if old is not None and (old["status"], old["message"]) == (status, message):
            return

        def change(raw: Json) -> None:
            set_condition(raw, "PodScheduled", status, self._world.now, reason=reason, message=message)

        self._world.server.change_status(PODS, *key_of(pod), change, by="scheduler")

    def _alike(self, pod: Json, node: Json) -> int:
        return sum(labels_of(one) == labels_of(pod) for one in self._world.pods_on(node["metadata"]["name"]))

    def _problem(self, pod: Json, node: Json, without: Collection[str] = ()) -> str:
        """Why the pod cannot be there; `without` those pods, by uid."""
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
        name = node["metadata"]["name"]
        others = [
            one for one in self._world.pods_on(name) if not terminal(one) and one["metadata"]["uid"] not in without
        ]
        if any(_repels(pod, other) or _repels(other, pod) for other in others):
            return "node(s) didn't match pod anti-affinity rules"
        rest = left(allocatable(node), [*others, *self._promised(pod, name)])
        missing = lacking(requests(pod), rest)
        return f"Insufficient {missing}" if missing else ""


def _gated(pod: Json) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


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
