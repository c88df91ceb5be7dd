"""The scheduler's default preemption, as far as pods can notice: which pods lose their room. Pure.

On each node it assumes all pods of a lower priority gone; then it spares as many as fit again, first those whose budget
would be violated, the more important ones first. It takes the node with the fewest violated budgets, then the one whose
most important victim is the least important, then the one with the fewest victims. Budgets are respected as far as that
goes, and no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.apiserver import ApiServer
from tests.simulation.objects import BUDGETS, PODS, Json, labels_of, matches, node_of, terminal, uid_of

NEVER: Final = "Never"


@dataclass(frozen=True)
class Choice:
    """Where room is made, and the victims."""

    node: str
    victims: tuple[Json, ...]
    violations: int
    """Of budgets."""


def priority(pod: Json) -> int:
    """As admission has resolved it."""
    return int(pod["spec"].get("priority") or 0)


def lower_than(pod: Json, others: Iterable[Json]) -> list[Json]:
    """Those that count for less, and still hold their room."""
    return [one for one in others if priority(one) < priority(pod) and not terminal(one)]


def choose(
    pod: Json, nodes: Sequence[Json], fits: Callable[[Json, list[str]], bool], server: ApiServer
) -> Choice | None:
    """The cheapest node; `fits` says whether the pod could be there without some others, given by uid."""
    pods, budgets = server.each(PODS), server.all(BUDGETS)
    found = [_on(pod, node, [one for one in pods if _is_on(one, node)], fits, budgets) for node in nodes]
    return min(found, key=_cost, default=None)


def _on(
    pod: Json, node: Json, there: list[Json], fits: Callable[[Json, list[str]], bool], budgets: list[Json]
) -> Choice:
    lower = sorted(lower_than(pod, there), key=lambda one: (-priority(one), one["metadata"]["creationTimestamp"]))
    violating = _violating(lower, budgets)
    victims = {uid_of(one): one for one in lower}
    for one in [*violating, *(one for one in lower if one not in violating)]:
        spared = {uid: other for uid, other in victims.items() if uid != uid_of(one)}
        if fits(node, list(spared)):
            victims = spared
    violations = sum(uid_of(one) in victims for one in violating)
    return Choice(str(node["metadata"]["name"]), tuple(victims.values()), violations)


def _violating(lower: list[Json], budgets: list[Json]) -> list[Json]:
    """Whose end no budget allows, counted as far as each goes."""
    allowed = [int((one.get("status") or {}).get("disruptionsAllowed") or 0) for one in budgets]
    found = []
    for pod in lower:
        mine = [number for number, one in enumerate(budgets) if _covers(one, pod)]
        for number in mine:
            allowed[number] -= 1
        if any(allowed[number] < 0 for number in mine):
            found.append(pod)
    return found


def _covers(budget: Json, pod: Json) -> bool:
    same = budget["metadata"].get("namespace") == pod["metadata"].get("namespace")
    return same and matches((budget.get("spec") or {}).get("selector"), labels_of(pod))


def _cost(choice: Choice) -> tuple[Any, ...]:
    ranks = [priority(one) for one in choice.victims]
    return choice.violations, max(ranks, default=0), sum(ranks), len(ranks), choice.node


def _is_on(pod: Json, node: Json) -> bool:
    return node_of(pod) == str(node["metadata"]["name"])
