"""Live hand-overs, by the parties' actions, the log, and status: H1, H2, H8, H10, and the reports about them.

H3, H4 and H9 are read from the log alone (`evidence`), and I4 covers that an announced end after go saves. Nothing here
asks the operator, or a machine, for its opinion.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import STATUS_UNSURE, Case, Promise, by_operator
from tests.simulation.checks.reading import assignment, current, finished, outcome, status_of, terminated, upcoming
from tests.simulation.evidence import Line
from tests.simulation.objects import (
    JOBS,
    PODS,
    Json,
    key_of,
    node_of,
    owner_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)
from tests.simulation.world import Fact

STANDING: Final = frozenset({"moving", "telling", "voted", "deciding", "asking", "round"})
UNDECIDED: Final = frozenset({"voted", "deciding", "asking"})
BACK: Final = frozenset({"aborted", "round", "saving"})
STOP_SECONDS: Final = 14.0
"""The longest time that the ranks stand still if everything answers: a newcomer may not get to its first batch."""
LATE_SECONDS: Final = 3.0
HEARD_SECONDS: Final = 3.0
"""After a pod has ended, and the leader knows."""
TOLD_SECONDS: Final = 60.0
OVERSTAY_SECONDS: Final = 90.0
"""The time of a leaver's deletion, including its pod's grace, after its deadline."""
_HARMLESS: Final = frozenset({"drain", "scale", "suspend", "noisy-pods", "cordon-for-a-moment", "watch-duplicate"})
_GONE: Final = ("emptied-root",)
"""There is no longer a log to judge by."""


@dataclass
class Seen:
    """One party's present state."""

    pod: str
    part: str
    phase: str
    since: float
    until: float
    """When its process must have ended, or must know."""


@dataclass
class Attempted:
    """One attempt."""

    parties: int
    seen: dict[int, Seen] = field(default_factory=dict)
    voted: set[int] = field(default_factory=set)
    went: bool = False
    """Whether any party acts as if the newer run had begun."""
    back: bool = False
    """Whether any party that voted acts as if it never would."""


