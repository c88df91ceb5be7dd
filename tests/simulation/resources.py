"""How much of a machine pods request, and what is left of it: CPUs, GPUs, and no other resources.

Counted as the scheduler, quotas and autoscalers count: by requests, whatever is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from tests.simulation.objects import Json

CPU: Final = "cpu"
GPU: Final = "nvidia.com/gpu"
Amounts = Mapping[str, float]


@lru_cache(maxsize=256)
def amount(text: str) -> float:
    """A quantity in the forms used here: 2, or 1500m."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def requests(pod: Json) -> dict[str, float]:
    """Of all containers of a pod together; a GPU's limit is its request."""
    total: dict[str, float] = defaultdict(float)
    for container in pod["spec"].get("containers") or ():
        asked = container.get("resources") or {}
        for name, text in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
            total[name] += amount(str(text))
    return total


def allocatable(node: Json) -> dict[str, float]:
    """A node's capacity for pods."""
    return {name: amount(str(text)) for name, text in node["status"]["allocatable"].items()}


def left(have: Amounts, pods: Iterable[Json]) -> dict[str, float]:
    """Of so much, beside these pods."""
    rest = dict(have)
    for pod in pods:
        for name, number in requests(pod).items():
            rest[name] = rest.get(name, 0.0) - number
    return rest


def lacking(wanted: Amounts, rest: Amounts) -> str:
    """The first resource of which there is not enough, "" where all fits."""
    return next((name for name in sorted(wanted) if 0.0 < wanted[name] > rest.get(name, 0.0)), "")


def times(wanted: Amounts, rest: Amounts) -> int:
    """How often so much fits into the rest."""
    return min((int(rest.get(name, 0.0) // number) for name, number in wanted.items() if number > 0), default=1000)
