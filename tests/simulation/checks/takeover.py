"""Make before break: the old run trains until the next one is planned, members that can stay keep seat and rank, a
standby is no member before it has one, and a fallback to leaving first has a stated reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    ROLE,
    announces,
    assignment,
    current,
    finished,
    intent,
    is_being_pulled,
    plan_of,
    plans,
    run_told,
    sizes,
    status_of,
    terminated,
    upcoming,
    vacate,
    wanted,
)
from tests.simulation.objects import (
    EVICTIONS,
    JOBS,
    NODES,
    PODS,
    Json,
    is_ready,
    key_of,
    labels_of,
    node_of,
    owner_of,
    seconds_of,
    terminating,
    uid_of,
)

MEMORY_SECONDS: Final = 90.0
"""The greatest age of news about a node, a pod, or the spec."""
PULLING_SECONDS: Final = 600.0
CLOCK_SECONDS: Final = 2.0
"""The operator takes the time from the API server's answers, whose Date has whole seconds."""
_ALL_LEAVE: Final = ("Suspend", "Stop", "MemberLost", "MemberDeleted")
"""No member continues, or one is gone before standbys could exist."""
_HARMLESS: Final = frozenset({"drain", "eviction-refused", "scale", "noisy-pods", "watch-duplicate"})
_UNSURE: Final = ("status-restored", "relabel", "late-write", "orphan-job")


