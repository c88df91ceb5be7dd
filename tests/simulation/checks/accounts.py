"""The cost of a run in status, compared with what happened: which member died first and of what, which steps are lost.

A run is checked once, in the write that closes it. Uncertain cases are not judged: if a member was cut off, or died at
the moment of a request, only the log has the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    condition,
    current,
    failures,
    finished,
    intent,
    outcome,
    plan_of,
    plans,
    previous,
    status_of,
    terminated,
)
from tests.simulation.objects import JOBS, PODS, Json, key_of, node_of, seconds_of, terminating, uid_of
from tests.simulation.world import Fact

UNSURE: Final = (
    "emptied-root",
    "stripped-root",
    "absurd-outcome",
    "orphan-job",
    "partition",
    "storage-down",
    "storage-faults",
    "keys-revoked",
    "status-restored",
)
"""Outcomes may be false, or the truth cannot be known."""
MISSED: Final = ("watch-gone", "watch-drop", "watch-lag", "silent-watch", "lag-of-pods", "force-delete-pod")
"""The last words of a short-lived pod may have been missed."""
_IN_LOG: Final = frozenset({"checkpointed", "completed", "handed-over", "stopped"})
"""Ends that the log may record."""
_READABLE: Final = _IN_LOG | {"failed", "peer-lost", "fenced", "exit-timeout", "handover-failed"}
HEARD_SECONDS: Final = 1.0
BREATH_SECONDS: Final = 3.0
REFUSED_SECONDS: Final = 45.0
MEMORY_ROW: Final = 4
"""Three are allowed, and one more if no member could report the step."""


@dataclass
class Death:
    """How a member's container ended."""

    at: float
    how: str
    """`kills`, `OOMKilled`, or "" where it ended by itself."""
    code: int = 0


@dataclass
class Account:
    """One run, from its plan to its close."""

    job: str
    run: int
    members: dict[str, str]
    """Uid by name."""
    planned_at: float
    asked_at: float | None = None
    deaths: dict[str, Death] = field(default_factory=dict)
    """By name."""
    trainers: list[tuple[float, str]] = field(default_factory=list)
    """When and how each process ended."""
    told: dict[str, Json] = field(default_factory=dict)
    """By name: the outcome, as the API server received it."""
    exiting_at: dict[str, float] = field(default_factory=dict)
    """By name: when it had a readable one."""
    disturbed: set[str] = field(default_factory=set)
    """Members asked to leave in another way, or out of sight."""
    late: set[str] = field(default_factory=set)
    """Those that the operator deleted after their deadline."""
    since: int = 0
    """Steps counted as lost after another run had become the current one, whichever run they belong to."""
    unled: bool = False
    """No leader, or a new one, in between: the last words of a short-lived pod may have been missed."""


