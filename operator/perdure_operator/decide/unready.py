"""Keeps in status since when each node under a pod has been unreachable.

After lostNodeSeconds its members are given up. A node object that is gone counts as well, because nobody can say
whether its machine still runs.
"""

from __future__ import annotations

from perdure_operator.api.status import Unready
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import over


def track_unready_nodes(draft: Draft) -> Draft:
    """The clock starts at the first sight of Ready != True and is forgotten when the node is Ready again."""
    occupied = {pod.node for pod in draft.snapshot.pods if pod.node and not over(pod)}
    sick = sorted(n.name for n in draft.snapshot.nodes if n.name in occupied and not (n.exists and n.ready))
    since = {unready.node: unready.since for unready in draft.status.unready}
    draft = draft.update(unready=tuple(Unready(node=name, since=since.get(name, draft.now)) for name in sick))
    for unready in draft.status.unready:
        draft = draft.wake(later(unready.since, draft.snapshot.spec.failure.lost_node_seconds))
    return draft
