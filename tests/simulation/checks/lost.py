"""After the loss of a peer the other trainers end at once, because they can save no more and the next run waits for it;
their pods stay, so that it begins in them; and no leaving member joins it."""

from __future__ import annotations

from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import assignment, outcome, plans, run_told, status_of, terminated
from tests.simulation.objects import JOBS, PODS, Json, key_of, seconds_of, terminating, uid_of
from tests.simulation.world import Fact

END_SECONDS: Final = 3.5
"""The time for the kubelet to show the pod its assignment, for a thread to leave an image, and for the agent to
kill."""
SEAT_SECONDS: Final = 25.0
KNOWN_SECONDS: Final = 3.0
"""A state this old is known, if nothing delays the news."""
_SEATED: Final = ("checkpointed", "peer-lost", "stopped")
_DEAF: Final = (
    *(
        "hung-agent",
        "frozen-trainer",
        "file-delay",
        "file-missed",
        "partition",
        "kubelet-silent",
        "all-kubelets-silent",
    ),
    *("node-power", "node-object-deleted", "stuck-terminating"),
)
"""A pod may not hear of it at once."""
_LIES: Final = ("foreign-outcome", "absurd-outcome")


class Lost(Promise):
    """Checked when a process or a container ends, and when a run is planned."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._told: dict[tuple[str, int], float] = {}
        """By name of the pod and run: when it learnt that the run is lost."""
        self._begun: dict[tuple[str, int, int], float] = {}
        """By name of the pod, run and rank: when a process was started."""
        self._parties: set[str] = set()
        """Pods that take part in a hand-over: a party that has voted is killed only if both runs are lost."""

        self._ended: dict[str, float] = {}
        """By name of the pod: when its last process ended."""
        self._started: dict[str, float] = {}
        """By name of the pod: when that was started; another pod may have this name since."""
        self._newest: dict[str, int] = {}
        """By uid of the pod: the newest run that it was assigned, which its agent does not forget."""
        self._going: dict[str, float] = {}
        """By uid of the pod: since when it is being deleted."""

    def on_change(self, change: Change) -> None:
        pod = change.raw
        if change.kind == JOBS and change.old is not None and by_operator(change):
            self._check_plans(pod, change.old)
        if change.kind != PODS or change.event == "DELETED":
            return
        if terminating(pod):
            self._going.setdefault(uid_of(pod), self._case.now)
            self._told = {told: at for told, at in self._told.items() if told[0] != key_of(pod)[1]}  # it hears no more
            return
        for run in assignment(pod).get("lost") or ():
            self._told.setdefault((key_of(pod)[1], int(run)), self._case.now)
        self._newest[uid_of(pod)] = max(run_told(pod), self._newest.get(uid_of(pod), 0))
        if change.old is not None and terminated(pod) and not terminated(change.old):
            self._check_seat(pod)

    def _check_seat(self, pod: Json) -> None:
        """A member that could continue in its pod waits there for the next run."""
        told, name = outcome(pod), key_of(pod)[1]
        if self._started.get(name, 0.0) < seconds_of(pod["metadata"]["creationTimestamp"]) - 1.0:
            return  # this one never trained
        seated = self._case.now - self._ended.get(name, -1e9)
        newer = self._newest[uid_of(pod)] > int(told.get("run") or 0)
        if told.get("outcome") in _SEATED and not newer and seated < SEAT_SECONDS and not self._case.fired(*_LIES):
            words = f"{name} is {told['outcome']}, and gives its seat up {seated:.1f} s after its trainer has ended"
            self._case.fail("seat", words)

    def _check_plans(self, job: Json, old: Json) -> None:
        known = {int(plan["run"]) for plan in plans(status_of(old))}
        if self._case.deaf:
            return
        for plan in plans(status_of(job)):
            for one in plan["members"] if int(plan["run"]) not in known else ():
                going = self._case.now - self._going.get(one["uid"], self._case.now)
                if going > KNOWN_SECONDS:
                    words = f"run {plan['run']} is planned with {one['name']}, deleted {going:.0f} s ago"
                    self._case.fail("doomed", f"{key_of(job)[1]}: {words}")

    def on_fact(self, fact: Fact) -> None:
        if fact.what == "party":
            self._parties.add(fact.who)
        if fact.what not in ("trainer-started", "trainer-ended"):
            return
        run = int(fact.facts["run"])
        process = fact.who, run, int(fact.facts["rank"])
        if fact.what == "trainer-ended":
            self._ended[fact.who] = fact.at
        if fact.what == "trainer-started":
            self._begun[process] = self._started[fact.who] = fact.at
        elif process in self._begun:
            known = max(self._told.get((fact.who, run), fact.at), self._begun.pop(process))
            if fact.at - known > END_SECONDS and fact.who not in self._parties and not self._case.fired(*_DEAF):
                words = f"{fact.who} has trained for run {run} {fact.at - known:.1f} s after it learnt that it is lost"
                self._case.fail("lingers", words)
