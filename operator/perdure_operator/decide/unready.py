"""Keeps in status since when each node under a pod has been unreachable.

After lostNodeSeconds its members are given up. A node object that is gone counts as well, because nobody can say
whether its machine still runs.
"""

from __future__ import annotations

from perdure_operator.api.status import Unready
from perdure_operator.decide.facts import over
from perdure_operator.decide.turn import Turn, later


def track_unready_nodes(turn: Turn) -> Turn:
    """The clock starts at the first sight of Ready != True and is forgotten when the node is Ready again."""
    occupied = {pod.node for pod in turn.snapshot.pods if pod.node and not over(pod)}
    sick = sorted(n.name for n in turn.snapshot.nodes if n.name in occupied and not (n.exists and n.ready))
    since = {unready.node: unready.since for unready in turn.status.unready}
    turn = turn.update(unready=tuple(Unready(node=name, since=since.get(name, turn.now)) for name in sick))
    for unready in turn.status.unready:
        turn = turn.wake(later(unready.since, turn.snapshot.spec.failure.lost_node_seconds))
    return turn
