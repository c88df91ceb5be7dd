"""Members are not given up because the control plane has lost sight of nodes: not soon, not all at once.

Checked when status first counts a member as ended whose pod exists, on a node that is not Ready.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import finished, leaving, plan_of, previous, status_of, terminated, training
from tests.simulation.objects import JOBS, NODES, PODS, Json, is_ready, key_of, node_of, terminal, terminating, uid_of

MASS_OUTAGE_SECONDS: Final = 600
MOMENT_SECONDS: Final = 5.0
MARGIN_SECONDS: Final = 10.0
NEWS_SECONDS: Final = 30.0
UNDER_WAY_SECONDS: Final = 1.0
"""A decision made a moment ago did not know the node that made it an outage."""
DEAF_SECONDS: Final = 60.0
"""Nor for longer if the news are delayed."""


class Outages(Promise):
    """As the node lifecycle controller counts them: no node is Ready, or more than two and at least 55 % are not."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._outage_since: float | None = None
        self._none_since: float | None = None
        """Since when no node has been Ready."""
        self._dark_since: dict[str, float] = {}
        """Since when a node has not been Ready, or was gone."""
        self._went_dark: set[str] = set()
        """Nodes that were Ready once, and then were not, or were deleted."""
        self._lit_at: dict[str, float] = {}
        """Since when a node has been Ready; absent if it is not."""
        self._over_at = -1e9
        """When the last outage ended."""
        self._given_up: dict[str, tuple[float, str]] = {}
        """By uid of the job: when, in this outage, and on which node."""

    def on_change(self, change: Change) -> None:
        if change.kind == NODES:
            self._count_nodes()
            self._note_light(change)
        elif change.kind == JOBS and change.old is not None and by_operator(change) and not finished(change.raw):
            gone = training(status_of(change.old)) - training(status_of(change.raw))
            if terminating(change.raw):
                gone -= leaving(status_of(change.old))  # not waited for, because no run follows
            for name in sorted(gone):
                pod = self._world.server.find(PODS, key_of(change.raw)[0], name)
                if pod is None or uid_of(pod) not in _uids(status_of(change.old)):
                    continue  # another pod of its name is not the member
                if not terminal(pod) and not terminated(pod):
                    self._on_given_up(change.raw, name, node_of(pod))

    def _note_light(self, change: Change) -> None:
        """A node that is Ready for only a moment may go unnoticed."""
        name, lit = key_of(change.raw)[1], is_ready(change.raw) and change.event != "DELETED"
        if change.event == "DELETED" or (not lit and change.old is not None and is_ready(change.old)):
            self._went_dark.add(name)
        if lit:
            self._lit_at.setdefault(name, self._case.now)
            return
        if name not in self._dark_since or self._case.now - self._lit_at.get(name, self._case.now) > MOMENT_SECONDS:
            self._dark_since[name] = self._case.now
        self._lit_at.pop(name, None)

    def _on_given_up(self, job: Json, name: str, node: str) -> None:
        there = self._world.node(node)
        if there is None:
            return
        if not is_ready(there):
            self._check(job, name, node)
        lit = self._case.now - self._lit_at.get(node, self._case.now) > MOMENT_SECONDS
        dark = 0.0 if lit else self._case.now - self._dark_since.get(node, self._case.now)
        least = float(job["spec"]["failure"]["lostNodeSeconds"]) - MARGIN_SECONDS
        old_news = self._case.deaf and node in self._went_dark
        if dark < least and not (is_ready(there) and old_news):
            self._case.fail("hasty", f"{name} is given up, its node {node} has not been Ready for {dark:.0f} s")

    def _count_nodes(self) -> None:
        nodes, now = self._world.server.each(NODES), self._case.now
        unready = sum(not is_ready(one) for one in nodes)
        none = bool(nodes) and unready == len(nodes)
        self._none_since = (now if self._none_since is None else self._none_since) if none else None
        if none or (unready > 2 and unready >= 0.55 * len(nodes)):
            self._outage_since = now if self._outage_since is None else self._outage_since
        elif self._outage_since is not None:
            if now - self._outage_since > MOMENT_SECONDS:  # otherwise a node was added, and had not reported Ready yet
                self._over_at = now
            self._outage_since = None
            self._given_up.clear()

    def _check(self, job: Json, name: str, node: str) -> None:
        failure, now, uid = job["spec"]["failure"], self._case.now, uid_of(job)
        patience = failure["lostNodeSeconds"]
        if self._outage_since is None:
            if now - self._over_at < patience - MARGIN_SECONDS and not self._case.deaf:
                words = f"{name} is given up {now - self._over_at:.0f} s after an outage that its node was a part of"
                self._case.fail("mass-outage", words)
            return
        least, age = (
            float(failure.get("massOutageSeconds", MASS_OUTAGE_SECONDS)) - MARGIN_SECONDS,
            now - self._outage_since,
        )
        if (DEAF_SECONDS if self._case.deaf else UNDER_WAY_SECONDS) <= age < least:
            self._case.fail("mass-outage", f"{name} is written off while most nodes are not Ready")
        if self._none_since is not None and now - self._none_since > NEWS_SECONDS and not self._case.deaf:
            self._case.fail("mass-outage", f"{name} is written off, and no node is Ready to take another")
        at, other = self._given_up.get(uid, (-1e9, ""))
        if other != node and now - at < patience - MARGIN_SECONDS:
            self._case.fail("mass-outage", f"{name} on {node} is written off {now - at:.0f} s after those on {other}")
        self._given_up[uid] = now, node


def _uids(status: Json) -> set[str]:
    """Members of a run, and those leaving one."""
    return {one["uid"] for run in (plan_of(status), previous(status)) for one in run.get("members") or ()}