class Accounts(Promise):
    """stepsLost, failures and the condition Saved."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._open: dict[tuple[str, int], Account] = {}
        """By uid of the job and run; one that was taken over stays open until its leavers have left."""
        self._reached: dict[tuple[str, int], int] = {}
        self._committed: dict[str, tuple[float, int]] = {}
        """By uid of the job: the time and the step of its newest commit."""
        self._left: dict[tuple[str, int], tuple[float, int]] = {}
        """By uid of the job and run: that commit when a newer run began, because a run may be closed long after."""
        self._taken: dict[tuple[str, int], int] = {}
        """Runs, by uid of the job, whose steps another run continued from, and which one."""
        self._broken: set[tuple[str, int]] = set()
        """Runs, by uid of the job, with a process that ended without handing over or saving."""
        self._refused: dict[str, tuple[int, float]] = {}
        """By uid of the job: the last run that refused an emptied log, and when."""
        self._planned: dict[tuple[str, int], float] = {}
        """By uid of the job and run: since when."""
        self._memory: dict[str, tuple[int, int]] = {}
        """By uid of the job: out-of-memory kills in a row, and the step that they reached."""

    # what happened

    def on_fact(self, fact: Fact) -> None:
        if fact.what in ("step", "took-over", "opened", "committed"):
            self._on_training(fact)
        elif fact.what == "kills":
            self._note_death(fact.facts["pod"], Death(fact.at, "kills"))
        elif fact.what == "container-ended":
            how = "OOMKilled" if fact.facts["reason"] == "OOMKilled" else ""
            self._note_death(fact.who, Death(fact.at, how, int(fact.facts["code"])))
        elif fact.what == "trainer-ended":
            if fact.facts["how"] not in ("handed-over", "checkpointed", "completed"):
                self._broken.add((fact.facts["uid"], int(fact.facts["run"])))
            account = self._open.get((fact.facts["uid"], int(fact.facts["run"])))
            if account is not None:
                account.trainers.append((fact.at, str(fact.facts["how"])))
        elif fact.what in ("power off", "cut off"):
            for pod in self._world.pods_on(fact.facts["node"]):
                self._disturb(key_of(pod)[1])

    def _on_training(self, fact: Fact) -> None:
        uid, step = fact.facts["uid"], int(fact.facts["step"])
        run = uid, int(fact.facts["run"])
        if fact.what == "step":
            self._reached[run] = max(step, self._reached.get(run, 0))
        elif fact.what == "took-over":
            self._taken[uid, int(fact.facts["before"])] = run[1]
            self._reached[run] = max(step, self._reached.get(run, 0))  # rank 0 may die before it opens it for itself
        elif fact.what == "opened":  # it may continue from a commit of the job that had the name before
            for other in (one for one in self._open.values() if one.job == uid and one.run < run[1]):
                self._left.setdefault((uid, other.run), self._committed.get(uid, (-1e9, step)))
            self._committed.setdefault(uid, (-1e9, step))
            if step < self._committed[uid][1]:  # the newest commit is damaged
                self._committed[uid] = self._case.now, step
            self._reached[run] = max(step, self._reached.get(run, 0))  # after a take-over it may be in no commit
        else:
            self._committed[uid] = self._case.now, step

    def _note_death(self, pod: str, death: Death) -> None:
        for account in self._open.values():
            if pod in account.members:
                account.deaths.setdefault(pod, death)

    def _disturb(self, pod: str) -> None:
        for account in self._open.values():
            if pod in account.members:
                account.disturbed.add(pod)

    def silence(self) -> None:
        super().silence()
        for account in self._open.values():
            account.unled = True

    # the API server's view

    def on_change(self, change: Change) -> None:
        if change.kind == PODS:
            self._on_pod(change)
        elif change.kind == JOBS and change.old is not None and change.event != "DELETED":
            if change.raw["spec"] != change.old["spec"]:
                self._refused.pop(uid_of(change.raw), None)  # an edit of the job requests another look
            self._on_job(change.raw, change.old)
            if by_operator(change) and not self._case.fired(*UNSURE):
                self._check_heard(change.raw, change.old)

    def _check_heard(self, job: Json, old: Json) -> None:
        """Status keeps a member's last words, however soon its pod was gone."""
        known = {one["name"] for run in _runs(old) for one in run.get("outcomes") or ()}
        for run in _runs(job):
            account = self._open.get((uid_of(job), int(run.get("run") or 0)))
            if account is None or not self._is_heard(account):
                continue
            for one in run.get("outcomes") or ():
                name, at = one["name"], account.exiting_at.get(one["name"], self._case.now)
                if name not in known and not one.get("outcome") and self._case.now - at > HEARD_SECONDS:
                    words = f"{name} has ended {account.told[name]['outcome']}, status says: {one.get('errorName')}"
                    self._case.fail("unheard", f"{key_of(job)[1]}: {words}")

    def _on_pod(self, change: Change) -> None:
        name, uid = key_of(change.raw)[1], uid_of(change.raw)
        for account in self._open.values():
            if account.members.get(name) != uid:
                continue
            self._note_outcome(account, change.raw)
            if terminating(change.raw) and not terminating(change.old or change.raw):
                if by_operator(change) and self._is_over_time(account):
                    account.late.add(name)
                else:
                    account.disturbed.add(name)
            elif change.event == "DELETED" and not terminated(change.raw):
                account.disturbed.add(name)

    def _note_outcome(self, account: Account, pod: Json) -> None:
        name = key_of(pod)[1]
        if account.members.get(name) != uid_of(pod) or not terminated(pod) or not outcome(pod):
            return
        account.told.setdefault(name, outcome(pod))
        if outcome(pod).get("outcome") in _READABLE:
            account.exiting_at.setdefault(name, self._case.now)
        self._note_refusal(account)

    def _note_refusal(self, account: Account) -> None:
        """A member that finds an emptied log is not sent to it again at once; a run already on its way finds it,
        too."""
        names = {(one.get("error") or {}).get("name") for one in account.told.values()}
        if "LogLost" not in names:
            return
        run, at = self._refused.get(account.job, (account.run, self._case.now))
        if run != account.run and at < account.planned_at and self._case.now - at < REFUSED_SECONDS:
            self._case.fail("log-lost", f"runs {run} and {account.run} find an emptied log, one soon after the other")
        self._refused[account.job] = account.run, self._case.now

    def _is_over_time(self, account: Account) -> bool:
        status = self._case.status(account.job)
        of_previous = int(previous(status).get("run") or 0) == account.run
        asked = (previous(status).get("intent") or {}) if of_previous else intent(status)
        deadline = asked.get("deadline")
        return deadline is not None and seconds_of(deadline) <= self._case.now + 1.0

    def _on_job(self, job: Json, old: Json) -> None:
        uid, status = uid_of(job), status_of(job)
        plan = plan_of(status)
        run = int(plan.get("run") or 0)
        on = {run, int(previous(status).get("run") or 0)}
        closed = [one for one in self._open.values() if one.job == uid and one.run not in on]
        for account in closed:
            del self._open[uid, account.run]
            # A run and the one that took over from it may end at the same moment: then the cost cannot be assigned to
            # one.
            older = any(one.job == uid and one.run < account.run for one in self._open.values())
            alone = len(closed) == 1 and not older
            if alone and not finished(job) and not terminating(job) and not self._case.fired(*UNSURE):
                for check, words in self._close(account, job, old):
                    self._case.fail(check, f"{key_of(job)[1]}, run {account.run}: {words}")
        for one in plans(status):
            self._planned.setdefault((uid, int(one["run"])), self._case.now)
        if plan and (uid, run) not in self._open:
            members = {one["name"]: one["uid"] for one in plan["members"]}
            self._open[uid, run] = Account(uid, run, members, self._planned[uid, run])
            for pod in self._case.pods(uid):  # it may have ended before
                self._note_outcome(self._open[uid, run], pod)
        for account in self._open.values():
            if account.job == uid and account.run != run:
                account.since += max(0, _counted(account, status, status_of(old)))
            asked = account.run != run or intent(status)
            if account.job == uid and asked and account.asked_at is None:
                account.asked_at = self._case.now

    # the close

    def _close(self, account: Account, job: Json, old: Json) -> Iterator[tuple[str, str]]:
        status, before = status_of(job), status_of(old)
        code = failures(status)[0] - failures(before)[0]
        infrastructure = failures(status)[1] - failures(before)[1]
        unseen = int(status.get("run") or 0) - account.run > 1  # one that has taken over from it, and ended with it
        if code + infrastructure > 1 and not unseen:
            yield "failures", f"costs {code} failures of the code and {infrastructure} of infrastructure"
        if code + infrastructure and not any(death.how == "OOMKilled" for death in account.deaths.values()):
            self._memory.pop(account.job, None)
        yield from self._blame(account, status, before, code, infrastructure)
        lost = _counted(account, status, before)
        yield from self._steps(account, lost, int(before.get("step") or 0))
        yield from self._saved(account, status, code + infrastructure)

    def _blame(
        self, account: Account, status: Json, before: Json, code: int, infrastructure: int
    ) -> Iterator[tuple[str, str]]:
        """A member killed from outside, before anything else happened, costs one failure of infrastructure."""
        killed = [(death.at, name) for name, death in account.deaths.items() if death.how]
        if not killed or account.disturbed or account.late:
            return
        at, name = min(killed)
        others = [when for when, how in account.trainers if when < at and how != "container"]
        asked = account.asked_at is not None and (account.asked_at < at or self._case.deaf)
        pod = self._world.server.find(PODS, "team", name)
        kubelet = self._case.scene.kubelets.get(node_of(pod)) if pod else None
        if (
            self._case.fired("foreign-outcome", "node-clock")
            or asked
            or others
            or (kubelet is not None and not kubelet.hears)
        ):
            return
        if (code, infrastructure) != (0, 1) and not self._is_done(account):
            words = f"{name} was killed from outside, before anything else happened, and it counts as"
            yield "failures", f"{words} {code} failures of the code and {infrastructure} of infrastructure"
        if account.deaths[name].how == "OOMKilled":
            yield from self._row(account, status, before) if infrastructure else ()
            said = " ".join(f"{one.get('reason')} {one.get('message')}" for one in status.get("conditions") or ())
            if "emory" not in said:
                yield "unnamed", f"a member was killed for want of memory, and status says: {said}"

    def _row(self, account: Account, status: Json, old: Json) -> Iterator[tuple[str, str]]:
        """Out-of-memory kills that get no further than the one before; the first may report one step less.

        Survivors that go on in their pods report no step: if status learns of the first one now, the count starts
        again.
        """
        step = self._reached.get((account.job, account.run), 0)
        count, before = self._memory.get(account.job, (0, 0))
        count = count + 1 if step <= before else 1
        known, learned = (int((one.get("failures") or {}).get("outOfMemoryStep") or 0) for one in (old, status))
        if learned and not known:
            count = min(count, int((status.get("failures") or {}).get("outOfMemory") or 0) + 1)
        self._memory[account.job] = count, max(step, before)
        words, told = (
            f"the {count}th kill for want of memory in a row at step {step}, and",
            status.get("failures") or {},
        )
        if count > MEMORY_ROW and status.get("phase") != "Failed":
            yield "memory-row", f"{words} the job goes on"
        if int(told.get("outOfMemory") or 0) < count - 1:
            yield "memory-row", f"{words} status counts {told.get('outOfMemory')}"

    def _is_done(self, account: Account) -> bool:
        return any(one.get("outcome") in ("completed", "checkpointed") for one in account.told.values())

    def _steps(self, account: Account, lost: int, known: int) -> Iterator[tuple[str, str]]:
        """As many as were trained and are in no commit; fewer if not every member could report.

        More if no ended member reports the newest commit, and its maker lives on: status then counts from the one that
        was `known`.
        """
        yield from self._saved_steps(account, lost)
        run = account.job, self._trained(account)
        made, committed = self._left.get(run) or self._committed.get(account.job, (-1e9, 0))
        goes_on = run in self._taken and (account.job, self._taken[run]) not in self._broken
        truth = 0 if goes_on else max(self._reached.get(run, 0) - committed, 0)
        if min((death.at for death in account.deaths.values()), default=0.0) - made < BREATH_SECONDS:
            return
        told = [one for one in account.told.values() if int(one.get("run") or 0) == run[1]]
        known = max([known, *(int(one["commit"]["step"]) for one in told if one.get("commit"))])
        untold = max(self._reached.get(run, 0) - known, 0) if len(told) < len(account.members) else 0
        # A rank may end within the step that another has done.
        above = lost > max(truth + 1, self._told_lost(told), untold)
        # For an unreported earlier run, its whole progress counts, or none.
        if not told and run[1] != account.run:
            above = lost > 1 and min(abs(lost - truth), abs(lost - untold)) > 1
        if above:
            yield "steps-lost", f"{lost} steps are counted as lost, and {truth} were trained since the last commit"
        elif lost + account.since < truth and self._is_all_told(account, told) and not self._counts_later(account):
            yield "steps-lost", f"{lost} steps are counted as lost, and {truth} are"

    def _is_all_told(self, account: Account, told: list[Json]) -> bool:
        """Whether all members have reported, and no run continued from this one."""
        run = account.job, self._trained(account)
        return run not in self._taken and len(told) == len(account.members) and self._is_heard(account)

    def _counts_later(self, account: Account) -> bool:
        """Whether the ended member belongs to the run that status takes for the current one, and that never began.

        Those members' progress counts when that run is closed.
        """
        plan = plan_of(self._case.status(account.job))
        members = {one["name"] for one in plan.get("members") or ()}
        never = (account.job, int(plan.get("run") or 0)) not in self._reached
        return never and bool(account.told.keys() & members)

    def _trained(self, account: Account) -> int:
        """The run, or if it never began the one that its members report, or else the one before it."""
        runs = {int(one.get("run") or 0) for one in account.told.values()} - {0}
        if (account.job, account.run) in self._reached:
            return account.run
        begun = [run for job, run in self._reached if job == account.job and run < account.run]
        return max([run for run in begun if run in runs] or begun, default=account.run)

    def _told_lost(self, told: list[Json]) -> int:
        """If last words are older than the log, and living members leave none, the truth cannot be known."""
        return _beyond_commit(told) if self._case.fired("foreign-outcome") else 0

    def _saved_steps(self, account: Account, lost: int) -> Iterator[tuple[str, str]]:
        """A commit known to one member is not lost, whatever the others know."""
        told = [one for one in account.told.values() if int(one.get("run") or 0) == account.run]
        if any(one.get("commit") for one in told) and len(told) == len(account.members) and self._is_heard(account):
            most = _beyond_commit(told)
            if lost > most:
                yield "steps-lost", f"{lost} steps are counted as lost, and a member tells of {most} at most"

    def _is_heard(self, account: Account) -> bool:
        """Whether a leader has read all last words of the members."""
        return not account.unled and not self._case.fired(*MISSED)

    def _saved(self, account: Account, status: Json, cost: int) -> Iterator[tuple[str, str]]:
        """A member that saved costs nothing; a late one is reported as late."""
        said = condition(status, "Saved")
        kinds = [one.get("outcome") for one in account.told.values() if int(one.get("run") or 0) == account.run]
        words = f"{said.get('status')} {said.get('reason')}: {said.get('message')}"
        if len(kinds) == len(account.members) and set(kinds) == {"checkpointed"} and self._is_heard(account):
            if cost or said.get("status") != "True":
                yield "saved", f"all members have saved; it costs {cost} failures, and Saved is {words}"
            if account.run in (status.get("lost") or ()) and account.asked_at is not None:
                yield "saved", f"all members have saved, and the run counts as lost: {status.get('lost')}"
        whole = len(kinds) == len(account.members) and self._is_heard(account)
        untold = whole and not set(kinds) & _IN_LOG and account.run not in (status.get("lost") or ())
        if untold and not self._counts_later(account):
            yield "saved", f"no member has reported its end in the log, and it does not count as lost: {kinds}"
        late = account.late and not account.deaths.keys() - account.late and not set(kinds) & {"checkpointed", "failed"}
        expected = {"ExitTimeout", "CodeFailure", "InfrastructureFailure"}
        # A kubelet may report late one that left in time, and stayers were late in the run that took over.
        if "handed-over" in kinds and (account.job, account.run) in self._taken:
            expected.add("HandedOver")
        if late and said.get("reason") not in expected:
            yield "saved", f"{sorted(account.late)} were deleted after their time, and Saved is {words}"


