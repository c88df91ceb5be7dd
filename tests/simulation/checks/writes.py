"""Every write follows from status: no pod without an allotted number, no assignment of an older run.

A write may be in flight while status changes, so a recent status counts as well; for longer if the network is slow.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final, NamedTuple

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    ROLE,
    UID,
    assignment,
    finished,
    intent,
    leaving,
    plan_of,
    plans,
    previous,
    run_told,
    status_of,
    terminated,
    to_come,
    training,
    upcoming,
)
from tests.simulation.objects import (
    BUDGETS,
    EVICTIONS,
    JOBS,
    PODS,
    Json,
    is_ready,
    key_of,
    labels_of,
    owner_of,
    phase_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)

UNDER_WAY_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 60.0
IDLE_GRACE_SECONDS: Final = 10
EARLY_SECONDS: Final = 5.0
SEEN_SECONDS: Final = 0.1
"""A watch reports sooner than that."""
_UID: Final = ("/metadata/uid",)
_VERSION: Final = ("/metadata/resourceVersion",)
_TOLD: Final = ("/metadata/annotations/perdure.dev~1assignment", *_VERSION)
_NEEDS: Final = {
    ("status", JOBS): (_UID, _VERSION),
    ("delete", PODS): (_UID, _VERSION),
    ("delete", JOBS): (_UID,),
    ("delete", BUDGETS): (_UID,),
    ("patch", PODS): (_UID, _TOLD),
    ("patch", BUDGETS): (_UID, _VERSION),
    ("patch status", EVICTIONS): (_UID,),
}
"""What a write has to rest on, one of each."""
_SLOW: Final = ("slow-call", "lost-answer", "timeout", "late-write")


class Said(NamedTuple):
    """The content of a status, and until when it held."""

    until: float
    status: Json
    deleting: bool
    suspended: bool


class Writes(Promise):
    """Checked when the API server accepts them."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._before: dict[str, deque[Said]] = defaultdict(lambda: deque(maxlen=60))
        """By uid of the job: what it was before each change."""
        self._deleted: dict[str, float] = {}
        """When the end of a pod's grace was set last, by uid."""
        self._freed: dict[str, float] = {}
        """When a pod, by uid, lost its owner."""
        self._of_people: set[str] = set()
        """Pods, by uid, that a user made, and not from one of a job's."""
        self._disturbed: dict[str, float] = {}
        """When another client last changed the budget or the labels of a job's pods."""

    def on_change(self, change: Change) -> None:
        self._note(change)
        if not by_operator(change):
            return
        if change.kind == PODS and uid_of(change.raw) in self._of_people:
            self._case.fail("stranger", f"pod {key_of(change.raw)[1]} is a user's, and the operator changes it")
        if change.kind == PODS and change.event == "ADDED":
            self._check_creation(change.raw)
        elif change.kind == PODS and change.old is not None:
            self._on_pod(change, change.old)
        elif change.kind == BUDGETS and change.old is not None:
            if not owner_of(change.old) and UID not in labels_of(change.old):
                words = f"budget {key_of(change.raw)[1]} is not the job's, and the operator changes it"
                self._case.fail("stranger", words)
            if change.event == "MODIFIED":
                self._check_budget(change.raw)

    def on_write(self, who: str, verb: str, kind: str, name: str, rests: frozenset[str]) -> None:
        """It is meant for that very object, in the state of the decision: otherwise it is refused."""
        needs = _NEEDS.get((verb, kind), ())
        lacks = [one for one in needs if not any(path in rests for path in one)]
        if lacks:
            words = f"{who} sends a {verb} of {name} that would be carried out whatever {' or '.join(lacks[0])} is"
            self._case.fail("precondition", words)

    def _note(self, change: Change) -> None:
        raw, old, now = change.raw, change.old, self._case.now
        if change.kind == PODS and change.event == "ADDED" and change.by == "user" and not owner_of(raw):
            self._of_people.add(uid_of(raw))
        if change.kind == JOBS and old is not None:
            self._before[uid_of(old)].append(_said(now, old))
        if change.kind == PODS and not owner_of(raw):
            self._freed.setdefault(uid_of(raw), now)
        if change.kind == PODS and _end_of(raw) != _end_of(old or {"metadata": {}}):
            self._deleted[uid_of(raw)] = now
        if change.kind in (BUDGETS, PODS) and change.by in ("user", "webhook"):
            self._disturbed[key_of(raw)[0]] = now

    def _said(self, uid: str) -> list[Said]:
        """Now, and as long ago as this write may have been sent."""
        job = self._case.job(uid)
        age = SLOW_SECONDS if self._case.fired(*_SLOW) else UNDER_WAY_SECONDS
        now = [_said(self._case.now, job)] if job else []
        return now + [one for one in self._before[uid] if one.until >= self._case.now - age]

    def _check_creation(self, pod: Json) -> None:
        uid, name = owner_of(pod), key_of(pod)[1]
        said = self._said(uid)
        if uid not in self._case.jobs:
            return
        if not any(name in to_come(one.status) for one in said):
            self._case.fail("unallotted", f"pod {name} is created, and status has not allotted its name")
        if all(one.deleting for one in said):
            self._case.fail("undead", f"pod {name} is created for a job that is being deleted")
        if all(one.suspended for one in said):
            self._case.fail("heedless", f"pod {name} is created for a job that is suspended")
        if all(one.status.get("logLost") for one in said):
            self._case.fail("log-lost", f"pod {name} is created, and status says that the log is lost")

    def _on_pod(self, change: Change, old: Json) -> None:
        pod, name = change.raw, key_of(change.raw)[1]
        self._check_orphan(pod)
        if (change.event == "DELETED" or terminating(pod)) and not terminating(old):
            self._check_deletion(old)
            self._check_grace(pod, old)
        if change.event == "DELETED":
            return
        told, before = assignment(pod), assignment(old)
        if told != before:
            if run_told(pod) < run_told(old) and not self._case.fired("status-restored"):
                self._case.fail("stale-write", f"{name} is assigned run {run_told(pod)} after run {run_told(old)}")
            said = [one.status for one in self._said(owner_of(pod))]
            if "run" in told and said and not any(_follows(told, name, uid_of(pod), status) for status in said):
                self._case.fail("stale-write", f"{name} is assigned {told}, and status does not say so")
            if told.get("leave"):
                self._check_request(pod, told)
        if labels_of(pod).get(ROLE) == "member" != labels_of(old).get(ROLE):
            self._check_promotion(pod)

    def _check_deletion(self, pod: Json) -> None:
        """A pod that is Ready and assigned to the newest run is not deleted while nothing asks that run to end."""
        job = self._case.job(owner_of(pod))
        if job is None or terminating(job) or not is_ready(pod) or phase_of(pod) != "Running" or finished(job):
            return
        status, said = status_of(job), assignment(pod)
        plan = plan_of(status)
        if not plan or intent(status) or "rank" not in said:
            return
        if int(said["run"]) == int(plan["run"]) and uid_of(pod) in {one.get("uid") for one in plan["members"]}:
            self._case.fail("stray-delete", f"{key_of(pod)[1]} trains in run {plan['run']} and the operator deletes it")

    def _check_orphan(self, pod: Json) -> None:
        """`kubectl delete --cascade=orphan`: pods that should outlive their job are left alone while it goes."""
        job = self._case.job(labels_of(pod).get(UID, "")) if not owner_of(pod) else None
        seen = self._case.now - self._freed.get(uid_of(pod), self._case.now) > UNDER_WAY_SECONDS / 2
        going = job is not None and "orphan" in (job["metadata"].get("finalizers") or ())
        if going and seen and not self._case.deaf:
            self._case.fail("orphan", f"{key_of(pod)[1]} is to outlive its job, and the operator changes it")

    def _check_grace(self, pod: Json, old: Json) -> None:
        """A pod without work has nothing to save; one that was given time may use it."""
        name, grace = key_of(pod)[1], int(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        job = self._case.job(owner_of(pod))
        planned = job is not None and name in training(status_of(job))
        if "standby" in assignment(old) and grace > IDLE_GRACE_SECONDS and not planned:
            self._case.fail("idle-grace", f"standby {name} is given {grace} s to save nothing")
        if job is None or finished(job) or terminal(old) or terminated(old) or not assignment(old).get("leave"):
            return
        status = status_of(job)
        asked = (previous(status).get("intent") or {}) if name in leaving(status) else intent(status)
        deadline = asked.get("deadline")
        left = seconds_of(deadline) - self._case.now if deadline and name in training(status) else 0.0
        if left > EARLY_SECONDS and not self._case.fired("late-write"):
            self._case.fail("hasty", f"{name} is deleted {left:.0f} s before its time to save is over")

    def _check_request(self, pod: Json, told: Json) -> None:
        """The time to save ends with the first member that has to go; a run that lost a member can save nothing."""
        status = self._case.status(owner_of(pod))
        plan, name = plan_of(status), key_of(pod)[1]
        if told.get("handover"):
            return  # an offer: its plan was made before, and living members notice the silence themselves
        members = {one["uid"] for one in plan.get("members") or ()}
        lost = (
            intent(status).get("disruption") == "MemberLost" and uid_of(pod) in members
        )  # others leave the run before
        if lost and int(plan.get("run") or 0) not in told.get("lost", ()):
            self._case.fail(
                "stale-write", f"{name} is assigned to leave, without the loss of a member of its run: {told}"
            )
        if int(plan.get("run") or 0) in told.get("lost", ()):
            return
        written = self._before[owner_of(pod)][-1].until if self._before[owner_of(pod)] else 0.0
        for other in self._case.pods(owner_of(pod)):
            if (
                uid_of(other) in members - {uid_of(pod)}
                and terminating(other)
                and not terminal(other)
                and not terminated(other)
            ):
                left = seconds_of(other["metadata"]["deletionTimestamp"]) - self._case.now
                known = self._deleted.get(uid_of(other), self._case.now) < written - SEEN_SECONDS
                if known and not self._case.deaf and int(told["seconds"]) > max(left, 1.0) + EARLY_SECONDS:
                    words = f"{name} is given {told['seconds']} s to save, {key_of(other)[1]} has {left:.0f} s left"
                    self._case.fail("grace", words)

    def _check_promotion(self, pod: Json) -> None:
        """The budget counts a member before it has the label: in between it could be evicted.

        A delayed write may arrive when the job is gone, whose budget goes with it or is deleted after it.
        """
        uid, now = owner_of(pod), self._case.now
        if self._case.job(uid) is None and self._case.deaf:
            return
        if now - self._disturbed.get(key_of(pod)[0], -1e9) < (420.0 if self._case.deaf else 30.0):
            return
        budget = next((one for one in self._world.server.each(BUDGETS) if owner_of(one) == uid), None)
        least = ((budget or {}).get("spec") or {}).get("minAvailable", 0)
        labelled = (one for one in self._case.pods(uid) if labels_of(one).get(ROLE) == "member")
        counted = sum(is_ready(one) and not terminal(one) for one in labelled)
        if not isinstance(least, int) or least < counted:
            words = f"{key_of(pod)[1]} becomes a member, the budget asks for {least} of {counted}"
            self._case.fail("budget-late", words)

    def _check_budget(self, budget: Json) -> None:
        """Lowered only after the labels are gone."""
        least = (budget.get("spec") or {}).get("minAvailable")
        job = self._case.job(owner_of(budget))
        if job is None or finished(job) or not isinstance(least, int):
            return
        members = self._members(uid_of(job))
        if least < members:
            self._case.fail("budget-open", f"{key_of(budget)[1]} asks for {least}, {members} members are alive")

    def _members(self, uid: str) -> int:
        alive = (one for one in self._case.pods(uid) if not terminal(one) and not terminated(one))
        return sum(labels_of(one).get(ROLE) == "member" for one in alive)


def _said(until: float, job: Json) -> Said:
    return Said(until, status_of(job), terminating(job), bool(job["spec"].get("suspend")))


def _end_of(pod: Json) -> str:
    """When a pod's grace is over; "" while it is not deleted."""
    return str(pod["metadata"].get("deletionTimestamp") or "")


def _follows(told: Json, name: str, uid: str, status: Json) -> bool:
    """Whether this status justifies sending that to this pod."""
    told_by = [plan for plan in plans(status) if int(plan["run"]) == int(told["run"])]
    if not told.get("leave"):
        return any(uid in {one["uid"] for one in plan["members"]} for plan in told_by)
    if any(name in (plan.get("leavers") or ()) for plan in told_by):
        return True
    if told.get("cause") == "written off" and uid not in {one["uid"] for plan in told_by for one in plan["members"]}:
        return max(int(one.get("run") or 0) for one in (status, upcoming(status))) >= int(told["run"])
    asked = bool(intent(status).get("leave") or intent(status).get("prepare")) or not plan_of(status)
    return asked and int(upcoming(status).get("run") or status.get("run") or 0) == int(told["run"])
