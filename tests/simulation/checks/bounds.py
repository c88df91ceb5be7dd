"""While everything goes wrong: writes, lists, pods and rounds stay bounded, and failures are not repeated at once."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator, within_a_minute
from tests.simulation.checks.reading import (
    ROLE,
    assignment,
    current,
    intent,
    plan_of,
    plans,
    previous,
    spares,
    status_of,
    to_come,
    training,
)
from tests.simulation.checks.room import admitted
from tests.simulation.objects import (
    EVENTS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    Json,
    key_of,
    labels_of,
    node_of,
    owner_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)

WRITES_A_MINUTE: Final = 150
"""Of one job's objects by all operators, plus 30 for each member: several rounds a second for a minute are a storm."""
LISTS_A_MINUTE: Final = 150
GETS_A_MINUTE: Final = 60
GETS_OF_A_MEMBER: Final = 3
"""In addition to those for its pod and its node."""
PODS_A_MINUTE: Final = 12
"""For each member wanted: a back-off from a second makes seven a minute."""
PODS_A_RUN: Final = 20
ROUNDS_ALONE: Final = 6
ROUNDS_FOR_SPARES: Final = 6
"""In addition, if one is refused: it is given up and recreated, after pauses that double."""
ROUNDS_OF_OLD_NEWS: Final = 20
"""Old events may be reported within seconds."""
PAUSE_AT_MOST_SECONDS: Final = 300
_OF_THE_ROOT: Final = ("Corrupt", "StorageRefused", "LogLost")
"""Such a failure costs nothing."""
KEPT_SECONDS: Final = 30.0
"""After the status that no longer names a deleted pod."""


