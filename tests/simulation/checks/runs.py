"""Which members train and which are evicted: I3, I5, and the log's part (I1, I2, I4, I7).

I5 holds by the budget. A user's pod with a job's labels is counted by it, and takes a member's place among those that
may not be evicted, until the operator has raised the budget. So after a user's change I5 is suspended for some seconds,
while no leader works, and while admission refuses the operator's budgets: nobody could keep it meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import ROLE, assignment, finished, plans, status_of
from tests.simulation.objects import (
    BUDGETS,
    JOBS,
    NODES,
    PODS,
    Json,
    is_ready,
    key_of,
    labels_of,
    node_of,
    owner_of,
    phase_of,
    terminal,
    terminating,
    uid_of,
)
from tests.simulation.scene import NAMESPACE
from tests.simulation.world import Fact

REFUSED_SECONDS: Final = 60.0
"""The longest pause of a round that is refused again and again."""
_FORBIDDEN: Final = "403"
GIVEN_UP_SECONDS: Final = 300.0
"""How long a node may be out of sight: a trainer there is asked when it is seen again, and another run is current."""


@dataclass
class Training:
    """The members stepping at a root."""

    run: int = 0
    uid: str = ""
    at: float = 0.0


class Runs(Promise):
    """Also keeps the known steps for `settled`."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.training: dict[str, Training] = defaultdict(Training)
        """By the job's name, because the root outlives the job."""
        self._emptied: set[str] = set()
        self._unready: dict[str, float] = {}
        """When a node was last reported not Ready."""

    def on_change(self, change: Change) -> None:
        operator, case = by_operator(change), self._case
        if operator and change.kind == BUDGETS:  # the user's change is repaired
            case.shorten("/".join(key_of(change.raw)), 5.0)
        if change.kind == NODES and change.old is not None and not is_ready(change.raw):
            self._unready[key_of(change.raw)[1]] = case.now
        if change.kind == JOBS and change.event == "DELETED":
            root = change.raw["spec"]["checkpoint"]["uri"]
            if root in self._emptied:
                case.evidence.emptied(root, 0)  # its memory is deleted with it
        if change.kind == PODS:
            self._on_pod(change, operator)
        if change.by == "user" and change.kind == PODS:
            case.excuse(key_of(change.raw)[0], 20.0)
        if change.by == "user" and change.kind == BUDGETS:
            case.excuse("/".join(key_of(change.raw)), 240.0)

    def on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:  # noqa: ARG002
        """A user's pod that a budget counts opens it until the operator raises it, which admission may refuse."""
        if kind == BUDGETS and wrong == _FORBIDDEN and self._case.is_excused(NAMESPACE):
            self._case.excuse(NAMESPACE, REFUSED_SECONDS)

    def _on_pod(self, change: Change, operator: bool) -> None:
        case, node = self._case, node_of(change.raw)
        former = operator and change.old is not None and labels_of(change.raw).get(ROLE) == "former"
        if former and case.now - self._unready.get(node, -1e9) < 150.0:
            # Giving up a node costs steps: news of it may be old, but never invented.
            case.evidence.excuse(case.now, "its node was given up", seconds=GIVEN_UP_SECONDS)
        ended = change.old is not None and terminal(change.old) and change.by != "pod-gc"
        if not operator and change.event == "DELETED" and node and not ended:
            case.excuse(node, 200.0)
            case.evidence.excuse(case.now, "a pod's object is gone before its container")

    def on_fact(self, fact: Fact) -> None:
        evidence = self._case.evidence
        if fact.what == "evicted":
            self._check_eviction(fact.facts["raw"])
        elif fact.what == "emptied":
            self._emptied.add(fact.facts["root"])
            evidence.emptied(fact.facts["root"], fact.facts["told"], self._unaware())
        elif fact.what == "restores status" and fact.facts["root"] in self._emptied:
            evidence.forgotten(fact.facts["root"], fact.facts["commit"])
        elif fact.what == "stripped":
            evidence.stripped(fact.facts["root"])
        elif fact.what == "damaged":
            evidence.damaged(fact.facts["root"], fact.facts["seq"])
        elif fact.what in ("cut off", "reached again", "power off", "kills"):
            evidence.excuse(self._case.now, fact.what)
            if fact.what == "cut off":
                self._case.excuse(fact.facts["node"], 1e9)
        elif fact.what in ("opened", "committed"):
            self._case.judge(evidence.look())
        elif fact.what == "step":
            self._check_step(fact)

    def _unaware(self) -> list[tuple[str, int]]:
        """Runs that are planned, and whose plans ask for no commit."""
        jobs = self._world.server.each(JOBS)
        return [
            (uid_of(job), int(plan["run"])) for job in jobs for plan in plans(status_of(job)) if not plan.get("floor")
        ]

    def _check_eviction(self, pod: Json) -> None:
        """I5: no member that is assigned, Ready and running is evicted."""
        job, namespace = self._case.job(owner_of(pod)), key_of(pod)[0]
        if job is None or terminating(job) or terminating(pod) or self._case.is_excused(namespace):
            return
        if self._case.is_excused(f"{namespace}/{key_of(job)[1]}-{uid_of(job)[:4]}"):
            return
        said = assignment(pod)
        if finished(job) or not is_ready(pod) or phase_of(pod) != "Running":
            return
        runs = [int(plan["run"]) for plan in plans(status_of(job))]
        if labels_of(pod).get(ROLE) == "member" and "rank" in said and said["run"] >= min(runs, default=0):
            self._case.fail("I5", f"{key_of(pod)[1]} was evicted while it was assigned, Ready and running")

    def _check_step(self, fact: Fact) -> None:
        uid, run, case = fact.facts["uid"], int(fact.facts["run"]), self._case
        if uid not in case.jobs:
            return
        newest = self.training[case.jobs[uid]]
        if run < newest.run if uid == newest.uid else self._is_older(uid, newest.uid):
            if not self._may_be_zombie(self._world.server.find(PODS, "team", fact.who)):
                words = f"steps in run {run} of {uid[:8]} after run {newest.run} of {newest.uid[:8]}"
                case.fail("I3", f"{fact.who} {words}")
            return
        self.training[case.jobs[uid]] = Training(run, uid, case.now)

    def _is_older(self, uid: str, other: str) -> bool:
        order = list(self._case.jobs)
        return other in order and order.index(uid) < order.index(other)

    def _may_be_zombie(self, pod: Json | None) -> bool:
        """Whether the world knows not to count on this pod: its node was lost, or its object is gone."""
        if pod is None:
            return True
        kubelet = self._case.scene.kubelets.get(node_of(pod))
        job = self._case.job(owner_of(pod))
        if job and job["spec"]["checkpoint"]["uri"] in self._emptied and kubelet and kubelet.holds(uid_of(pod)):
            return True  # its run is no longer in the log, and its agent ends it no sooner than its pod ends
        lost = kubelet is None or not kubelet.hears or self._case.ever_excused(kubelet.name)
        return lost or labels_of(pod).get(ROLE) == "former"

    def judge(self) -> None:
        """I1, I2, I4, I7 at the end: the logs against what was trained."""
        users = self._case.scene.users
        done = [user.root for user in users if user.job is not None and status_of(user.job).get("phase") == "Completed"]
        self._case.judge(self._case.evidence.verdict(done, {user.root: user.goal for user in users}))