class Handovers(Promise):
    """All attempts of a history."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._attempts: dict[tuple[str, int], Attempted] = {}
        """By uid of the job and number of the newer run."""
        self._read: dict[str, int] = defaultdict(int)
        """By root: how many entries were read."""
        self._taken: dict[tuple[str, int], Line] = {}
        """Entries that say go, by uid and the newer run."""
        self._frozen: dict[str, float] = {}
        """By pod: until when its process is stopped."""
        self._ended: dict[str, float] = {}
        """By pod: when a process of it last ended."""
        self._pauses: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._never: dict[tuple[str, int], float] = {}
        """Runs that never take over, by last words, and since when."""

    # by their pods' reports

    def on_change(self, change: Change) -> None:
        if change.kind == PODS and (attempt := outcome(change.raw).get("attempt") if terminated(change.raw) else None):
            run, never = (owner_of(change.raw), int(attempt["run"])), attempt.get("word") == "abort"
            if change.event == "DELETED" and self._case.deaf:
                self._never.pop(run, None)  # its last words are gone with it, and perhaps nobody heard them
            elif never or not (attempt.get("voted") or attempt.get("word")):
                self._never.setdefault(run, self._case.now)
        elif change.kind == JOBS and change.old is not None and by_operator(change):
            self._look_at_run(change.raw, change.old)

    def _look_at_run(self, job: Json, old: Json) -> None:
        """A run known to never take over is never the current one."""
        run, before = (int(current(status_of(one)).get("run") or 0) for one in (job, old))
        since = self._never.get((uid_of(job), run), self._case.now)
        if run != before and self._case.now - since > HEARD_SECONDS and not self._case.deaf:
            self._case.fail("never", f"{key_of(job)[1]}: run {run} is current, and {self._case.now - since:.0f} s ago "
                                     f"a member reported that it never takes over")  # fmt: skip

    # the parties' actions

    def on_fact(self, fact: Fact) -> None:
        if fact.what == "party":
            self._on_party(fact)
        elif fact.what == "took-over":
            self._look_at_log()
            run = fact.facts["uid"], int(fact.facts["run"])
            if run not in self._taken and not self._case.fired(*_GONE):
                self._case.fail("H1", f"{fact.who} is a rank of run {run[1]}, and the log does not say so")
            if not fact.facts["came"]:
                self._pauses[run].append(float(fact.facts["pause"]))
        elif fact.what == "frozen":
            self._frozen[fact.who] = max(self._frozen.get(fact.who, 0.0), fact.at + float(fact.facts["seconds"]))
        elif fact.what == "trainer-ended":
            self._on_end(fact)

    def _on_party(self, fact: Fact) -> None:
        told, phase = fact.facts, str(fact.facts["phase"])
        key, number = (told["uid"], int(told["next"])), int(told["number"])
        attempt = self._attempts.setdefault(key, Attempted(int(told["parties"])))
        before = attempt.seen.get(number)
        stands = before is not None and {before.phase, phase} <= STANDING
        since = before.since if before and stands else fact.at
        attempt.seen[number] = Seen(fact.who, str(told["part"]), phase, since, float(told["until"]))
        if phase in UNDECIDED:
            attempt.voted.add(number)
        attempt.went = attempt.went or phase == "took-over"
        attempt.back = attempt.back or (phase in BACK and number in attempt.voted)
        if attempt.went and attempt.back:
            self._case.fail("H2", f"run {key[1]}: one party has gone over to it, and another trains on without it")
        self._look_at_log()
        if key in self._taken and phase == "aborted":
            self._case.fail("H3", f"{fact.who} trains on, and the log says that run {key[1]} has taken over")

    def _on_end(self, fact: Fact) -> None:
        how, others = str(fact.facts["how"]), self._ended.get(fact.who, -1e9)
        self._ended[fact.who] = fact.at
        for (uid, run), attempt in self._attempts.items():
            for number in [number for number, one in attempt.seen.items() if one.pod == fact.who]:
                party = attempt.seen[number]
                if how == "handed-over" and run == max(run for owner, run in self._attempts if owner == uid):
                    self._look_at_log()
                    if (uid, run) not in self._taken and not self._case.fired(*_GONE):
                        self._case.fail("H1", f"{fact.who} leaves run {run} to the others, and it has not begun")
                if how == "SIGKILL" and party.phase in UNDECIDED and fact.at - others > 60.0:
                    self._check_kill(fact, run)
                if party.part != "newcomer" or fact.facts["run"] == run:
                    party.phase = "ended"

    def _check_kill(self, fact: Fact, run: int) -> None:
        """H8: an agent kills a party that has voted only if both runs are lost, or its pod ends."""
        pod = self._world.server.find(PODS, "team", fact.who)
        lost = set(assignment(pod).get("lost") or ()) if pod else set()
        if pod is None or terminating(pod) or {int(fact.facts["run"]), run} <= lost or self._case.fired("oom"):
            return
        self._case.fail("H8", f"{fact.who} is killed by its agent after it has voted for run {run}")

    def _look_at_log(self) -> None:
        """H2: a run takes over only with every vote."""
        self._case.judge(self._case.evidence.look())
        for root, reader in self._case.evidence.readers.items():
            for line in reader.lines[self._read[root] :]:
                if line.kind == "Opened" and line.body.get("takesOver") is not None:
                    self._taken[line.run] = line
                    attempt = self._attempts.get(line.run)
                    if attempt is None or len(attempt.voted) < attempt.parties:
                        voted = sorted(attempt.voted) if attempt else []
                        self._case.fail("H2", f"run {line.run[1]} has taken over, and {voted} alone had voted")
            self._read[root] = len(reader.lines)

    # lasting states

    def look(self) -> None:
        self._look_at_waiting()
        for job in self._world.server.each(JOBS):
            if not terminating(job) and not self._case.fired(*STATUS_UNSURE):
                self._look_at_history(job)
                if not finished(job):
                    self._look_at_leavers(job)

    def silence(self) -> None:
        super().silence()
        self._look_at_waiting()

    def _look_at_waiting(self) -> None:
        """H10: every party knows in time, or has ended."""
        undisturbed = self._world.fired.keys() <= _HARMLESS
        for (_, run), attempt in self._attempts.items():
            for party in attempt.seen.values():
                if party.phase not in STANDING or self._frozen.get(party.pod, 0.0) + LATE_SECONDS > self._case.now:
                    continue
                if party.part == "newcomer" and party.phase == "moving":
                    continue  # it waits for the old ranks to stop
                words = f"{party.pod} stands in {party.phase} of the hand-over to run {run} since {party.since:.1f} s"
                if self._case.now > party.until + LATE_SECONDS:
                    self._case.fail("H10", f"{words}, and its time was over at {party.until:.1f} s")
                if undisturbed and self._case.now - party.since > STOP_SECONDS:
                    self._case.fail("H10", f"{words}, and nothing is in its way")

    def _look_at_history(self, job: Json) -> None:
        """Status agrees with the log on how runs took over."""
        uid = uid_of(job)
        for entry in status_of(job).get("history") or ():
            run, how = (uid, int(entry["run"])), entry.get("how")
            words = f"{key_of(job)[1]}: run {run[1]} is said to have taken over {how}, the log says "
            taken = run in self._taken
            if how == "never" and taken:
                self._case.fail("history", f"{words}live")
            if how == "live" and not taken:
                self._case.fail("history", f"{words}it did not")
            missold = taken and how not in ("live", "unknown")
            self._lasting("history", f"{uid} {run[1]}", missold, self._case.patience(TOLD_SECONDS), f"{words}live")
            deaf = how == "unknown" and run in self._never
            never = f"{key_of(job)[1]}: how run {run[1]} took over is unknown to status; a member tells that it has not"
            self._lasting("never", f"{uid} {run[1]}", deaf, self._case.patience(HEARD_SECONDS), never)
            pause, known = entry.get("pause"), self._pauses.get(run, [])
            if how == "live" and pause is not None and not any(abs(pause - one) < 0.01 for one in known):
                self._case.fail("history", f"{words}live, with a pause of {pause} s, and it was {known}")

    def _look_at_leavers(self, job: Json) -> None:
        """A leaver has ended by its deadline."""
        status = status_of(job)
        for plan in (upcoming(status).get("plan") or {}, current(status).get("plan") or {}):
            if not plan.get("handover"):
                continue
            ends = seconds_of(plan["assignedTime"]) + int(plan["seconds"]) + OVERSTAY_SECONDS
            for name in plan.get("leavers") or ():
                pod = self._world.server.find(PODS, key_of(job)[0], name)
                late = pod is not None and not terminal(pod) and not terminated(pod) and self._case.now > ends
                words = f"{name} was to leave {key_of(job)[1]} for run {plan['run']} by {ends:.0f} s, and is there"
                stays = late and pod is not None and self._is_heard(pod)
                self._lasting("overstay", f"{uid_of(job)} {name}", stays, self._case.patience(5.0), words)

    def _is_heard(self, pod: Json) -> bool:
        kubelet = self._case.scene.kubelets.get(node_of(pod))
        return kubelet is not None and kubelet.hears and not kubelet.stuck and not kubelet.holds(uid_of(pod))