class Bounds(Promise):
    """I10, I8 for pods, and storms."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.rounds = 0
        self._writes: dict[str, deque[float]] = defaultdict(deque)
        self._pods: dict[str, deque[float]] = defaultdict(deque)
        self._planned: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PODS_A_MINUTE))
        """By uid of the job: when its last runs were planned."""
        self._pods_of_run: dict[tuple[str, int], int] = defaultdict(int)
        self._lists: dict[str, deque[float]] = defaultdict(deque)
        self._gets: dict[str, deque[float]] = defaultdict(deque)
        self._sent: dict[tuple[str, int, str], int] = defaultdict(int)
        """Pods by job, run and departing node."""
        self._alone: dict[str, int] = {}
        self._last_round: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        """By uid of the job: how long after a loss the run without that member was planned."""

    def on_change(self, change: Change) -> None:
        if change.kind in (EVENTS, LEASES):
            return
        if not by_operator(change):
            self._alone.clear()
            if change.kind == PODS and change.old is not None:
                self._on_others_pod(change, change.old)
            return
        uid = uid_of(change.raw) if change.kind == JOBS else owner_of(change.raw)
        if uid not in self._case.jobs:
            return
        name, most = self._case.jobs[uid], self._case.most[uid]
        if within_a_minute(self._writes[uid], self._case.now) > WRITES_A_MINUTE + 30 * most:
            self._case.fail("writes", f"{name}: {len(self._writes[uid])} writes of the operator in a minute")
        if change.kind == JOBS and change.event != "DELETED":
            self._on_round(change, uid)
        elif change.kind == PODS and change.event == "ADDED":
            self._on_new_pod(uid, change.raw)

    def _on_others_pod(self, change: Change, old: Json) -> None:
        """Successors are not sent to a departing node again and again.

        Removing an existing pod frees room for all that wait: it may be the placeholder, or one that would have become
        the placeholder had an operator seen where it landed. If a quota leaves no room for one more, a placeholder
        would keep its own successor from being created forever.
        """
        node, uid = self._world.node(node_of(change.raw)), owner_of(change.raw)
        if node is None or uid not in self._case.jobs or not terminating(node):
            return
        where = uid, int(self._case.status(uid).get("run") or 0), node_of(change.raw)
        if terminating(change.raw) and not terminating(old) and node_of(old):
            self._sent[where] = 0
        job = self._case.job(uid)
        if node_of(old) or self._world.server.policy.refuse_patches:  # then none can be marked as placeholder
            return
        if job and admitted(self._case, job) < 1:  # then none is kept: the placeholder of another is enough
            return
        self._sent[where] += 1
        if self._sent[where] > 2 * self._case.most[uid]:  # standbys for some, then, because none was Ready, for all
            words = f"{self._sent[where]} pods for run {where[1]} come to {where[2]}, which goes away"
            self._case.fail("misplaced", f"{self._case.jobs[uid]}: {words}")

    def _check_pause(self, uid: str, before: Json, after: Json) -> None:
        """The next run is planned in living pods before the failed one has been counted."""
        lost, plan = intent(before), plan_of(after)
        # A member that reports a mere stop costs nothing, and its peers report their cause when they leave.
        told = any(
            one.get("infrastructure") or one.get("outcome") in ("failed", "fenced", "peer-lost")
            for one in current(before).get("outcomes") or ()
        )
        free = any(one.get("errorName") in _OF_THE_ROOT for one in current(before).get("outcomes") or ())
        planned = plan and plan.get("run") != plan_of(before).get("run") and not free
        if lost.get("disruption") == "MemberLost" and told and planned:
            self._pauses[uid] = self._case.now - seconds_of(lost["since"])
        row, old = (int((one.get("failures") or {}).get("consecutive") or 0) for one in (after, before))
        if row > old and uid in self._pauses:
            # Two may be counted at once: the run planned after the first died before that was known.
            paused, due = self._pauses.pop(uid), min(2**old, PAUSE_AT_MOST_SECONDS)
            if paused < due - 2.0:
                words = f"{old + 1} failures in a row, and the next run is planned {paused:.0f} s after the last"
                self._case.fail("no-pause", f"{self._case.jobs[uid]}: {words}")
        if not previous(after):  # the lost run is closed: its members reported one that was counted before
            self._pauses.pop(uid, None)

    def _on_round(self, change: Change, uid: str) -> None:
        if change.old is None or status_of(change.raw) == status_of(change.old):
            return
        self._check_pause(uid, status_of(change.old), status_of(change.raw))
        if plan_of(status_of(change.raw)).get("run") not in (None, plan_of(status_of(change.old)).get("run")):
            self._planned[uid].append(self._case.now)
        self.rounds += 1
        now = self._case.now
        self._alone[uid] = self._alone.get(uid, 0) + 1 if now - self._last_round.get(uid, -1e9) < 5.0 else 1
        self._last_round[uid] = now
        alone = ROUNDS_ALONE + (ROUNDS_FOR_SPARES if spares(change.raw) else 0)
        if self._alone[uid] > (ROUNDS_OF_OLD_NEWS if self._case.deaf else alone):
            words = f"{self._alone[uid]} status writes within seconds, and nothing else happened"
            self._case.fail("I10", f"{self._case.jobs[uid]}: {words}")

    def _on_new_pod(self, uid: str, pod: Json) -> None:
        case, name, most = self._case, self._case.jobs[uid], self._case.most[uid]
        most += spares(case.job(uid))
        status = case.status(uid)
        runs = sum(at > case.now - 60.0 for at in self._planned[uid])  # each restarts the back-off
        if within_a_minute(self._pods[uid], case.now) > (PODS_A_MINUTE + 2 * runs) * most + 2:
            case.fail("storm", f"{name}: {len(self._pods[uid])} pods in a minute for {most} members")
        run = uid, int(status.get("run") or 0)
        self._pods_of_run[run] += 1
        if self._pods_of_run[run] > PODS_A_RUN * most + 4:
            case.fail("storm", f"{name}: {self._pods_of_run[run]} pods for run {run[1]}")
        named = training(status) | to_come(status)
        alive = [
            one
            for one in case.pods(uid)
            if not terminal(one) and not terminating(one) and labels_of(one).get(ROLE) != "former"
            if not assignment(one).get("leave")
        ]
        known = [one for one in alive if key_of(one)[1] in named]
        if len(known) > 2 * most or (len(alive) > 3 * most and not case.fired("late-write")):  # which is not expected
            case.fail(
                "I8", f"{name}: {len(known)} living pods for {most} members, and {len(alive) - len(known)} others"
            )
        job = case.job(uid)
        failed = (status.get("failures") or {}) if job else {}
        # A pod requested before the failure was counted, and given up since, may be created only now.
        late = key_of(pod)[1] not in named and case.fired("late-write")
        if failed.get("lastTime") and failed.get("consecutive") and not late:
            pause = min(2 ** (int(failed["consecutive"]) - 1), PAUSE_AT_MOST_SECONDS)
            gone = case.now - seconds_of(failed["lastTime"])
            if gone < pause - 2.0:
                words = f"{failed['consecutive']} failures in a row, and new pods {gone:.0f} s after the last"
                case.fail("no-pause", f"{name}: {words}")

    def look(self) -> None:
        """Status is the memory: nothing keeps its records of a deleted pod beside it, or they grow forever."""
        leader = self._case.scene.operators.leader()
        if leader is None:
            return
        for job in self._world.server.each(JOBS):
            status = status_of(job)
            named = training(status) | to_come(status)
            named |= {one["name"] for plan in plans(status) for one in plan["members"]}
            used = int(status.get("nextMember") or 0)
            kept = [name for name in leader.remembers(*key_of(job)) if name not in named and _number(name) < used]
            words = f"{key_of(job)[1]}: {leader.identity} still remembers {sorted(kept)}, which status names no more"
            self._lasting("hoard", uid_of(job), bool(kept), self._case.patience(KEPT_SECONDS), words)

    def on_call(self, who: str, verb: str, kind: str, name: str) -> None:  # noqa: ARG002
        if verb == "get" and kind in (PODS, NODES):  # one by one, those missing in the cache
            most = GETS_A_MINUTE + GETS_OF_A_MEMBER * sum(self._case.most.values())
            if within_a_minute(self._gets[who], self._case.now) > most:
                self._case.fail("gets", f"{who}: {len(self._gets[who])} objects are asked for one by one in a minute")
        if verb == "list" and within_a_minute(self._lists[who], self._case.now) > LISTS_A_MINUTE * max(
            len(self._case.jobs), 1
        ):
            self._case.fail("lists", f"{who}: {len(self._lists[who])} LISTs of {kind} in a minute")


def _number(name: str) -> int:
    """The bound for a member, by its name."""
    end = name.rpartition("-")[2]
    return int(end) if end.isdigit() else 0