def _counted(account: Account, status: Json, before: Json) -> int:
    """Steps that count as lost, or may be, of this run, including those learnt of other runs in the same write."""
    on = int(plan_of(before).get("run") or 0)
    own = 0 if on == account.run else on  # the cost is final once the next run has begun
    known = {int(one["run"]): _may_be_lost(one) for one in before.get("history") or ()}
    now = {int(one["run"]): _may_be_lost(one) for one in status.get("history") or ()}
    learnt = sum(now[run] - known[run] for run in now.keys() & known.keys() - {own})
    return _may_be_lost(status) - _may_be_lost(before) - learnt


def _may_be_lost(one: Json) -> int:
    return int(one.get("stepsLost") or 0) + int(one.get("stepsInDoubt") or 0)


def _runs(job: Json) -> tuple[Json, Json]:
    """The current run, and the one before while its leavers leave."""
    status = status_of(job)
    return current(status), previous(status)


def _beyond_commit(told: list[Json]) -> int:
    """Steps that last words report beyond the newest commit that they report; 0 if they report none."""
    commits = [(int(one["commit"]["seq"]), int(one["commit"]["step"])) for one in told if one.get("commit")]
    return max(max(int(one.get("step") or 0) for one in told) - max(commits)[1], 0) if commits else 0
