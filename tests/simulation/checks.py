"""What must hold, looked at after every change and fact: read from raw objects, never through the operator's types.

I3 I5 I8 I9 I10 I11 I12 I13 as the model numbers them, and what must stay bounded while everything goes wrong: writes,
pods, lists, deadlines in the past. I6 is asked at the end, by `Checks.unsettled`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.claims import FINISHED, Claims, assignment, condition, intent, plans
from tests.simulation.evidence import Evidence
from tests.simulation.expected import Expected
from tests.simulation.objects import (
    BUDGETS,
    EPOCH,
    EVENTS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    Json,
    is_ready,
    key_of,
    labels_of,
    node_of,
    owner_of,
    phase_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)
from tests.simulation.scene import Scene
from tests.simulation.world import Fact

WRITES_A_MINUTE: Final = 150
"""Of one job's objects by all operators, plus 30 for each member: several rounds a second for a minute are a storm."""
LISTS_A_MINUTE: Final = 150
PODS_A_MINUTE: Final = 12
"""For each member wanted: a back-off from a second makes seven a minute, and a short run in between begins it anew."""
PODS_A_RUN: Final = 20
ROUNDS_ALONE: Final = 6
OVERDUE_SECONDS: Final = 75.0
SILENT_SECONDS: Final = 90.0
POLL_SECONDS: Final = 1.0

WAITING: Final[dict[str, str]] = {}
"""Checks that today's operator is known to fail, each with the defect it waits for; `--all` makes them count."""

_TIME: Final = re.compile(r"(?:until|by|before|at) ((?:\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d(?:\.\d+)?Z)")


@dataclass(frozen=True)
class Violation:
    """What does not hold."""

    at: float
    check: str
    words: str

    def __str__(self) -> str:
        return f"{self.check} at {self.at:.3f} s: {self.words}"


