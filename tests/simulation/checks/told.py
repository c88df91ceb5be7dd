"""What users and their tools learn besides the reason to wait: that members are protected, their number, when a
condition changed, what a container beside the trainer will do, and which pods the API server refuses to delete."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.simulation.admission import PROXY
from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    ROLE,
    UID,
    assignment,
    condition,
    current,
    finished,
    outcome,
    plan_of,
    plans,
    previous,
    run_told,
    status_of,
    terminated,
    upcoming,
)
from tests.simulation.objects import (
    BUDGETS,
    EVENTS,
    JOBS,
    PODS,
    Json,
    key_of,
    labels_of,
    matches,
    owner_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)

TOLD_SECONDS: Final = 20.0
WARNED_SECONDS: Final = 10.0
CLOCK_SECONDS: Final = 30.0
"""A decision is written within seconds."""
REFUSED_SECONDS: Final = 100.0
"""A refusal counts for so long: the operator asks again within a minute, if it still wants to."""
LATE_SECONDS: Final = 32.0
"""By then an agent ends a trainer that it has asked in vain."""
_UNSURE: Final = ("relabel", "foreign-pod", "foreign-budget", "status-restored", "orphan-job", "force-delete-pod")
"""Labels and names decide which pods count, and a fault changes them."""
_OF_LAST_RUN: Final = "Saved"
"""Describes the run that ended last: two may end at the same moment, one of them saved."""
_OF_THE_ROOT: Final = {"CheckpointsDamaged": "Corrupt", "StorageRefused": "StorageRefused", "LogLost": "LogLost"}
"""Reasons to wait, and the errors that members report."""
_OTHERS_CLOCK: Final = ("operator-clock", "unknown-status", "status-restored")


class Told(Promise):
    """Conditions, counts and warnings."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._warned: dict[str, set[str]] = defaultdict(set)
        """By uid of the job: reasons of the events about it."""
        self._beside: dict[str, float] = {}
        """By uid of the job: when the first of its pods with a container beside the trainer was created."""
        self._errors: dict[str, set[str]] = defaultdict(set)
        """By uid of the job: the errors in its pods' last words."""
        self._begun: set[str] = set()
        """Jobs, by uid, that have had a pod."""
        self._words: dict[str, str] = defaultdict(str)
        """By uid of the job: all that its events have said."""
        self._ended: dict[tuple[str, str, str], float] = {}
        """By uid of the job, name of a pod that it counts on, and its status.reason: since when it has ended of it."""
        self._kept: dict[str, float] = {}
        """By name of a pod: when the API server last refused to delete it."""

    def on_change(self, change: Change) -> None:
        if change.kind == EVENTS:
            uid = str((change.raw.get("regarding") or {}).get("uid"))
            self._warned[uid].add(str(change.raw.get("reason")))
            self._words[uid] += str(change.raw.get("note"))
        elif change.kind == PODS and (change.raw.get("status") or {}).get("reason"):
            self._note_end(change.raw)
        elif change.kind == PODS and (error := (outcome(change.raw).get("error") or {}).get("name")):
            self._errors[owner_of(change.raw)].add(str(error))
        elif change.kind == PODS and change.event == "ADDED" and by_operator(change):
            uid = owner_of(change.raw)
            beside = [one for one in change.raw["spec"]["containers"] if one["name"] != PROXY]
            if uid not in self._begun and len(beside) > 1:
                self._beside[uid] = self._case.now
            self._begun.add(uid)
        elif change.kind == PODS and change.event == "MODIFIED" and by_operator(change):
            self._check_disruption(change.raw)
        elif change.kind == JOBS and change.old is not None and by_operator(change):
            self._check_transitions(change.raw, change.old)
            self._check_deadline(change.raw, change.old)
            self._check_founded(change.raw)
            self._check_times(change.raw, change.old)

    def on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:  # noqa: ARG002
        if (verb, kind) == ("delete", PODS):
            self._kept.pop(name, None)
            if wrong in ("403", "422"):
                self._kept[name] = self._case.now

    def _note_end(self, pod: Json) -> None:
        """A pod was refused, or ended, by its kubelet. Of a run the first death tells."""
        status = self._case.status(owner_of(pod))
        members = {one["name"] for plan in plans(status) for one in plan["members"]}
        wanted = members | {
            *(upcoming(status).get("members") or ()),
            *((status.get("spares") or {}).get("names") or ()),
        }
        if terminal(pod) and not terminating(pod) and key_of(pod)[1] in wanted and not current(status).get("outcomes"):
            self._ended.setdefault((owner_of(pod), key_of(pod)[1], pod["status"]["reason"]), self._case.now)

    def _check_times(self, job: Json, old: Json) -> None:
        """Times in status are the API server's, whatever a replica's own clock says."""
        if self._case.fired("late-write", "status-restored"):
            return
        before = {int(plan["run"]) for plan in plans(status_of(old))}
        for plan in plans(status_of(job)):
            off = seconds_of(plan["assignedTime"]) - self._case.now
            if int(plan["run"]) not in before and abs(off) > CLOCK_SECONDS:
                words = f"run {plan['run']} is planned, by what status says {off:.0f} s from now"
                self._case.fail("clock", f"{key_of(job)[1]}: {words}")

    def _check_founded(self, job: Json) -> None:
        """A statement about the root comes from a member."""
        said = condition(status_of(job), "Running")
        wanted = _OF_THE_ROOT.get(said.get("reason", ""), "")
        if wanted and wanted not in self._errors[uid_of(job)]:
            words = f"{said['reason']}: {said['message']}: members have reported {sorted(self._errors[uid_of(job)])}"
            self._case.fail("unfounded", f"{key_of(job)[1]}: {words}")

    def _check_disruption(self, pod: Json) -> None:
        """Before a member is asked to leave, status announces that and why."""
        job = self._case.job(owner_of(pod))
        if job is None or terminating(job) or finished(job) or self._case.fired(*_UNSURE, "late-write"):
            return
        status = status_of(job)
        ended = {one.get("name") for one in current(status).get("outcomes") or ()}
        trains = uid_of(pod) in {one["uid"] for one in plan_of(status).get("members") or ()}
        if not trains or key_of(pod)[1] in ended or not assignment(pod).get("leave"):
            return
        said = condition(status, "Disrupted")
        if run_told(pod) > int(plan_of(status)["run"]) and said.get("status") != "True":
            words = f"{key_of(pod)[1]} of run {plan_of(status)['run']} is asked to leave, and it is said: {said}"
            self._case.fail("disruption", words)

    def _check_transitions(self, job: Json, old: Json) -> None:
        """A condition has had its status since its lastTransitionTime."""
        if self._case.fired(*_OTHERS_CLOCK):
            return
        for new in status_of(job).get("conditions") or ():
            was = condition(status_of(old), new["type"]) if new["type"] != _OF_LAST_RUN else {}
            if was.get("status") == new["status"] and was["lastTransitionTime"] != new["lastTransitionTime"]:
                words = f"{new['type']} is {new['status']} as before, and its lastTransitionTime moves"
                self._case.fail("transition", f"{key_of(job)[1]}: {words}")

    def _check_deadline(self, job: Json, old: Json) -> None:
        """A leaver is waited for as long as it was promised, and a moment longer."""
        status, plan = status_of(job), plan_of(status_of(job))
        left = previous(status)
        if left.get("run") == previous(status_of(old)).get("run") or plan.get("takesOver") != left.get("run"):
            return
        deadline = (left.get("intent") or {}).get("deadline")
        late = seconds_of(deadline) - seconds_of(plan["assignedTime"]) - int(plan["seconds"]) if deadline else 0.0
        if late > LATE_SECONDS:
            words = f"who leaves for run {plan['run']} has {plan['seconds']} s, and is waited for {late:.0f} s longer"
            self._case.fail("deadline", f"{key_of(job)[1]}: {words}")

    def look(self) -> None:
        for job in self._world.server.each(JOBS):
            if terminating(job):
                continue
            if plan_of(status_of(job)) and not finished(job) and not self._case.fired(*_UNSURE):
                self._look_at_protection(job)
                self._look_at_count(job)
            self._look_at_sidecar(job)
            self._look_at_ends(job)
            self._look_at_refused_deletions(job)

    def _look_at_refused_deletions(self, job: Json) -> None:
        """Status names the pods that the API server does not let the operator delete, and only those, and why."""
        uid, name, said = uid_of(job), key_of(job)[1], condition(status_of(job), "DeletionsAllowed")
        pods = [key_of(one)[1] for one in self._case.pods(uid) if not terminating(one)]
        kept = [one for one in pods if self._case.now - self._kept.get(one, -REFUSED_SECONDS) < REFUSED_SECONDS]
        untold = [one for one in kept if said.get("status") != "False" or one not in said["message"]]
        words = f"{name}: the API server refuses to delete {kept}, and it is said: {said}"
        held_up = self._case.held_up_by_other_than("api-refuses-delete")
        patience = self._case.patience(TOLD_SECONDS) if held_up else TOLD_SECONDS
        self._lasting("untold", f"{uid} deletions", bool(untold), patience, words)
        words = f"{name}: the API server refuses no deletion, and it is said: {said}"
        self._lasting("stale", f"{uid} deletions", bool(said) and not kept, self._case.patience(TOLD_SECONDS), words)

    def _look_at_ends(self, job: Json) -> None:
        """An event or status reports why a kubelet refused or ended a pod."""
        for known in [known for known in self._ended if known[0] == uid_of(job)]:
            _, name, reason = known
            said = self._words[uid_of(job)] + str(status_of(job))
            had_to_leave = f" {name} " in said and f"{name} ended: " not in said
            if had_to_leave or f"{reason} on node" in said:
                del self._ended[known]
            elif self._case.now - self._ended[known] >= TOLD_SECONDS and not self._case.deaf:
                self._case.fail("untold", f"a kubelet has ended {name} for {reason}, and that is not reported")

    def _look_at_protection(self, job: Json) -> None:
        """Missing protection is reported if and only if it is missing."""
        said = condition(status_of(job), "Protected")
        words = f"{key_of(job)[1]} is said not to be protected ({said.get('reason')}), and its budget is in place"
        wrong = said.get("status") == "False" and self._is_protected(job)
        self._lasting("protection", uid_of(job), wrong, self._case.patience(TOLD_SECONDS), words)
        words = f"{key_of(job)[1]} is said to be protected ({said.get('reason')}), and its budget does not do that"
        wrong = said.get("status") == "True" and not self._is_protected(job)
        self._lasting("claimed-protection", uid_of(job), wrong, self._case.patience(TOLD_SECONDS), words)

    def _is_protected(self, job: Json) -> bool:
        mine = {"perdure.dev/job": key_of(job)[1], UID: uid_of(job), ROLE: "member"}
        budgets = [one for one in self._world.server.all(BUDGETS, key_of(job)[0]) if _covers(one, mine)]
        if [owner_of(one) for one in budgets] != [uid_of(job)]:
            return False
        least = budgets[0]["spec"].get("minAvailable")
        members = sum(labels_of(one).get(ROLE) == "member" for one in self._case.pods(uid_of(job)))
        return isinstance(least, int) and least >= members and budgets[0]["spec"].get("maxUnavailable") is None

    def _look_at_count(self, job: Json) -> None:
        """`kubectl get ptj` and pod autoscalers read status.replicas; one run may be about to follow another."""
        status = status_of(job)
        alive = {uid_of(one) for one in self._case.pods(uid_of(job)) if not terminated(one)}
        there = {sum(one["uid"] in alive for one in plan["members"]) for plan in plans(status)}
        words = f"{key_of(job)[1]} is said to have {status.get('replicas')} replicas, and {there} members live"
        wrong = int(status.get("replicas") or 0) not in there
        self._lasting("replicas", uid_of(job), wrong, self._case.patience(TOLD_SECONDS), words)

    def _look_at_sidecar(self, job: Json) -> None:
        """An event is lost with its replica, or with the call."""
        since = self._beside.get(uid_of(job))
        if since is None or self._case.deaf or self._case.now - since < WARNED_SECONDS:
            return
        if "ClassicSidecar" not in self._warned[uid_of(job)]:
            words = f"{key_of(job)[1]} has a container beside the trainer, and its fate is not reported"
            self._case.fail("unwarned", words)


def _covers(budget: Json, labels: dict[str, str]) -> bool:
    return matches((budget.get("spec") or {}).get("selector"), labels)
