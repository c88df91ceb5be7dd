"""A run's plan can be carried out: its members exist and are protected, its address is rank 0's own, its number is new,
and no other job writes to its root."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from perdure.wire import Env
from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    ROLE,
    assignment,
    finished,
    outcome,
    plan_of,
    root_of,
    status_of,
    terminated,
    upcoming,
)
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
    terminal,
    terminating,
    trainer_of,
    uid_of,
)

KNOWN_SECONDS: Final = 2.0
"""A state this old is known, if nothing delays the news."""
NUMBERS_AT_MOST: Final = 2**31 - 1
"""Higher ones do not count: a pod's owner may write anything."""
SAVE_SECONDS: Final = 10
"""A hand-over attempt that no member ends leaves as long to save, if the time for both is twice as long."""
CLAIM: Final = "claim"
"""The part of a job's spec that `_since_when` tracks."""
_HIDDEN: Final = ("orphan-job",)
"""A pod that has lost its owner belongs to no job, and is ended."""


class Plans(Promise):
    """Checked when status first has them."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._ports: dict[str, tuple[int, str]] = {}
        """By uid of the job: run and port of its newest plan."""
        self._opened: dict[str, int] = defaultdict(int)
        """By uid of the job: the highest run in the log that its pods' last words report."""
        self._committed: dict[str, int] = defaultdict(int)
        """By uid of the job: the newest commit, by its number in the log, that its pods' last words report."""
        self._floors: dict[tuple[str, int], int] = {}
        """By uid of the job and run: the newest known commit when status first had the run's plan."""
        self._since_when: dict[tuple[str, str], float] = {}
        """By kind and uid: since when a job has held its root, a pod has lived, a budget has protected so many."""

    def on_change(self, change: Change) -> None:
        if change.by == "backup":  # the source of that report is forgotten
            self._opened.pop(uid_of(change.raw), None)
            self._committed.pop(uid_of(change.raw), None)
            self._floors = {key: floor for key, floor in self._floors.items() if key[0] != uid_of(change.raw)}
        if change.kind in (JOBS, PODS):
            self._note(change)
        elif change.kind == BUDGETS and not by_operator(change) and change.by != "disruption":
            self._since_when[BUDGETS, owner_of(change.old or change.raw)] = self._case.now
        if change.kind != JOBS or change.old is None or not by_operator(change) or change.event == "DELETED":
            return
        if not self._case.deaf and _begins(status_of(change.old), status_of(change.raw)):
            self._check_claim(change.raw)
        offered, plan = upcoming(status_of(change.raw)).get("plan") or {}, plan_of(status_of(change.raw))
        for one in filter(None, (offered, plan)):
            self._floors.setdefault((uid_of(change.raw), int(one["run"])), self._committed[uid_of(change.raw)])
        self._check_offer(key_of(change.raw)[1], offered)
        if plan and plan != plan_of(status_of(change.old)):
            self._check(change.raw, plan)
            known = upcoming(status_of(change.old)).get("plan") or {}  # offered: its leavers may know that it has begun
            for check, words in self._obstacles(change.raw, plan, new=plan["run"] != known.get("run")):
                self._case.fail(check, f"{key_of(change.raw)[1]}: run {plan['run']} is planned, {words}")

    def _note(self, change: Change) -> None:
        key = change.kind, uid_of(change.raw)
        holds = _holds_root(change.raw) if change.kind == JOBS else _lives(change.raw)
        if not holds or change.event == "DELETED":
            self._since_when.pop(key, None)
        else:
            self._since_when.setdefault(key, self._case.now)
        if change.kind == JOBS and (change.old is None or change.raw["spec"] != change.old["spec"]):
            self._since_when[CLAIM, uid_of(change.raw)] = self._case.now
        if change.kind == PODS and by_operator(change) and change.old is not None and terminated(change.old):
            opened = outcome(change.old).get("opened")  # a deletion comes after reading the last words
            told = "run" in assignment(change.old)  # a standby knows no run, whatever its owner makes it say
            if told and isinstance(opened, int) and opened <= NUMBERS_AT_MOST:
                job = owner_of(change.raw)
                self._opened[job] = max(self._opened[job], opened)
            if told and labels_of(change.old).get(ROLE) == "member":
                self._note_commit(owner_of(change.raw), outcome(change.old).get("commit") or {})

    def _note_commit(self, job: str, commit: Json) -> None:
        if isinstance(commit.get("seq"), int) and isinstance(commit.get("step"), int):
            self._committed[job] = max(self._committed[job], commit["seq"])

    def _check(self, job: Json, plan: Json) -> None:
        uid, (namespace, name), run = uid_of(job), key_of(job), int(plan["run"])
        address, _, port = str(plan["master"]).rpartition(":")
        first = self._world.server.find(PODS, namespace, plan["members"][0]["name"])
        if first is not None and uid_of(first) != plan["members"][0]["uid"]:
            first = None  # another of its name was made since
        stored = str(((first or {}).get("status") or {}).get("podIP") or "")
        if not address or (stored and address != stored):
            words = f"run {run} is to meet at {plan['master']}, its first member is at {stored or 'no address yet'}"
            self._case.fail("master", f"{name}: {words}")
        before, last = self._ports.get(uid, (0, ""))
        if before != run and port == last:
            self._case.fail("master", f"{name}: run {run} has the port {port} of run {before}, which may still listen")
        self._ports[uid] = run, port
        if 0 < before < run and int(plan["wait"]) < int(plan["seconds"]) and not self._case.fired("status-restored"):
            words = f"run {run} waits {plan['wait']} s for run {before}, which may save for {plan['seconds']} s"
            self._case.fail("opening-wait", f"{name}: {words}")
        each = int(plan["world"]) // len(plan["members"])
        if [one["rank"] for one in plan["members"]] != list(range(0, int(plan["world"]), each)):
            self._case.fail("master", f"{name}: run {run} has the ranks {[one['rank'] for one in plan['members']]}")

    def _check_claim(self, job: Json) -> None:
        """Of two live jobs with one root, the younger, which never had a member, waits for the other."""
        for other in self._world.server.each(JOBS):
            older = other["metadata"]["creationTimestamp"] < job["metadata"]["creationTimestamp"]
            alive = not (finished(other) or terminating(other) or other["spec"].get("suspend"))
            if older and alive and root_of(other) == root_of(job) and self._is_known(CLAIM, other):
                words = f"it gets members, and {key_of(other)[1]}, older and alive, has the same root"
                self._case.fail("shared-root", f"{key_of(job)[1]}: {words}")

    def _check_offer(self, name: str, plan: Json) -> None:
        """The time of an attempt is part of the time to save: after a failed attempt a member still has to save."""
        limit, seconds = int((plan.get("handover") or {}).get("limit") or 0), int(plan.get("seconds") or 0)
        if limit > max(seconds - SAVE_SECONDS, SAVE_SECONDS):
            words = f"run {plan['run']} may be tried for {limit} s of the {seconds} s that there are for the save"
            self._case.fail("long-attempt", f"{name}: {words}")

    def _obstacles(self, job: Json, plan: Json, *, new: bool) -> Iterator[tuple[str, str]]:
        uid, run = uid_of(job), int(plan["run"])
        if new and run <= self._opened[uid]:
            yield "numbers", f"and an outcome reported that the log knows run {self._opened[uid]}"
        floor, known = int((plan.get("floor") or {}).get("seq") or 0), self._floors[uid, run]
        if floor < known:  # a run that takes over is planned, and its members assigned, before the other one ends
            yield "floor", f"and need not find commit {known}, which an outcome reported: {floor}"
        if self._case.deaf:
            return
        if any(self._writes_to(root_of(job)[0], one) for one in plan["members"]):
            yield from self._rivals(job)
        mended = self._case.now - self._since_when.get((BUDGETS, uid), -1e9) > KNOWN_SECONDS
        if self._world.server.policy.refuse_patches:
            mended = False  # rounds fail and pause for longer than that: this one is the first to see the budget
        if plan.get("takesOver") and self._world.server.policy.refuse_budgets:
            mended = False  # it was planned, and assigned, while there was one
        if self._case.fired("foreign-budget"):
            mended = False  # another owner's object has the name of the job's
        budget = next((one for one in self._world.server.each(BUDGETS) if owner_of(one) == uid), None)
        least = ((budget or {}).get("spec") or {}).get("minAvailable", 0)
        protected = len(plan["members"]) if not plan.get("takesOver") else 1  # joiners are counted early
        if mended and (not isinstance(least, int) or least < protected):
            yield "bare", f"and the budget asks for {least} of {len(plan['members'])} members"

    def _writes_to(self, uri: str, member: Json) -> bool:
        """A pod keeps the root that it was created with, whatever its job's root is now."""
        pod = next((one for one in self._world.server.each(PODS) if uid_of(one) == member["uid"]), None)
        variables = trainer_of(pod).get("env") or () if pod else ()
        return any(one.get("value") == uri for one in variables if one["name"] == Env.ROOT)

    def _rivals(self, job: Json) -> Iterator[tuple[str, str]]:
        """Other jobs that may write to the root."""
        uid, (namespace, name) = uid_of(job), key_of(job)
        for other in self._world.server.each(JOBS):
            same = uid_of(other) != uid and root_of(other) == root_of(job)
            if same and self._is_known(JOBS, other) and not self._is_elsewhere(other):
                yield "shared-root", f"and {key_of(other)[1]}, whose run is on, has the same root"
        if self._case.fired(*_HIDDEN):
            return
        for pod in self._world.server.all(PODS, namespace, f"perdure.dev/job={name}"):
            if owner_of(pod) not in ("", uid) and self._is_known(PODS, pod) and self._is_reached(pod):
                yield "two-jobs", f"and {key_of(pod)[1]} of an earlier job of its name lives"

    def _is_elsewhere(self, job: Json) -> bool:
        """Whether its root was edited after its members were created: they write to the earlier one."""
        uids = {one["uid"] for one in plan_of(status_of(job))["members"]}
        members = [_root_given(one) for one in self._case.pods(uid_of(job)) if uid_of(one) in uids]
        return bool(members) and job["spec"]["checkpoint"]["uri"] not in members

    def _is_known(self, kind: str, raw: Json) -> bool:
        return self._case.now - self._since_when.get((kind, uid_of(raw)), self._case.now) > KNOWN_SECONDS

    def _is_reached(self, pod: Json) -> bool:
        node = self._world.server.find(NODES, "", node_of(pod))
        return node is not None and is_ready(node) and not self._case.ever_excused(node_of(pod))


def _root_given(pod: Json) -> str:
    given = trainer_of(pod).get("env") or ()
    return next((str(one.get("value")) for one in given if one["name"] == "PERDURE_ROOT"), "")


def _begins(before: Json, after: Json) -> bool:
    """Whether a job gets its very first members."""
    return not int(before.get("nextMember") or 0) and bool(upcoming(after).get("members"))


def _holds_root(job: Json) -> bool:
    return not finished(job) and bool(plan_of(status_of(job)))


def _lives(pod: Json) -> bool:
    return bool(node_of(pod)) and "perdure.dev/job" in labels_of(pod) and not terminal(pod) and not terminated(pod)
