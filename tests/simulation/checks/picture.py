"""The leader's picture of the cluster converges to the cluster: nothing gone is believed to exist, nothing existing is
missing, and nothing stays as it was before its last change.

News may overtake one another, come twice, and come after the object's end; a watch that has lost some does not repeat
them, but the next resync does. The leader says how late its watch is.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.checks.case import Promise
from tests.simulation.objects import BUDGETS, JOBS, NODES, PODS, Key, key_of, labels_of

NEWS_SECONDS: Final = 15.0
_WATCHED: Final = (JOBS, PODS, NODES, BUDGETS)


class Picture(Promise):
    """Checked while a leader works."""

    rests_on_status = False

    def look(self) -> None:
        leader = self._case.scene.operators.leader()
        if leader is None:
            return
        seen, there = leader.picture(), self._cluster()
        wrong = {what for what in seen.keys() | there.keys() if seen.get(what, 0) != there.get(what, 0)}
        for what in self._since.keys() - {(kind, "/".join(key)) for kind, key in wrong}:
            del self._since[what]
        for kind, key in sorted(wrong):
            known, stored = (one.get((kind, key), 0) for one in (seen, there))
            words = f"{leader.identity} takes {kind} {key[1]} for version {known}, it is {stored} (0: not there)"
            self._lasting(kind, "/".join(key), True, self._case.patience(NEWS_SECONDS), words)
        lag = leader.watch_lag()
        if lag > NEWS_SECONDS and not self._case.deaf:
            self._case.fail("watch-lag", f"{leader.identity} says that its watch is {lag:.0f} s late, and it is not")

    def _cluster(self) -> dict[tuple[str, Key], int]:
        """Versions of all watched objects; a pod whose job is gone has no owner."""
        server = self._world.server
        jobs = {key_of(job) for job in server.each(JOBS)}
        return {
            (kind, key_of(raw)): int(raw["metadata"]["resourceVersion"])
            for kind in _WATCHED
            for raw in server.each(kind)
            if kind != PODS or (key_of(raw)[0], labels_of(raw).get("perdure.dev/job")) in jobs
        }
