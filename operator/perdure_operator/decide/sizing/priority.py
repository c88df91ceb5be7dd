"""Whether growing takes room from others: what admission has made of the priority of pods like the new members.

Classes are not read, which would take a right on objects of the whole cluster; a pod tells what its class came to.
Pure. Called by `summary`, which has a person told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure_operator.api.spec import Elastic
from perdure_operator.state.snapshot import PodView

EXPENDABLE: Final = -10
"""--expendable-pods-priority-cutoff of cluster-autoscaler: below it a pending pod makes it add no node."""


def warn_of_priority(elastic: Elastic, pods: Iterable[PodView]) -> str:
    """What is wrong with the priority of new members, and what to do, "" where nothing is known to be."""
    named = elastic.joiner_priority_class_name
    pod = next((pod for pod in pods if named in (None, pod.priority_class)), None)
    if pod is None:
        return ""
    which = f"class {pod.priority_class}, {pod.priority}" if pod.priority_class else str(pod.priority)
    if pod.priority > 0 and pod.preemption_policy != "Never":
        to_do = "name another class there" if named else "set elastic.joinerPriorityClassName to a class"
        words = "new members may preempt pods of others, by their priority"
        return f"{words} ({which}): {to_do} with preemptionPolicy Never"
    if pod.priority < EXPENDABLE:
        words = f"cluster-autoscaler adds no node for new members, as their priority ({which}) is below {EXPENDABLE}"
        return f"{words}: name a class of a higher one in elastic.joinerPriorityClassName"
    return ""
