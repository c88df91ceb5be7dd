"""How long recovery takes: after a lost member, after a lost node, and until a possible run begins."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.simulation.checks.case import Case, Promise
from tests.simulation.checks.reading import (
    condition,
    current,
    finished,
    plan_of,
    root_of,
    status_of,
    training,
    upcoming,
)
from tests.simulation.objects import JOBS, NODES, PODS, Json, is_ready, key_of, node_of, seconds_of, terminating, uid_of
from tests.simulation.world import Fact

RECOVERY_SECONDS: Final = 120.0
START_SECONDS: Final = 75.0
"""Pods of the earlier job of the name may take their grace."""
OPENING_SECONDS: Final = 25.0
"""From the moment when all ranks run, and none of the run before, until the log is open."""
LOST_NODE_SECONDS: Final = 60.0
"""In addition to the job's own patience."""
_HARMLESS: Final = frozenset(
    {
        "kill-pod",
        "noisy-pods",
        "drain",
        "eviction-refused",
        "delete-pod",
        "scale",
        "relabel",
        "oom",
        "watch-duplicate",
        "foreign-outcome",
        "self-blame",
        "code-failure",
        "ended-pod-deleted",
        "suspend",
        "cordon-for-a-moment",
        "stranger",
        "delete-job",
    }
)
"""Nothing these do obstructs a run that begins."""


class Recovery(Promise):
    """Checked while a leader works."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._started: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        """When each rank of a run was started."""
        self._living: dict[tuple[str, int], int] = defaultdict(int)
        self._last_end: dict[str, float] = {}
        """By uid of the job: when the last process ended."""
        self._opened: set[tuple[str, int]] = set()
        self._stepped: dict[str, float] = {}

    def on_fact(self, fact: Fact) -> None:
        if fact.what not in ("trainer-started", "trainer-ended", "took-over", "opened", "step"):
            return
        uid, run = fact.facts["uid"], int(fact.facts["run"])
        if fact.what == "trainer-started":
            self._started[uid, run][int(fact.facts["rank"])] = fact.at
            self._living[uid, run] += 1
        elif fact.what == "trainer-ended":
            self._living[uid, run] -= 1
            self._last_end[uid] = fact.at
        elif fact.what == "took-over":
            if not fact.facts["came"]:
                self._started[uid, run][int(fact.facts["rank"])] = fact.at
                self._living[uid, run] += 1
                self._living[uid, int(fact.facts["before"])] -= 1
        elif fact.what == "opened":
            self._opened.add((uid, run))
        else:
            self._stepped[uid] = fact.at

    def look(self) -> None:
        nodes = {key_of(node)[1]: node for node in self._world.server.each(NODES)}
        healthy = all(is_ready(node) for node in nodes.values()) and self._world.fired.keys() <= _HARMLESS
        open_nodes = healthy and not any(node["spec"].get("unschedulable") for node in nodes.values())
        for job in self._world.server.each(JOBS):
            if finished(job) or terminating(job) or job["spec"].get("suspend"):
                self._since.pop(("recovery", uid_of(job)), None)
                continue
            self._look_at_start(job, idle=open_nodes)
            self._look_at_opening(job, healthy=healthy)
            self._look_at_steps(job, idle=open_nodes)
            self._look_at_nodes(job, nodes)

    def _look_at_start(self, job: Json, *, idle: bool) -> None:
        """A job that nothing obstructs begins to prepare a run."""
        status, uid = status_of(job), uid_of(job)
        prepared = plan_of(status) or upcoming(status).get("members")
        others = [one for one in self._world.server.each(JOBS) if uid_of(one) != uid and root_of(one) == root_of(job)]
        pause = int((status.get("failures") or {}).get("consecutive") or 0)
        free = idle and not others and not pause and not self._rests(job) and _can_start(job)
        words = f"{key_of(job)[1]} is not prepared to run, and nothing is in its way: {condition(status, 'Running')}"
        self._lasting("start", uid, free and not prepared, START_SECONDS, words)

    def _rests(self, job: Json) -> bool:
        """Whether it released nodes that others may need, and pauses: it does not look for room meanwhile."""
        until = (status_of(job).get("gang") or {}).get("until")
        longest = 2 * int(job["spec"].get("startTimeoutSeconds") or 600)
        return until is not None and 0 < seconds_of(until) - self._case.now <= longest

    def _look_at_opening(self, job: Json, *, healthy: bool) -> None:
        """The operator does not wait for a run whose processes are all dead."""
        uid, plan = uid_of(job), plan_of(status_of(job))
        run = uid, int(plan.get("run") or 0)
        ranks = self._started.get(run, {})
        older = any(count > 0 for (owner, number), count in self._living.items() if owner == uid and number < run[1])
        whole = healthy and plan and len(ranks) == int(plan["world"]) == self._living[run]
        words = (
            f"{key_of(job)[1]}: all of run {run[1]} are there, no member of an older run lives, and it does not begin"
        )
        waits = bool(whole) and run not in self._opened and not older
        self._lasting("opening", uid, waits, OPENING_SECONDS, words)

    def _look_at_steps(self, job: Json, *, idle: bool) -> None:
        """A member dies, and nothing else happens: the next run steps soon, except for the pause after failures."""
        uid, failed = uid_of(job), status_of(job).get("failures") or {}
        pause = min(2 ** max(int(failed.get("consecutive") or 0) - 1, 0), 300)
        pods = self._case.pods(uid)
        crowded = any(not node_of(pod) for pod in pods)
        still = idle and not crowded and uid in self._stepped and self._case.now - self._stepped[uid] > 30.0
        words = f"{key_of(job)[1]} has made no step for {self._case.now - self._stepped.get(uid, 0):.0f} s"
        self._lasting("recovery", uid, still, RECOVERY_SECONDS - 30.0 + pause, words)

    def _look_at_nodes(self, job: Json, nodes: dict[str, Json]) -> None:
        """Members on an unreachable node are given up, if other nodes are reachable."""
        status, lost = status_of(job), int(job["spec"]["failure"]["lostNodeSeconds"])
        down = [node for node in nodes.values() if not is_ready(node)]
        outage = len(down) == len(nodes) or (len(down) > 2 and len(down) >= 0.55 * len(nodes))
        for name in training(status):
            pod = self._world.server.find(PODS, key_of(job)[0], name)
            node = nodes.get(node_of(pod)) if pod else None
            dark = pod is not None and (node is None or not is_ready(node))
            since = 0.0 if node is None else _not_ready_since(node)
            words = f"{key_of(job)[1]} waits for {name} on a node that has been unreachable since {since:.0f} s"
            given = lost + self._case.patience(LOST_NODE_SECONDS)
            holds = dark and not outage and not self._case.fired("all-kubelets-silent")
            self._lasting("given-up", f"{uid_of(job)} {name} {current(status).get('run')}", holds, given, words)


def _can_start(job: Json) -> bool:
    return bool(job["spec"]["template"]["spec"]["containers"][0].get("image"))


def _not_ready_since(node: Json) -> float:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((one for one in conditions if one["type"] == "Ready"), None)
    return seconds_of(ready["lastTransitionTime"]) if ready else 0.0
