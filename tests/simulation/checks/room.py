"""The room for a job's pods: counted from nodes, pods and quotas as stored."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.simulation.checks.case import Case
from tests.simulation.objects import NODES, PODS, Json, is_ready, key_of, node_of, terminal, terminating
from tests.simulation.resources import Amounts, allocatable, amount, left, times


def fits(case: Case, job: Json) -> int:
    """How many more of its pods would find a node, and be admitted, now."""
    wanted = _requests(job)
    return int(min(sum(times(wanted, rest) for rest in _rests(case)), admitted(case, job)))


def admitted(case: Case, job: Json) -> float:
    """How many more of its pods a quota allows now."""
    hard = case.world.server.policy.hard.get(key_of(job)[0])
    if hard is None:
        return math.inf
    pods = (pod for pod in case.world.server.all(PODS, key_of(job)[0]) if not terminal(pod))
    limited = {name: number for name, number in _requests(job).items() if name in hard}
    return max(times(limited, left(hard, pods)), 0)


def _rests(case: Case) -> Iterator[Amounts]:
    world = case.world
    for node in world.server.each(NODES):
        spec = node.get("spec") or {}
        if is_ready(node) and not spec.get("unschedulable") and not spec.get("taints") and not terminating(node):
            promised = [pod for pod in world.server.each(PODS) if _is_promised(pod, key_of(node)[1])]
            here = [pod for pod in world.pods_on(key_of(node)[1]) if not terminal(pod)]
            yield left(allocatable(node), [*here, *promised])


def _is_promised(pod: Json, node: str) -> bool:
    return not node_of(pod) and (pod.get("status") or {}).get("nominatedNodeName") == node


def _requests(job: Json) -> dict[str, float]:
    total: dict[str, float] = {}
    for container in job["spec"]["template"]["spec"]["containers"]:
        for name, text in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0.0) + amount(str(text))
    return total