class Broken(Exception):
    """Ends the history."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


@dataclass
class JobRecord:
    """What has been seen of one job object, by uid."""

    name: str
    plans: dict[int, str] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    next_member: int = 0
    steps_lost: int = 0
    run: int = 0
    most: int = 1
    """The highest number of replicas ever wanted."""
    writes: deque[float] = field(default_factory=deque)
    pods: deque[float] = field(default_factory=deque)
    pods_of_run: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    rounds_alone: int = 0
    last_round: float = -1e9
    overdue_since: dict[str, float] = field(default_factory=dict)
    unsaid_since: float | None = None


@dataclass
class Training:
    """Who steps at a root."""

    run: int = 0
    uid: str = ""
    at: float = 0.0
    step: int = 0


class Checks:
    """All invariants of one history. Raises nothing: the first violation is kept and ends the history."""

    def __init__(self, scene: Scene, *, everything: bool = False) -> None:
        self._scene = scene
        self._world = scene.world
        self._waived = () if everything else WAITING
        self.violation: Violation | None = None
        self.jobs: dict[str, JobRecord] = {}
        self.training: dict[str, Training] = defaultdict(Training)
        """By the job's name: the root outlives the job."""
        self._names: set[str] = set()
        self._emptied: set[str] = set()
        self._unready: dict[str, float] = {}
        """When a node was last told not to be Ready."""
        self._excused: dict[str, float] = {}
        """Nodes and jobs where something happened that suspends I3 or I5, and until when."""
        self._lists: dict[str, deque[float]] = defaultdict(deque)
        self.rounds = 0
        scene.world.server.observers.append(self._on_change)
        scene.world.listeners.append(self._on_fact)
        scene.operators.on_call = self._on_call
        self._led_since: float | None = None
        self._claims = Claims(scene, self.fail)
        self._expected = Expected(scene, self.fail)
        self.evidence = Evidence(scene.world.bucket.objects, scene.world.network)
        scene.world.after(POLL_SECONDS, self._poll)

    def fail(self, check: str, words: str) -> None:
        """Keep the first."""
        if self.violation is None and check not in self._waived:
            self.violation = Violation(self._world.now, check, words)
            self._world.tell("CHECK", str(self.violation))

    # events

    def _on_change(self, change: Change) -> None:
        operator = change.by.startswith("operator")
        if operator:
            self._count_write(change)
        if operator and change.kind == BUDGETS:  # what a user has done to it is mended
            where = key_of(change.raw)[0]
            self._excused[where] = min(self._excused.get(where, 0.0), self._world.now + 5.0)
        if change.kind == NODES and change.old is not None and not is_ready(change.raw):
            self._unready[key_of(change.raw)[1]] = self._world.now
        if change.kind == JOBS:
            self._on_job(change, operator)
        elif change.kind == PODS:
            self._on_pod(change, operator)
        if not operator and change.kind not in (EVENTS, LEASES):
            self._disturbed(change)

    def _disturbed(self, change: Change) -> None:
        for record in self.jobs.values():
            record.rounds_alone = 0
        if change.by == "user" and change.kind in (PODS, BUDGETS):
            self._excuse(key_of(change.raw)[0], 20.0 if change.kind == PODS else 120.0)
        ended = change.old is not None and terminal(change.old) and change.by != "pod-gc"
        if change.event == "DELETED" and change.kind == PODS and node_of(change.raw) and not ended:
            self._excuse(node_of(change.raw), 200.0)
            self.evidence.excuse(self._world.now, "a pod's object is gone before its container")

    def _excuse(self, what: str, seconds: float) -> None:
        self._excused[what] = max(self._excused.get(what, 0.0), self._world.now + seconds)

    def _prolong_excuses(self) -> None:
        """What people have done to pods and budgets stays as it is while nobody works who could mend it."""
        for what, until in self._excused.items():
            if until >= self._world.now:
                self._excused[what] = until + POLL_SECONDS

    def _is_excused(self, what: str) -> bool:
        return self._excused.get(what, -1.0) >= self._world.now

    def _count_write(self, change: Change) -> None:
        if change.kind in (EVENTS, LEASES):
            return
        uid = uid_of(change.raw) if change.kind == JOBS else owner_of(change.raw)
        record = self.jobs.get(uid)
        if record is None:
            return
        now = self._world.now
        _count(record.writes, now)
        if len(record.writes) > WRITES_A_MINUTE + 30 * record.most:
            self.fail("writes", f"{record.name}: {len(record.writes)} writes of the operator in a minute")

    def _on_job(self, change: Change, operator: bool) -> None:
        raw, uid = change.raw, uid_of(change.raw)
        record = self.jobs.setdefault(uid, JobRecord(key_of(raw)[1]))
        record.most = max(record.most, int(raw["spec"].get("replicas", 1)))
        if change.event == "DELETED" and raw["spec"]["checkpoint"]["uri"] in self._emptied:
            self.evidence.emptied(raw["spec"]["checkpoint"]["uri"], 0)  # its memory goes with it
        if change.event == "DELETED" or not operator or change.old is None:
            return
        status = raw.get("status") or {}
        if status == (change.old.get("status") or {}):
            return
        self.rounds += 1
        now = self._world.now
        record.rounds_alone = record.rounds_alone + 1 if now - record.last_round < 5.0 else 1
        record.last_round = now
        if record.rounds_alone > ROUNDS_ALONE:
            words = f"{record.name}: {record.rounds_alone} status writes within seconds, and nothing else happened"
            self.fail("I10", words)
        self._check_memory(record, status)

    def _check_memory(self, record: JobRecord, status: Json) -> None:
        for name, value in (status.get("failures") or {}).items():
            if name in ("code", "infrastructure"):
                if value < record.failures.get(name, 0):
                    self.fail("I11", f"{record.name}: failures.{name} went down to {value}")
                record.failures[name] = value
        if int(status.get("stepsLost", 0)) < record.steps_lost:
            self.fail("I11", f"{record.name}: stepsLost went down to {status.get('stepsLost', 0)}")
        record.steps_lost = int(status.get("stepsLost", 0))
        if int(status.get("nextMember", 0)) < record.next_member:
            self.fail("I12", f"{record.name}: nextMember went down")
        record.next_member = int(status.get("nextMember", 0))
        if int(status.get("run", 0)) < record.run:
            self.fail("I13", f"{record.name}: run went down to {status.get('run')}")
        record.run = int(status.get("run", 0))
        for plan in plans(status):
            text = json.dumps(plan, sort_keys=True)
            if record.plans.setdefault(int(plan["run"]), text) != text:
                self.fail("I13", f"{record.name}: the plan of run {plan['run']} has changed: {text}")
            if not 1 <= len(plan["members"]) <= record.most:
                self.fail("I8", f"{record.name}: run {plan['run']} has {len(plan['members'])} members")

    def _on_pod(self, change: Change, operator: bool) -> None:
        former = operator and change.old is not None and labels_of(change.raw).get("perdure.dev/role") == "former"
        if former and self._world.now - self._unready.get(node_of(change.raw), -1e9) < 150.0:
            # A node that is given up costs steps: the news of it may be old, but never made up.
            self.evidence.excuse(self._world.now, "its node was given up")
        if change.event != "ADDED" or not operator:
            return
        name = "/".join(key_of(change.raw))
        if name in self._names:
            self.fail("I12", f"pod {name} is created a second time")
        self._names.add(name)
        record = self.jobs.get(owner_of(change.raw))
        if record is None:
            return
        _count(record.pods, self._world.now)
        record.pods_of_run[record.run] += 1
        if len(record.pods) > PODS_A_MINUTE * record.most + 2:
            self.fail("storm", f"{record.name}: {len(record.pods)} pods in a minute for {record.most} members")
        if record.pods_of_run[record.run] > PODS_A_RUN * record.most + 4:
            self.fail("storm", f"{record.name}: {record.pods_of_run[record.run]} pods for run {record.run}")
        alive = [
            one
            for one in self._world.server.each(PODS)
            if owner_of(one) == owner_of(change.raw)
            and not terminal(one)
            and not terminating(one)
            and labels_of(one).get("perdure.dev/role") != "former"
        ]
        if len(alive) > 2 * record.most:
            self.fail("I8", f"{record.name}: {len(alive)} living pods for {record.most} members")

    def _on_call(self, who: str, verb: str, kind: str) -> None:
        if verb == "list":
            _count(self._lists[who], self._world.now)
            if len(self._lists[who]) > LISTS_A_MINUTE * max(len(self.jobs), 1):
                self.fail("lists", f"{who}: {len(self._lists[who])} LISTs of {kind} in a minute")

    def _on_fact(self, fact: Fact) -> None:
        if fact.what == "evicted":
            self._check_eviction(fact.facts["raw"])
        elif fact.what == "emptied":
            self._emptied.add(fact.facts["root"])
            self.evidence.emptied(fact.facts["root"], fact.facts["told"])
        elif fact.what in ("cut off", "reached again", "power off", "kills"):
            self.evidence.excuse(self._world.now, fact.what)
            if fact.what == "cut off":
                self._excuse(fact.facts["node"], 1e9)
        elif fact.what in ("opened", "committed"):
            self._judge(self.evidence.look())
        elif fact.what == "step":
            self._check_step(fact)

    def _check_eviction(self, pod: Json) -> None:
        """I5: nobody who is assigned, Ready and running."""
        job = next((one for one in self._world.server.each(JOBS) if uid_of(one) == owner_of(pod)), None)
        if job is None or terminating(job) or terminating(pod) or self._is_excused(key_of(pod)[0]):
            return
        status, said = job.get("status") or {}, assignment(pod)
        if status.get("phase") in FINISHED or not is_ready(pod) or phase_of(pod) != "Running":
            return
        if labels_of(pod).get("perdure.dev/role") == "member" and "rank" in said and said["run"] >= self._current(job):
            self.fail("I5", f"{key_of(pod)[1]} was evicted while it was assigned, Ready and running")

    def _current(self, job: Json) -> int:
        known = list(plans(job.get("status") or {}))
        return min((int(plan["run"]) for plan in known), default=0)

    def _check_step(self, fact: Fact) -> None:
        pod = self._world.server.find(PODS, "team", fact.who)
        uid, run = fact.facts["uid"], int(fact.facts["run"])
        record = self.jobs.get(uid)
        if record is None:
            return
        newest = self.training[record.name]
        older = run < newest.run if uid == newest.uid else self._is_older(uid, newest.uid)
        if older:
            if not self._may_be_zombie(pod):
                self.fail(
                    "I3", f"{fact.who} steps in run {run} of {uid[:8]} after run {newest.run} of {newest.uid[:8]}"
                )
            return
        self.training[record.name] = Training(run, uid, self._world.now, int(fact.facts["step"]))

    def _is_older(self, uid: str, other: str) -> bool:
        order = list(self.jobs)
        return other in order and order.index(uid) < order.index(other)

    def _may_be_zombie(self, pod: Json | None) -> bool:
        """Whether the world has been told not to count on this pod: its node was lost, or its object is gone."""
        if pod is None:
            return True
        kubelet = self._scene.kubelets.get(node_of(pod))
        lost = kubelet is None or not kubelet.hears or kubelet.name in self._excused
        return lost or labels_of(pod).get("perdure.dev/role") == "former"

    # now and then

    def _poll(self) -> None:
        leader = self._scene.operators.leader()
        calls = self._world.knobs.calls
        deaf = self._world.knobs.watches.silent  # until its resync a leader cannot know
        if leader is None or deaf or leader.link.cut or calls.down or calls.too_many >= 0.9 or calls.error >= 0.5:
            self._led_since = None
            self._prolong_excuses()
        elif self._led_since is None:
            self._led_since = self._world.now
        led = self._led_since is not None and self._world.now - self._led_since >= 30.0
        if led:
            self._claims.look()
            self._expected.look()
        else:
            self._claims.silence()
            self._expected.silence()
        for job in self._world.server.each(JOBS):
            record = self.jobs.get(uid_of(job))
            if record is not None and led:
                self._check_waiting(record, job)
            elif record is not None:
                record.overdue_since.clear()
                record.unsaid_since = None
        self._world.after(POLL_SECONDS, self._poll)

    def _check_waiting(self, record: JobRecord, job: Json) -> None:
        """I9, and no deadline that has long passed."""
        status, now = job.get("status") or {}, self._world.now
        if status.get("phase") in FINISHED or terminating(job):
            return
        said = next((one for one in status.get("conditions") or () if one["type"] == "Running"), None)
        if said is None or not said.get("reason") or (said["status"] != "True" and not said.get("message")):
            record.unsaid_since = now if record.unsaid_since is None else record.unsaid_since
            if now - record.unsaid_since > SILENT_SECONDS:
                self.fail("I9", f"{record.name}: nothing is said of whether it runs: {said}")
        else:
            record.unsaid_since = None
        due = {text: seconds_of(text) for text in {*_promises(status), *self._exit_deadline(job, status)}}
        for text, at in due.items():
            if now - at > OVERDUE_SECONDS:
                first = record.overdue_since.setdefault(text, now)
                if now - first > 30.0:
                    words = (said or {}).get("message", "")
                    self.fail("deadline", f"{record.name}: waits {now - at:.0f} s after its deadline: {words}")
        record.overdue_since = {text: at for text, at in record.overdue_since.items() if text in due}

    def _exit_deadline(self, job: Json, status: Json) -> Iterator[str]:
        """When the members of the run that ends have to be gone, while one of them is not.

        Once a person is asked to look at a pod that does not end, no time is promised any more.
        """
        conditions: Iterable[Json] = status.get("conditions") or ()
        running: Json = next((one for one in conditions if one["type"] == "Running"), {})
        if running.get("reason") == "MemberStuck":
            return
        deadline = intent(status).get("deadline")
        members = {one["name"] for plan in plans(status) for one in plan["members"]}
        left = (self._world.server.find(PODS, key_of(job)[0], name) for name in members)
        if deadline and any(pod is not None and not terminal(pod) for pod in left):
            yield str(deadline)

    # the end

    def judge(self) -> None:
        """I1, I2, I4, I7: the logs against what was trained."""
        done = [user.root for user in self._scene.users if user.job is not None and _phase(user.job) == "Completed"]
        self._judge(self.evidence.verdict(done, {user.root: user.goal for user in self._scene.users}))

    def _judge(self, found: list[str]) -> None:
        for words in found:
            check = words.split(": ")[1].split(" ")[0] if words.count(": ") > 1 else "log"
            self.fail(check if check[:1] == "I" else "log", words)

    def unsettled(self) -> list[str]:
        """I6: the jobs that neither train nor are finished, each with what its status says."""
        return [words for user in self._scene.users if (words := self._unsettled(user.job))]

    def _unsettled(self, job: Json | None) -> str:
        if job is None:
            return ""
        status = job.get("status") or {}
        left = [one for one in self._world.server.each(PODS) if owner_of(one) == uid_of(job) and not terminal(one)]
        if status.get("phase") in FINISHED and left:
            return f"{key_of(job)[1]} is finished, and {len(left)} of its pods hold their devices"
        if status.get("phase") in FINISHED or ("emptied-root" in self._world.fired and _asks_about_root(status)):
            return ""
        name = key_of(job)[1]
        last = self.training[name]
        plan = max((int(one["run"]) for one in plans(status)), default=0)
        steps = last.uid == uid_of(job) and last.run == plan and self._world.now - last.at < 30.0
        if status.get("phase") == "Running" and steps:
            return ""
        said = [
            f"{one['type']}={one['status']} {one['reason']}: {one['message']}" for one in status.get("conditions", ())
        ]
        return f"{name} is {status.get('phase')} in run {plan}, last step in run {last.run}: {'; '.join(said[:3])}"


def _asks_about_root(status: Json) -> bool:
    """What was deleted below a root only people can bring back, or take away whole: an append under way is left."""
    failed = any(" Corrupt" in one.get("message", "") for one in status.get("conditions") or ())
    return condition(status, "Running").get("reason") == "LogLost" or failed


def _phase(job: Json) -> str:
    return str((job.get("status") or {}).get("phase"))


def _promises(status: Json) -> Iterator[str]:
    """Moments in what Running and Disrupted say of what is waited for."""
    for one in status.get("conditions") or ():
        if one["type"] in ("Running", "Disrupted") and (one["type"], one["status"]) != ("Running", "True"):
            for text in _TIME.findall(one.get("message", "")):
                yield text if "T" in text else f"{EPOCH:%Y-%m-%d}T{text}"


def _count(times: deque[float], now: float) -> None:
    times.append(now)
    while times and times[0] < now - 60.0:
        times.popleft()
