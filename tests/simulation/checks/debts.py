"""What the operator owes by now: announcements heeded, members labelled and protected.

`claims` checks the operator's statements; this module checks its omissions. Each debt counts from the moment the world
shows it, while a leader works, and is generous: news take time, more so if a watch is slow, silent or cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise
from tests.simulation.checks.reading import (
    ROLE,
    UID,
    assignment,
    condition,
    finished,
    intent,
    on_cordon,
    plan_of,
    rests,
    run_told,
    status_of,
    terminated,
    to_come,
    training,
    upcoming,
    wanted,
)
from tests.simulation.checks.room import fits
from tests.simulation.objects import (
    BUDGETS,
    JOBS,
    NODES,
    PODS,
    Json,
    is_ready,
    key_of,
    labels_of,
    matches,
    node_of,
    owner_of,
    terminal,
    terminating,
    uid_of,
)

SECONDS: Final = 60.0
QUICK: Final = {"unlabelled": 20.0, "unnoticed": 20.0, "successors": 8.0, "suspended": 8.0}
"""Seconds count: evictions look at the label, peers wait for the ended and for the new member, users wait for
devices."""
PACED: Final = 3
"""From so many replacements in a row on, the pause before the next one is long."""
_HARMLESS: Final = frozenset(
    {"drain", "eviction-refused", "scale", "delete-pod", "cordon-for-a-moment", "noisy-pods", "watch-duplicate"}
)
_TAINTS: Final = {"ToBeDeletedByClusterAutoscaler": "cluster-autoscaler", "karpenter.sh/disrupted": "karpenter"}
"""Each with the row of the table by whose name a job may choose its reaction."""
_MOVES: Final = ("Move", "Vacate")
_MOVES_IF_ROOM: Final = ("MoveIfRoom", "VacateIfRoom")


class Debts(Promise):
    """Checked while a leader works."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._created: set[tuple[str, str]] = set()
        """The owning job, and the name, of each pod that ever existed: names may be shared."""

    def on_change(self, change: Change) -> None:
        if change.kind == PODS and change.event == "ADDED":
            self._created.add((owner_of(change.raw), key_of(change.raw)[1]))

    def look(self) -> None:
        due = {(check, what): words for job in self._world.server.each(JOBS) for check, what, words in self._debts(job)}
        self._since = {debt: self._since.get(debt, self._case.now) for debt in due}
        for (check, what), since in self._since.items():
            if self._case.now - since >= self._case.patience(QUICK.get(check, SECONDS)):
                self._case.fail(check, due[check, what])

    def _debts(self, job: Json) -> Iterator[tuple[str, str, str]]:
        status, name = status_of(job), key_of(job)[1]
        plan = plan_of(status)
        if terminating(job) or finished(job):
            return
        for end in self._unnoticed(job, status):
            yield "unnoticed", f"{uid_of(job)} {end}", f"{end} has ended, and {name} waits for it"
        for pod in self._unasked(job):
            yield "suspended", uid_of(pod), f"{name} is suspended, and {key_of(pod)[1]} has not been asked to leave"
        if not plan:
            return
        if self._lacks_successors(job, status):
            words = f"{name} has to continue without some of its members, and they are not replaced"
            yield "successors", f"{uid_of(job)} {intent(status).get('since')}", words
        members = {one["uid"]: one for one in plan["members"]}
        pods = [pod for pod in self._world.server.each(PODS) if uid_of(pod) in members and not terminal(pod)]
        if not intent(status):
            yield from self._unheeded(job, plan, pods)
            for pod in pods:
                if labels_of(pod).get(ROLE) != "member" and not terminating(pod) and run_told(pod) == int(plan["run"]):
                    yield "unlabelled", uid_of(pod), f"{key_of(pod)[1]} trains for {name} without the role of a member"
        if pods and not self._protected(job) and not self._world.server.policy.refuse_budgets:
            yield "unprotected", name, f"the budget of {name} lets its members be evicted"

    def _unnoticed(self, job: Json, status: Json) -> Iterator[str]:
        """A member is over when container 0 has terminated, whatever runs beside it, and when its pod is gone."""
        for name in sorted(training(status)):
            pod = self._world.server.find(PODS, key_of(job)[0], name)
            if pod is None or terminated(pod):
                yield name
        for name in sorted(to_come(status)):
            made = (uid_of(job), name) in self._created
            if made and self._world.server.find(PODS, key_of(job)[0], name) is None:
                yield name

    def _unasked(self, job: Json) -> Iterator[Json]:
        """All members leave a suspended job, whatever else was going on; a refused patch reaches no member."""
        if not job["spec"].get("suspend") or self._case.fired("webhook-patch"):
            return
        for pod in self._case.pods(uid_of(job)):
            ended = terminal(pod) or terminating(pod) or terminated(pod)
            if "rank" in assignment(pod) and not ended and labels_of(pod).get(ROLE) == "member":
                yield pod

    def _lacks_successors(self, job: Json, status: Json) -> bool:
        """Standbys are named as soon as it is known which members cannot continue."""
        following = upcoming(status)
        paced = int((following.get("replacements") or {}).get("count") or 0) > PACED
        if following.get("plan") or paced or not self._world.fired.keys() <= _HARMLESS:
            return False
        if not intent(status).get("prepare"):
            return False
        found = (self._world.server.find(PODS, key_of(job)[0], one["name"]) for one in plan_of(status)["members"])
        go_on = [
            pod for pod in found if pod and not terminating(pod) and not terminated(pod) and self._may_stay(job, pod)
        ]
        return len(following.get("members") or ()) < wanted(job["spec"]) - len(go_on)

    def _may_stay(self, job: Json, pod: Json) -> bool:
        node = self._world.server.find(NODES, "", node_of(pod))
        return node is not None and is_ready(node) and not any(one in _MOVES for one in _reactions(job, node))

    def _is_to_be_left(self, job: Json, node: Json) -> bool:
        """An announcement counts as the job decides: always, while there is room for one more elsewhere, or not at
        all."""
        words = list(_reactions(job, node))
        if any(one in _MOVES for one in words):
            return True
        return any(one in _MOVES_IF_ROOM for one in words) and fits(self._case, job) > 0

    def _unheeded(self, job: Json, plan: Json, pods: list[Json]) -> Iterator[tuple[str, str, str]]:
        """Reasons for the run to end, while status has no intent."""
        name, spec = key_of(job)[1], job["spec"]
        if spec.get("suspend"):
            yield "unheeded", name, f"{name} is suspended, and run {plan['run']} goes on"
        if len(plan["members"]) != wanted(spec) and not rests(job, self._case.now):
            yield "unheeded", name, f"{name} is to have {wanted(spec)} members, run {plan['run']} goes on"
        nodes = {key_of(node)[1]: node for node in self._world.server.each(NODES)}
        for pod in pods:
            node = nodes.get(node_of(pod))
            if node is None or self._is_to_be_left(job, node):
                words = f"node {node_of(pod)} is going away, and the operator does not ask {key_of(pod)[1]} to leave"
                yield "unheeded", uid_of(pod), words

    def _protected(self, job: Json) -> bool:
        """Every pod that the budget counts has to stay, whoever owns it."""
        uid = uid_of(job)
        budgets = self._world.server.each(BUDGETS)
        budget = next((one for one in budgets if owner_of(one) == uid), None)
        taken = any(key_of(one)[1] == f"{key_of(job)[1]}-{uid[:4]}" for one in budgets)
        if budget is None and (taken or self._world.server.policy.refuse_budgets):
            return condition(status_of(job), "Protected").get("status") == "False"  # it cannot be, and status says so
        labels = {"perdure.dev/job": key_of(job)[1], UID: uid, ROLE: "member"}
        if not matches(((budget or {}).get("spec") or {}).get("selector"), labels):
            return False
        least = ((budget or {}).get("spec") or {}).get("minAvailable")
        if budget is None or not isinstance(least, int) or budget["spec"].get("maxUnavailable") is not None:
            return False
        labelled = (pod for pod in self._world.server.each(PODS) if labels_of(pod).get(ROLE) == "member")
        counted = [pod for pod in labelled if labels_of(pod).get(UID) == uid and is_ready(pod)]
        return least >= len(counted)


def _reactions(job: Json, node: Json) -> Iterator[str]:
    """The job's reaction to each thing that the node shows."""
    if terminating(node):
        yield "Move"
    if node["spec"].get("unschedulable"):
        yield on_cordon(job)
    chosen = job["spec"]["disruption"].get("signals") or {}
    for one in node["spec"].get("taints") or ():
        if one["key"] in _TAINTS:
            yield chosen.get(_TAINTS[one["key"]], "Move")
