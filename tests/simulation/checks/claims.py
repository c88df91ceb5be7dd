"""The operator's claims, compared with the truth: status beside the world, of which it sees only a part.

A finding is reported only once it has lasted for a while with a working leader, because news take time.
"""

from __future__ import annotations

import re
from typing import Final

from perdure.wire import AFTER_COMPLETION_SECONDS
from tests.simulation.apiserver import Change
from tests.simulation.checks.case import DEAF_SECONDS, Case, Promise, by_operator
from tests.simulation.checks.reading import (
    ROLE,
    UID,
    assignment,
    condition,
    current,
    failures,
    finished,
    intent,
    leaving,
    outcome,
    plan_of,
    plans,
    previous,
    run_told,
    status_of,
    terminated,
    training,
    upcoming,
)
from tests.simulation.objects import (
    BUDGETS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    REVISIONS,
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
from tests.simulation.world import Fact

CODE_FAULTS: Final = (
    *("code-failure", "self-blame", "exit-without-session", "oom", "null-grace"),
    *("absurd-outcome", "foreign-outcome", "emptied-root", "init-exit"),
)
ASSIGNED_SECONDS: Final = 30.0
STEP_SECONDS: Final = 5.0
UNCLAIMED_SECONDS: Final = 8.0
TELLING_SECONDS: Final = 7.0
UNANSWERED_SECONDS: Final = 90.0
"""The API server, or a proxy before it, may refuse everything for a minute (faults.api). Then a round pauses for up to
10 s, its request may have no answer for as long, and the Lease may change hands."""
ASKING_SECONDS: Final = 25.0
"""A member that its assignment cannot reach gets SIGTERM."""
FORMER_SECONDS: Final = 30.0
LEFTOVER_SECONDS: Final = 200.0
REFUSED_SECONDS: Final = 90.0
"""A refused change is not repeated for so long."""
_GONE_NODE: Final = re.compile(r"node (\S+) was deleted")
_PAUSES: Final = ("foreign-budget", "webhook-budget")
"""Rounds fail in a row, each pause is longer than the last, and a refusal is reported only after it."""
_SAVED: Final = ("checkpointed", "completed", "handed-over")


class Claims(Promise):
    """Checked once a second, and when status changes."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._stepped: dict[str, float] = {}
        """By uid of the job."""
        self._known: dict[tuple[str, int], int] = {}
        """By uid of the job and run: the committed step in status before the run was planned."""
        self._words: dict[str, Json] = {}
        """By name of the pod: its last words."""
        self._resumed: dict[str, float] = {}
        """By uid of the job: when it was last resumed."""
        self._gone_nodes: set[str] = set()
        """Nodes whose object was ever deleted."""

    # at once

    def on_fact(self, fact: Fact) -> None:
        if fact.what == "step":
            self._stepped[fact.facts["uid"]] = fact.at
        elif fact.what == "opened" and int(fact.facts["step"]) == 0:
            known = self._known.get((fact.facts["uid"], int(fact.facts["run"])), 0)
            if known:
                self._case.fail("log-lost", f"{fact.who} begins at step 0, status knew of step {known} at its plan")

    def on_change(self, change: Change) -> None:
        self._note(change)
        if change.kind == EVENTS and by_operator(change):
            self._check_nodes(str(change.raw.get("note") or change.raw.get("message") or ""))
        if change.kind != JOBS or change.old is None or not by_operator(change):
            return
        self._check_nodes(" ".join(str(one.get("message")) for one in status_of(change.raw).get("conditions") or ()))
        status, before = status_of(change.raw), status_of(change.old)
        for plan in plans(status):
            self._known.setdefault((uid_of(change.raw), int(plan["run"])), int(before.get("step") or 0))
        self._check_deadline(change.raw, change.old)
        if "has saved and left" in intent(status).get("cause", "") and not intent(before):
            self._check_saved(change.raw, plan_of(status))
        if failures(status)[0] > failures(before)[0] and not self._case.fired(*CODE_FAULTS):
            self._case.fail("blame", f"{key_of(change.raw)[1]}: a failure of code is counted, and no code has failed")

    def _note(self, change: Change) -> None:
        name, old = key_of(change.raw)[1], change.old
        if change.kind == NODES and change.event == "DELETED":
            self._gone_nodes.add(name)
        elif change.kind == PODS and terminated(change.raw):
            self._words[name] = outcome(change.raw)
        elif change.kind == JOBS and old is not None and old["spec"].get("suspend"):
            rested = condition(status_of(old), "Suspended").get("status") == "True"
            if rested and not change.raw["spec"].get("suspend"):
                self._resumed[uid_of(change.raw)] = self._case.now

    def _check_deadline(self, job: Json, old: Json) -> None:
        """A suspended job's deadline does not run, and starts again when the job is resumed."""
        status, before, name = status_of(job), status_of(old), key_of(job)[1]
        suspended = job["spec"].get("suspend") and old["spec"].get("suspend")
        if status.get("phase") == "Failed" != before.get("phase"):
            reason = condition(status, "Failed").get("reason")
            if reason == "DeadlineExceeded" and suspended:
                self._case.fail("deadline-suspended", f"{name} is failed by its deadline while it is suspended")
            restored = self._case.fired("status-restored")  # only status remembers when the deadline began
            gone = self._case.now - self._resumed.get(uid_of(job), -1e9)
            if (
                reason == "DeadlineExceeded"
                and not restored
                and gone < float(job["spec"].get("activeDeadlineSeconds") or 0) - 1.0
            ):
                words = f"{name} is failed by its deadline {gone:.0f} s after it was resumed"
                self._case.fail("deadline-suspended", words)
        stopping = intent(status).get("disruption") == "Stop" != intent(before).get("disruption")
        if stopping and suspended:
            self._case.fail("deadline-suspended", f"{name} is stopped by its deadline, and it is suspended")

    def _check_saved(self, job: Json, plan: Json) -> None:
        """A member that reports it; or rank 0, which closed the log because there was nothing to save."""
        told = {one["name"]: self._words.get(one["name"], {}) for one in plan.get("members") or ()}
        saved = any(one.get("outcome") in _SAVED and one.get("run") == plan["run"] for one in told.values())
        closed = bool(told) and next(iter(told.values())).get("outcome") == "stopped"
        if not saved and not closed:
            words = f"{key_of(job)[1]}, run {plan.get('run')}: {intent(status_of(job))['cause']}; members tell {told}"
            self._case.fail("made-up", words)

    def _check_nodes(self, said: str) -> None:
        """News of nodes may be late, but are never invented."""
        for name in sorted(set(_GONE_NODE.findall(said)) - self._gone_nodes):
            self._case.fail("made-up", f"node {name} is said to be deleted, and it never was: {said}")

    # now and then

    def look(self) -> None:
        jobs = self._world.server.each(JOBS)
        for job in jobs:
            if terminating(job):
                continue
            if finished(job):
                self._look_at_leftovers(job)
                continue
            self._look_at_asking(job, status_of(job))
            self._look_at_template(job, status_of(job))
            self._look_at_running(job, status_of(job))
            self._look_at_replicas(job, status_of(job))
            self._look_at_formers(job, status_of(job))
        for pod in self._world.server.each(PODS):
            self._look_at_leaving(pod)
        uids = {uid_of(job) for job in jobs}
        for budget in self._world.server.each(BUDGETS):
            orphan = _protects_own(budget) and owner_of(budget) not in uids
            words = f"budget {key_of(budget)[1]} protects pods of a job that is gone"
            self._lasting("orphan-budget", uid_of(budget), orphan, 300.0, words)

    def _look_at_leftovers(self, job: Json) -> None:
        """An agent ends its script in time, unless its process is stopped: only then the operator has to, after an
        hour."""
        left = [one for one in self._case.pods(uid_of(job)) if not terminal(one) and self._heard(one)]
        done = condition(status_of(job), "Completed").get("status") == "True"
        hung = [one for one in left if done and self._hangs(one)]
        for check, pods, seconds in (
            ("leftover", [one for one in left if one not in hung], LEFTOVER_SECONDS),
            ("hung-leftover", hung, AFTER_COMPLETION_SECONDS + LEFTOVER_SECONDS),
        ):
            words = f"{key_of(job)[1]} is finished, {[key_of(one)[1] for one in pods]} hold their devices"
            self._lasting(check, uid_of(job), bool(pods), seconds, words)

    def _look_at_asking(self, job: Json, status: Json) -> None:
        """A member that is waited for has been asked, or status says why not; one that did not continue with this run
        was asked to leave for it."""
        run = int(upcoming(status).get("run") or 0) if intent(status).get("leave") else 0
        names, before = (training(status), leaving(status)) if run else (set(), set())
        unasked = [
            name
            for one in (self._case.pods(uid_of(job)) if run else ())
            if (name := key_of(one)[1]) in names and not terminal(one) and not terminating(one)
            if run_told(one) < (int(current(status)["run"]) if name in before else run)
            if labels_of(one).get(ROLE) == "member"
        ]
        said = condition(status, "Running").get("message", "") + condition(status, "Disrupted").get("message", "")
        hidden = bool(unasked) and not any(word in said for word in ("denied", "refuse", "could not", "not been asked"))
        words = f"{key_of(job)[1]}: {unasked} have not been asked to leave for run {run}, and status says: {said}"
        paused = self._case.deaf or self._case.fired(*_PAUSES)
        patience = UNANSWERED_SECONDS if paused else TELLING_SECONDS
        self._lasting("unasked", uid_of(job), hidden, patience, words)
        words = f"{key_of(job)[1]}: {unasked} have not been asked to leave for run {run}, in no way whatever"
        self._lasting("never-asked", uid_of(job), bool(unasked), self._case.patience(ASKING_SECONDS), words)

    def _look_at_template(self, job: Json, status: Json) -> None:
        """An invalid template is named in status, once the API server lets the operator write: while it refuses calls a
        round is tried again after up to half a minute."""
        bad = not job["spec"]["template"]["spec"]["containers"][0].get("image") and not job["spec"].get("suspend")
        said = status.get("conditions") or ()
        earlier = any(word in str(condition(status, "Running").get("reason")) for word in ("Root", "Predecessor"))
        told = earlier or any(one.get("status") == "False" and "emplate" in str(one.get("reason")) for one in said)
        words = f"{key_of(job)[1]}: the template is invalid and no condition says so"
        self._lasting("silent-template", uid_of(job), bad and not told, self._case.patience(40.0), words)
        (namespace, name), waits = key_of(job), condition(status, "Running").get("reason") == "TemplateInvalid"
        revision = f"{name}-{uid_of(job)[:4]}-{status.get('templateChecked')}"
        kept = self._world.server.find(REVISIONS, namespace, revision) is not None
        words = f"{name} waits for a correction of its template although a good one is kept in {revision}"
        self._lasting("kept-in-vain", uid_of(job), bad and waits and kept, 40.0, words)

    def _look_at_running(self, job: Json, status: Json) -> None:
        """Running means that every member of the plan is Ready and has its rank."""
        plan, claimed = plan_of(status), condition(status, "Running").get("status") == "True"
        members = {one["uid"] for one in plan.get("members") or ()}
        there = [one for one in self._case.pods(uid_of(job)) if uid_of(one) in members and is_ready(one)]
        ranked = [one for one in there if run_told(one) >= int(plan["run"])]
        missing = len(members) - len(ranked)
        words = f"{key_of(job)[1]} is said to run, and {missing or 'all'} of its members lack a rank or are not Ready"
        wrong = claimed and (missing > 0 or not members)
        self._lasting("claims", uid_of(job), wrong, self._case.patience(ASSIGNED_SECONDS), words)

        steps = self._case.now - self._stepped.get(uid_of(job), -1e9) < STEP_SECONDS
        said = condition(status, "Running")
        waits = intent(status).get("prepare") and not previous(status) and said.get("reason") != "PatchRefused"
        whole = bool(members) and not missing and not any(map(terminating, there))
        trains = whole and steps and waits  # for standbys only
        words = f"{key_of(job)[1]} trains, and is said not to run: {said.get('reason')}: {said.get('message')}"
        self._lasting(
            "unclaimed", uid_of(job), bool(trains and not claimed), self._case.patience(UNCLAIMED_SECONDS), words
        )

    def _look_at_replicas(self, job: Json, status: Json) -> None:
        """The scale subresource shows the members and no other pods."""
        wanted = dict(part.split("=") for part in str(status.get("selector") or "").split(",") if "=" in part)
        found = [one for one in self._case.pods(uid_of(job)) if wanted and wanted.items() <= labels_of(one).items()]
        others = [key_of(one)[1] for one in found if labels_of(one).get(ROLE) != "member"]
        words = f"{key_of(job)[1]}: status.selector {status.get('selector')} selects {others}, which are no members"
        self._lasting("selector", uid_of(job), bool(others), 1.0, words)

    def _look_at_formers(self, job: Json, status: Json) -> None:
        """A member that was given up is no longer one: neither the budget nor the scale subresource counts it."""
        known = training(status) | set(upcoming(status).get("members") or ())
        given_up = [
            key_of(one)[1]
            for one in self._case.pods(uid_of(job))
            if labels_of(one).get(ROLE) == "member" and not terminal(one) and not terminated(one)
            if key_of(one)[1] not in known
        ]
        words = f"{key_of(job)[1]}: {given_up} count for nothing any more, and have the role of a member"
        refused = REFUSED_SECONDS if self._case.fired("webhook-patch") else 0.0
        patience = DEAF_SECONDS if self._case.fired("relabel") else self._case.patience(FORMER_SECONDS + refused)
        can_be_told = not self._case.world.server.policy.refuse_patches
        self._lasting("former", uid_of(job), bool(given_up) and can_be_told, patience, words)

    def _look_at_leaving(self, pod: Json) -> None:
        """A pod without work has nothing to save."""
        idle = terminating(pod) and "standby" in assignment(pod) and self._heard(pod) and not self._is_stuck(pod)
        words = f"standby {key_of(pod)[1]} is being deleted, and its kubelet knows"
        self._lasting("slow-standby", uid_of(pod), idle, 12.0, words)

    def _is_stuck(self, pod: Json) -> bool:
        kubelet = self._case.scene.kubelets.get(node_of(pod))
        return kubelet is None or kubelet.stuck > 0.0 or kubelet.holds(uid_of(pod))

    def _hangs(self, pod: Json) -> bool:
        kubelet = self._case.scene.kubelets.get(node_of(pod))
        return kubelet is not None and kubelet.hangs(uid_of(pod))

    def _heard(self, pod: Json) -> bool:
        kubelet = self._case.scene.kubelets.get(node_of(pod))
        return kubelet is not None and kubelet.hears


def _protects_own(budget: Json) -> bool:
    """Whether it selects members of the job with their own labels: one that a user gave other pods to protect stays."""
    labels = labels_of(budget)
    return UID in labels and matches(budget["spec"].get("selector"), {**labels, ROLE: "member"})
