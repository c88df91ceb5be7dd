"""The results of offers to hand a run over, by status and the log.

An offer that nothing obstructs is taken, a taken one becomes known in time, and no offer lasts forever.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import STATUS_UNSURE, Case, Promise, by_operator
from tests.simulation.checks.reading import current, finished, intent, plan_of, run_told, status_of, upcoming
from tests.simulation.objects import JOBS, PODS, Json, key_of, seconds_of, terminating, uid_of
from tests.simulation.world import Fact

ATTEMPTS: Final = 2
"""How often a move is tried live, not counting attempts whose newcomers failed by themselves."""
_BY_ITSELF: Final = ("failed", "exit", "killed")
"""Ends of a trainer that are due to itself or its place: a healthy run is never stopped for such a newcomer."""
LEARNED_SECONDS: Final = 60.0
"""After the time in which every party knows: a living newcomer is evidence then."""
_HARMLESS: Final = frozenset(
    {"drain", "eviction-refused", "scale", "noisy-pods", "cordon-for-a-moment", "watch-duplicate"}
)


class Offers(Promise):
    """Checked when status changes, and once a second."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._tried: dict[tuple[str, int, str], set[int]] = defaultdict(set)
        """By uid of the job, its run and when the move began: the runs offered to take over."""
        self._edited: dict[str, float] = {}
        """When the spec of a job, by uid, was changed."""
        self._stepped: set[tuple[str, int]] = set()
        """Runs, by uid, that have trained."""
        self._opened: dict[tuple[str, int], float] = {}
        """When they were opened: before that they cannot be handed over."""
        self._read: dict[str, int] = defaultdict(int)
        """By root: how many entries were read."""
        self._went: set[tuple[str, int]] = set()
        self._failed: set[tuple[str, int]] = set()
        """Runs, by uid, with a trainer that failed by itself."""

    def on_fact(self, fact: Fact) -> None:
        if fact.what == "step":
            self._stepped.add((fact.facts["uid"], int(fact.facts["run"])))
        elif fact.what == "opened":
            self._opened.setdefault((fact.facts["uid"], int(fact.facts["run"])), fact.at)
        elif fact.what == "trainer-ended" and fact.facts["how"] in _BY_ITSELF:
            self._failed.add((fact.facts["uid"], int(fact.facts["run"])))

    def on_change(self, change: Change) -> None:
        job, old = change.raw, change.old
        if change.kind != JOBS or old is None or change.event == "DELETED":
            return
        if job["spec"] != old["spec"] or terminating(job):
            self._edited[uid_of(job)] = self._case.now
        if not by_operator(change) or finished(job) or self._case.fired(*STATUS_UNSURE):
            return
        before, after = _offered(status_of(old)), _offered(status_of(job))
        if after and after.get("run") != before.get("run"):
            self._count(job, after)
            self._check_beginning(job, after)
        if before and before.get("run") != after.get("run"):
            self._check_end(job, before)

    def _count(self, job: Json, plan: Json) -> None:
        move = uid_of(job), int(plan["takesOver"]), str(intent(status_of(job)).get("since"))
        self._tried[move].add(int(plan["run"]))
        if sum((move[0], run) not in self._failed for run in self._tried[move]) > ATTEMPTS:
            words = f"{key_of(job)[1]}: run {move[1]} is asked to hand over to {sorted(self._tried[move])}"
            self._case.fail("attempts", words)

    def _check_beginning(self, job: Json, plan: Json) -> None:
        """A member is not asked to hand over a run that it does not know."""
        for member in plan_of(status_of(job)).get("members") or ():
            pod = self._world.server.find(PODS, key_of(job)[0], member["name"])
            if pod is not None and uid_of(pod) == member["uid"] and run_told(pod) < int(plan["takesOver"]):
                words = f"run {plan['takesOver']} is asked to hand over, and {member['name']} has not heard of it"
                self._case.fail("early-offer", f"{key_of(job)[1]}: {words}")

    def _check_end(self, job: Json, plan: Json) -> None:
        """If nothing obstructs the offer, it succeeds."""
        uid, offered = uid_of(job), seconds_of(plan["assignedTime"])
        script, run = self._world.behaviours["/".join(key_of(job))], (uid, int(plan["takesOver"]))
        trains = run in self._stepped and self._opened.get(run, offered) <= offered
        edited = self._edited.get(uid, -1e9) >= offered - 1.0
        late = int(plan["handover"]["limit"]) <= 4 * script.save_seconds  # the time to save may be all there is
        if not script.live or script.balks or not trains or edited or late or not self._world.fired.keys() <= _HARMLESS:
            return
        if (uid, int(plan["run"])) in self._taken():
            return
        words = f"{key_of(job)[1]}: run {plan['run']} was to take over run {plan['takesOver']}, nothing was in its way"
        self._case.fail("offer", f"{words}, and it did not: {[one.get('why') for one in _history(job)[-1:]]}")

    def look(self) -> None:
        if self._case.fired(*STATUS_UNSURE):
            return
        for job in self._world.server.each(JOBS):
            plan = _offered(status_of(job))
            if not plan or finished(job) or terminating(job):
                continue
            run = int(plan["run"])
            taken = (uid_of(job), run) in self._taken()
            known = seconds_of(plan["assignedTime"]) + int(plan["seconds"]) + int(plan["wait"]) + LEARNED_SECONDS
            behind = taken and self._case.now > known and int(plan_of(status_of(job)).get("run") or 0) < run
            words = f"{key_of(job)[1]}: run {run} has taken over, and status still says run {plan['takesOver']}"
            self._lasting("unlearned", f"{uid_of(job)} {run}", behind, self._case.patience(5.0), words)

    def _taken(self) -> set[tuple[str, int]]:
        """Runs that have taken over, by uid, as the logs say."""
        self._case.judge(self._case.evidence.look())
        for root, reader in self._case.evidence.readers.items():
            new = reader.lines[self._read[root] :]
            self._read[root] += len(new)
            self._went |= {line.run for line in new if line.body.get("takesOver") is not None}
        return self._went


def _offered(status: Json) -> Json:
    """The plan offered to the current run; {} without one."""
    plan: Json = upcoming(status).get("plan") or {}
    return plan if plan.get("handover") and current(status) else {}


def _history(job: Json) -> list[Json]:
    return list(status_of(job).get("history") or ())
