"""What the operator says and does against what is so: status beside the world, deletions beside the plan.

Where `checks` counts and compares versions, this module knows the truth that nobody in the cluster can see: whether a
trainer steps, whether a pod has been asked, whether any code was at fault. Each finding is reported only after it has
stayed true for a while with a working leader, for news take time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.simulation.apiserver import Change
from tests.simulation.objects import (
    BUDGETS,
    JOBS,
    NODES,
    PODS,
    REVISIONS,
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
from tests.simulation.scene import Scene
from tests.simulation.world import Fact

ASSIGNMENT: Final = "perdure.dev/assignment"
ROLE: Final = "perdure.dev/role"
FINISHED: Final = ("Completed", "Failed")
CODE_FAULTS: Final = frozenset(
    {"code-failure", "absurd-outcome", "oom", "exit-without-session", "null-grace", "emptied-root"}
)

Fail = Callable[[str, str], None]


class Claims:
    """Asked by `checks`."""

    def __init__(self, scene: Scene, fail: Fail) -> None:
        self._scene = scene
        self._world = scene.world
        self._fail = fail
        self._since: dict[tuple[str, str], float] = {}
        """Since when a suspicion has held, by check and object."""
        self._stepped: dict[str, float] = {}
        """By uid of the job."""
        self._steps: dict[str, int] = {}
        self._outage_since: float | None = None
        self._ended: dict[str, float] = {}
        """Since when status has known, or forgotten, how the pod of that name ended."""
        scene.world.server.observers.append(self._on_change)
        scene.world.listeners.append(self._on_fact)

    # at once

    def _on_fact(self, fact: Fact) -> None:
        if fact.what == "step":
            self._stepped[fact.facts["uid"]] = fact.at
        elif fact.what == "committed":
            self._steps[fact.facts["uid"]] = int(fact.facts["step"])
        elif fact.what == "opened" and int(fact.facts["step"]) == 0 and self._told(fact.facts["uid"]):
            self._fail("log-lost", f"{fact.who} begins at step 0, status knows of step {self._told(fact.facts['uid'])}")

    def _told(self, uid: str) -> int:
        job = self._job(uid)
        return int(((job or {}).get("status") or {}).get("step") or 0)

    def _on_change(self, change: Change) -> None:
        if change.kind == NODES:
            self._count_nodes()
        if not change.by.startswith("operator") or change.old is None:
            return
        if change.kind == PODS:
            self._on_pod(change, change.old)
        elif change.kind == BUDGETS and change.event == "MODIFIED":
            self._check_budget(change.raw)
        elif change.kind == JOBS:
            self._note_ends(change.raw, change.old)
            self._on_status(change.raw, change.old)

    def _note_ends(self, job: Json, old: Json) -> None:
        """The label may follow the decision by long: admission can refuse it, a leader can die in between."""
        for name in _training(old.get("status") or {}) - _training(job.get("status") or {}):
            self._ended.setdefault(name, self._world.now)

    def _on_pod(self, change: Change, old: Json) -> None:
        doomed = change.event == "DELETED" or (terminating(change.raw) and not terminating(old))
        if doomed and not terminating(old):
            self._check_deletion(old)
        if labels_of(change.raw).get(ROLE) == "former" and labels_of(old).get(ROLE) != "former":
            self._check_written_off(change.raw)

    def _check_deletion(self, pod: Json) -> None:
        """Nobody deletes a pod that is Ready and assigned to the newest run while nothing asks that run to end."""
        job = self._job(owner_of(pod))
        if job is None or terminating(job) or not is_ready(pod) or phase_of(pod) != "Running":
            return
        status, said = job.get("status") or {}, assignment(pod)
        plan = max(plans(status), key=lambda one: int(one["run"]), default=None)
        if plan is None or status.get("phase") in FINISHED or intent(status) or "rank" not in said:
            return
        if int(said["run"]) == int(plan["run"]) and uid_of(pod) in {one.get("uid") for one in plan["members"]}:
            self._fail("stray-delete", f"{key_of(pod)[1]} trains in run {plan['run']} and the operator deletes it")

    def _check_written_off(self, pod: Json) -> None:
        decided = self._ended.get(key_of(pod)[1], self._world.now)
        if self._outage_since is not None and 0.0 <= decided - self._outage_since < 590.0:
            self._fail("mass-outage", f"{key_of(pod)[1]} is written off while most nodes are not Ready")

    def _count_nodes(self) -> None:
        nodes = self._world.server.each(NODES)
        unready = sum(not is_ready(one) for one in nodes)
        if nodes and (unready == len(nodes) or (unready > 2 and unready >= 0.55 * len(nodes))):
            self._outage_since = self._world.now if self._outage_since is None else self._outage_since
        else:
            self._outage_since = None

    def _check_budget(self, budget: Json) -> None:
        """Lowered only after the labels are gone."""
        least = (budget.get("spec") or {}).get("minAvailable")
        job = self._job(owner_of(budget))
        if job is None or (job.get("status") or {}).get("phase") in FINISHED or not isinstance(least, int):
            return
        members = sum(labels_of(one).get(ROLE) == "member" and not terminal(one) for one in self._pods(uid_of(job)))
        if least < members:
            self._fail("budget-open", f"{key_of(budget)[1]} asks for {least}, {members} members are alive")

    def _on_status(self, raw: Json, old: Json) -> None:
        status, before = raw.get("status") or {}, old.get("status") or {}
        if status.get("phase") == "Failed" and before.get("phase") != "Failed":
            reason = condition(status, "Failed").get("reason")
            if reason == "DeadlineExceeded" and raw["spec"].get("suspend") and old["spec"].get("suspend"):
                self._fail("deadline-suspended", f"{key_of(raw)[1]} is failed by its deadline while it is suspended")
        code = int((status.get("failures") or {}).get("code") or 0)
        guilty = CODE_FAULTS & set(self._world.fired)
        if code > int((before.get("failures") or {}).get("code") or 0) and not guilty:
            self._fail("blame", f"{key_of(raw)[1]}: a failure of code is counted, and no code has failed")

    # now and then

    def look(self) -> None:
        """Called every second while a leader works."""
        jobs = self._world.server.each(JOBS)
        for job in jobs:
            if terminating(job):
                continue
            status = job.get("status") or {}
            name = key_of(job)[1]
            if status.get("phase") in FINISHED:
                left = [key_of(one)[1] for one in self._pods(uid_of(job)) if not terminal(one) and self._heard(one)]
                self._lasting("leftover", name, bool(left), 200.0, f"{name} is finished, {left} hold their devices")
                continue
            self._look_at_asking(job, status)
            self._look_at_template(job, status)
            self._look_at_training(job, status)
        for pod in self._world.server.each(PODS):
            self._look_at_leaving(pod)
        uids = {uid_of(job) for job in jobs}
        for budget in self._world.server.each(BUDGETS):
            orphan = owner_of(budget) not in uids
            words = f"budget {key_of(budget)[1]} protects pods of a job that is gone"
            self._lasting("orphan-budget", uid_of(budget), orphan, 300.0, words)

    def silence(self) -> None:
        """No leader works: nothing can be expected."""
        self._since.clear()

    def _look_at_asking(self, job: Json, status: Json) -> None:
        asking = intent(status)
        run = int((status.get("next") or {}).get("run") or 0) if asking.get("leave") else 0
        unasked = [
            key_of(one)[1]
            for one in self._pods(uid_of(job))
            if run and labels_of(one).get(ROLE) == "member" and not terminal(one) and not terminating(one)
            if int(assignment(one).get("run") or 0) < run and key_of(one)[1] in _training(status)
        ]
        said = condition(status, "Running").get("message", "") + condition(status, "Disrupted").get("message", "")
        hidden = bool(unasked) and not any(word in said for word in ("denied", "refuse", "could not", "not been asked"))
        words = f"{key_of(job)[1]}: {unasked} have not been asked to leave for run {run}, and status says: {said}"
        self._lasting("unasked", key_of(job)[1], hidden, 25.0, words)

    def _look_at_template(self, job: Json, status: Json) -> None:
        bad = not job["spec"]["template"]["spec"]["containers"][0].get("image")
        said = status.get("conditions") or ()
        told = any(one.get("status") == "False" and "emplate" in str(one.get("reason")) for one in said)
        words = f"{key_of(job)[1]}: the template is invalid and no condition says so"
        self._lasting("silent-template", key_of(job)[1], bad and not told, 40.0, words)
        (namespace, name), waits = key_of(job), condition(status, "Running").get("reason") == "TemplateInvalid"
        revision = f"{name}-{uid_of(job)[:4]}-{status.get('templateChecked')}"
        kept = self._world.server.find(REVISIONS, namespace, revision) is not None
        words = f"{name} waits for a correction of its template although a good one is kept in {revision}"
        self._lasting("kept-in-vain", name, bad and waits and kept, 40.0, words)

    def _look_at_training(self, job: Json, status: Json) -> None:
        running = condition(status, "Running")
        claimed = running.get("status") == "True" and running.get("reason") == "Training"
        steps = self._world.now - self._stepped.get(uid_of(job), -1e9) < 45.0
        words = f"{key_of(job)[1]} is said to train, and nobody has made a step for minutes"
        self._lasting("claims", key_of(job)[1], claimed and not steps, 90.0, words)

    def _look_at_leaving(self, pod: Json) -> None:
        """A pod without work has nothing to save."""
        idle = terminating(pod) and "standby" in assignment(pod) and self._heard(pod) and not self._is_stuck(pod)
        words = f"standby {key_of(pod)[1]} is being deleted, and its kubelet knows"
        self._lasting("slow-standby", uid_of(pod), idle, 12.0, words)

    def _is_stuck(self, pod: Json) -> bool:
        kubelet = self._scene.kubelets.get(node_of(pod))
        return kubelet is None or kubelet.stuck > 0.0 or kubelet.holds(uid_of(pod))

    def _heard(self, pod: Json) -> bool:
        kubelet = self._scene.kubelets.get(node_of(pod))
        return kubelet is not None and kubelet.hears

    def _lasting(self, check: str, what: str, holds: bool, seconds: float, words: str) -> None:
        if not holds:
            self._since.pop((check, what), None)
        elif self._world.now - self._since.setdefault((check, what), self._world.now) >= seconds:
            self._fail(check, words)

    def _job(self, uid: str) -> Json | None:
        return next((one for one in self._world.server.each(JOBS) if uid_of(one) == uid), None)

    def _pods(self, uid: str) -> list[Json]:
        return [one for one in self._world.server.each(PODS) if owner_of(one) == uid]


def condition(status: Json, kind: str) -> Json:
    """{} where it is absent."""
    return next((one for one in status.get("conditions") or () if one.get("type") == kind), {})


def intent(status: Json) -> Json:
    """The decision that the current run ends, wherever status keeps it."""
    found: Any = status.get("intent") or (status.get("current") or {}).get("intent")
    return found if isinstance(found, dict) else {}


def plans(status: Json) -> Iterator[Json]:
    """Run plans anywhere in status: objects with a run, a world and members."""
    for value in status.values():
        if isinstance(value, dict):
            if "world" in value and isinstance(value.get("members"), list):
                yield value
            else:
                yield from plans(value)


def assignment(pod: Json) -> Json:
    """What the operator has told the pod; {} where it cannot be read."""
    try:
        found = json.loads((pod["metadata"].get("annotations") or {}).get(ASSIGNMENT) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _training(status: Json) -> set[str]:
    """Names of members whose end status does not know."""
    current = status.get("current") or {}
    ended = {one.get("name") for one in current.get("outcomes") or ()}
    return {one["name"] for one in (current.get("plan") or {}).get("members") or ()} - ended