class Takeover(Promise):
    """Checked when the operator writes."""

    rests_on_status = False

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._troubled: dict[str, float] = {}
        """When a node, or a pod by uid, was last seen in a state other than healthy."""
        self._edited: dict[str, float] = {}
        """When the spec of a job, by uid, was changed."""
        self._templates: dict[str, Json] = {}
        """By uid of the pod: its job's template when it was made. No member stays that was made from another one."""
        self._refusing: float | None = None
        """Since when no new pod has been admitted; None while pods are."""

    def look(self) -> None:
        policy = self._world.server.policy
        refuses = bool(policy.refuse_creates) or policy.pod_security
        self._refusing = (self._refusing or self._case.now) if refuses else None

    def on_change(self, change: Change) -> None:
        raw, old = change.raw, change.old
        going = change.kind == NODES and not (_is_well(raw) and change.event != "DELETED")
        if going or change.kind == EVICTIONS:
            self._troubled[key_of(raw)[1]] = self._case.now
        elif change.kind == PODS:
            if change.event == "ADDED" and (job := self._case.job(owner_of(raw))):
                self._templates[uid_of(raw)] = job["spec"]["template"]
            if terminating(raw) or terminated(raw) or not is_ready(raw) or announces(raw):
                self._troubled[uid_of(raw)] = self._case.now
            if by_operator(change) and old is not None and change.event == "MODIFIED":
                self._check_pod(raw, old)
        elif change.kind == JOBS and old is not None and change.event != "DELETED":
            if raw["spec"] != old["spec"] or terminating(raw) or vacate(raw) or vacate(old):
                self._edited[uid_of(raw)] = self._case.now
            if by_operator(change) and not finished(raw) and not self._case.fired(*_UNSURE):
                for check, words in self._broken(raw, status_of(old), status_of(raw)):
                    self._case.fail(check, f"{key_of(raw)[1]}: {words}")

    def _check_pod(self, pod: Json, old: Json) -> None:
        """Before the plan no member of the current run is asked to leave, and no standby counts as a member."""
        owners = {uid for uid in self._case.jobs if f"-{uid[:4]}-" in key_of(pod)[1]}
        status = next((self._case.status(uid) for uid in owners), {})
        if self._case.fired(*_UNSURE) or self._case.deaf or not intent(status).get("prepare"):
            return
        if upcoming(status).get("plan"):  # it is offered to the current run
            return
        ended = {one.get("name") for one in current(status).get("outcomes") or ()}
        members = {one["uid"] for one in plan_of(status).get("members") or () if one["name"] not in ended}
        if uid_of(pod) in members and run_told(pod) > int(plan_of(status)["run"]):
            words = f"{key_of(pod)[1]} trains, no standby has taken over, and its assignment is {assignment(pod)}"
            self._case.fail("break-before-make", words)
        promoted = labels_of(pod).get(ROLE) == "member" != labels_of(old).get(ROLE)
        if promoted and key_of(pod)[1] in (upcoming(status).get("members") or ()):
            self._case.fail("early-member", f"standby {key_of(pod)[1]} is called a member before its run is planned")

    def _broken(self, job: Json, before: Json, after: Json) -> Iterator[tuple[str, str]]:
        allotted = upcoming(after).get("members") or ()
        told = upcoming(after).get("plan")  # created for another size, and never changed
        if not told and len(allotted) > wanted(job["spec"]):
            yield "I8", f"{len(allotted)} members are allotted, {wanted(job['spec'])} are wanted"
        old, known = plan_of(before), {int(plan["run"]) for plan in plans(before)}
        for new in plans(after):
            allowed = (*sizes(job["spec"]), self._kept_size(job, before, new))
            if int(new["run"]) not in known and len(new["members"]) not in allowed:
                yield "I8", f"run {new['run']} has {len(new['members'])} members, its sizes are {sizes(job['spec'])}"
            if old and int(new["run"]) not in known and int(new.get("takesOver") or 0) == int(old["run"]):
                yield from self._seats(job, old, new)
        was, now = intent(before), intent(after)
        fell = was.get("prepare") and now.get("leave") and now["disruption"] == was["disruption"]
        if fell and not now.get("fallbackReason") and now["disruption"] not in _ALL_LEAVE and self._stayers(job, old):
            yield "silent-fall", f"standbys were awaited for {was['cause']}, all leave, and no reason is given"
        if (
            now.get("fallbackReason")
            and now.get("leave")
            and not was.get("leave")
            and not current(after).get("outcomes")
        ):
            yield from self._falls(job, now)

    def _kept_size(self, job: Json, before: Json, new: Json) -> int:
        """A job of a fixed size that is to grow keeps its run's size in a move for another reason, once a larger run
        was offered in vain, or once its members of an earlier template have awaited all new ones for long enough;
        otherwise 0.

        The other reason may be noticed in the round that plans the move: then only the plan names it.
        """
        why, have = intent(before), len(plan_of(before).get("members") or ())
        if job["spec"].get("elastic") or have > wanted(job["spec"]):
            return 0
        grows = why.get("disruption") == "SizeChange" and new.get("cause") == why["cause"]
        if not grows or upcoming(before).get("attempts"):
            return have
        waited = self._case.now - seconds_of(why["since"])
        return have if waited >= int(job["spec"].get("startTimeoutSeconds") or 600) - CLOCK_SECONDS else 0

    def _falls(self, job: Json, leaving: Json) -> Iterator[tuple[str, str]]:
        """All leave only if standbys have had their time, or something obstructed them.

        The time in which an image is pulled counts where a member leaves at a known time: it was deleted, so its pod
        ends with its grace period, or a node has a deadline.
        """
        had = self._case.now - seconds_of(leaving["since"])
        fell = leaving.get("fallbackReason", "")
        words = f"everybody leaves {had:.0f} s after the reason for it was seen: {fell}"
        patience = int(job["spec"]["disruption"].get("replacementTimeoutSeconds", 30))
        if "in time" in fell and had < patience - CLOCK_SECONDS:
            yield "hasty-fall", words
        refused = self._refusing is not None and self._refusing < seconds_of(leaving["since"]) - CLOCK_SECONDS
        new = [one for one in self._case.pods(uid_of(job)) if "rank" not in assignment(one) and not terminating(one)]
        if "in time" in fell and refused and not new and not leaving.get("deadlineSeen"):
            yield "stopped-in-vain", f"{words}, and since before that no new pod is admitted"
        pulls = "StartingMembers" in fell and any(map(is_being_pulled, new))
        hurries = leaving["disruption"] == "MemberDeleted" or leaving.get("deadlineSeen")
        patient = not job["spec"].get("elastic") and not hurries
        if pulls and patient and had < PULLING_SECONDS - CLOCK_SECONDS:
            yield "impatient-fall", f"{words}, and the image of a new member is being pulled"
        pending = [one for one in self._case.pods(uid_of(job)) if not node_of(one)]
        edited = self._is_recent(self._edited, uid_of(job))
        if not pending and not edited and self._world.fired.keys() <= _HARMLESS:
            yield "needless-fall", f"{words}, and nothing was in the way of standbys"

    def _seats(self, job: Json, old: Json, new: Json) -> Iterator[tuple[str, str]]:
        stay = {one["uid"]: one for one in new["members"]}
        alike = len(old["members"]) == len(new["members"]) and old["world"] == new["world"]
        if alike:
            moved = [
                one["name"] for one in old["members"] if one["uid"] in stay and stay[one["uid"]]["rank"] != one["rank"]
            ]
            if moved:
                yield "seats", f"{moved} stay in run {new['run']} and get other ranks"
            lost = [one["name"] for one in self._stayers(job, old) if one["uid"] not in stay]
            if lost:
                yield "seats", f"{lost} could go on in run {new['run']}, and have to leave"
        both = sorted({one["name"] for one in new["members"]} & set(new.get("leavers") or ()))
        if both:
            yield "seats", f"{both} are members of run {new['run']} and leave it"

    def _stayers(self, job: Json, plan: Json) -> list[dict[str, Any]]:
        """Members of this plan that have been healthy for long."""
        if self._is_recent(self._edited, uid_of(job)) or self._case.deaf:
            return []
        namespace, template = key_of(job)[0], job["spec"]["template"]
        alike = [one for one in plan.get("members") or () if self._templates.get(one["uid"], template) == template]
        return [one for one in alike if self._is_fit(namespace, one)]

    def _is_fit(self, namespace: str, member: Json) -> bool:
        pod = self._world.server.find(PODS, namespace, member["name"])
        if pod is None or uid_of(pod) != member["uid"] or not is_ready(pod) or terminating(pod) or terminated(pod):
            return False
        node = self._world.node(node_of(pod))
        well = node is not None and _is_well(node) and not self._is_recent(self._troubled, node_of(pod))
        return well and not self._case.is_asked_for(pod) and not self._is_recent(self._troubled, uid_of(pod))

    def _is_recent(self, when: dict[str, float], what: str) -> bool:
        return self._case.now - when.get(what, -1e9) < MEMORY_SECONDS


def _is_well(node: Json) -> bool:
    spec = node.get("spec") or {}
    going = spec.get("unschedulable") or spec.get("taints") or terminating(node) or announces(node)
    return is_ready(node) and not going
