"""After a failed write, or a deletion, the operator looks at the cluster again before its next status; but not at once
if the server is overloaded, where every piece of news would be one more call. If it knows everything it does not ask
again: an idle job costs no calls."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise
from tests.simulation.objects import BUDGETS, EVENTS, JOBS, LEASES, PODS, key_of

REFUSED_AT_MOST: Final = 20
WINDOW_SECONDS: Final = 12.0
"""A doubling pause makes six in twelve seconds, and news bring it forward twice and once in six seconds; a round
allowed between them starts again."""
TOGETHER_SECONDS: Final = 0.02
ROUND_SECONDS: Final = 1.0
"""The longest round if every call is quick."""
IDLE_SECONDS: Final = 5.0
"""The longest time until every replica has looked after a change, if nothing delays the news."""
EARLY_SECONDS: Final = 0.1
"""A clock of seconds, and calls in flight."""
_WRITES: Final = ("create", "patch", "replace", "status", "delete")
_EXPECTED: Final = {"delete": ("", "404"), "create": ("", "409"), "patch": ("", "403")}
"""Answers after which a round continues: another write was faster, or the refusal changed nothing."""
_OVERLOADED: Final = "429"
_FORBIDDEN: Final = ("403", "create")
"""By a quota, by admission, or because the namespace is being deleted."""


class Looks(Promise):
    """Checked when requests are sent and answered."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._blind: dict[tuple[str, str], str] = {}
        """By replica and job: after which event it has not looked again."""
        self._read_at: dict[tuple[str, str], float] = {}
        """By replica and job: when it last received the job, by a read or by its own status."""
        self._refused: dict[tuple[str, str], deque[float]] = defaultdict(deque)
        """By replica and job: when the server last was too busy, or refused a creation."""
        self._let_alone: dict[tuple[str, str], float] = {}
        """By replica and job: until when the server wants no requests for it."""
        self._changed = 0.0
        """When anything last changed that a round may depend on."""
        self._failed: set[tuple[str, str]] = set()
        """Replicas and jobs with a call that was ever answered with an error."""
        self._seen: set[tuple[str, str]] = set()
        """Replicas and the jobs whose pods they have read."""

    def on_change(self, change: Change) -> None:
        if change.kind not in (EVENTS, LEASES):
            self._changed = self._case.now

    def on_call(self, who: str, verb: str, kind: str, name: str) -> None:
        self._check_patience(who, verb, kind, name)
        if kind == JOBS and verb == "get":
            self._check_first_ask(who, name)
        if kind == PODS and verb == "list":
            job = name.partition("=")[2]
            self._check_need(who, job)
            self._blind = {one: why for one, why in self._blind.items() if one[0] != who or job not in ("", one[1])}
        elif kind == JOBS and verb == "status" and (who, name) in self._blind:
            words = f"{who} writes the status of {name} and has not looked at its pods again"
            self._case.fail("blind", f"{words} since {self._blind[who, name]}")
        elif kind in (PODS, BUDGETS) and verb in _WRITES and not self._case.deaf:
            job = _job_of(kind, name)
            age = self._case.now - self._read_at.get((who, job), self._case.now)
            if age > ROUND_SECONDS and any(key_of(one)[1] == job for one in self._world.server.each(JOBS)):
                words = f"{who} sends a {verb} of {name}, and has last read its job {age:.1f} s ago"
                self._case.fail("unread", words)

    def _check_patience(self, who: str, verb: str, kind: str, name: str) -> None:
        """A replica with a Retry-After looks no sooner; a round whose other calls are answered is finished, and
        leftovers of an earlier job of that name belong to no round."""
        job = name.partition("=")[2] if verb == "list" else _job_of(kind, name)
        left = self._let_alone.get((who, job), 0.0) - self._case.now
        if verb == "list" and kind == PODS and left > EARLY_SECONDS:
            words = f"{who} sends a {verb} of {kind} for {job}, and should retry {left:.1f} s later"
            self._case.fail("impatient", words)

    def _check_first_ask(self, who: str, name: str) -> None:
        """The watch has reported everything about an unchanged new job: there never was one of its name before."""
        job = next((one for one in self._world.server.each(JOBS) if key_of(one)[1] == name), None)
        earlier = list(self._case.jobs.values()).count(name) > 1
        if job is None or earlier or self._case.deaf or job.get("status") or job["metadata"]["generation"] > 1:
            return
        if (who, name) not in self._failed:
            self._case.fail("needless", f"{who} asks for {name}, and it has not changed since it was created")

    def _check_need(self, who: str, job: str) -> None:
        idle = self._case.now - self._changed
        known = (who, job) in self._seen and (who, job) not in self._blind
        self._seen.add((who, job))
        if job and known and idle > IDLE_SECONDS and not self._case.deaf and not self._case.fired("status-restored"):
            words = f"{who} asks for the pods of {job}, and nothing has changed for {idle:.0f} s"
            self._case.fail("needless", words)

    def on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:
        if kind not in (JOBS, PODS, BUDGETS):
            return
        job = name.partition("=")[2] if verb == "list" else _job_of(kind, name)
        if kind == JOBS and verb in ("get", "status") and not wrong:
            self._read_at[who, job] = self._case.now
        if job and (wrong == _OVERLOADED or (wrong, verb) == _FORBIDDEN):
            self._note_refusal(who, job, f"{verb} of {kind}")
        if job and (asked := self._case.scene.operators.asked(who)):
            self._let_alone[who, job] = self._case.now + asked
        if wrong:
            self._seen.discard((who, job))
            self._failed.add((who, job))
        if verb not in _WRITES:
            return
        if wrong not in _EXPECTED.get(verb, ("",)):
            self._blind[who, job] = f"the {verb} of {name} failed: {wrong}"
        elif verb == "delete" and kind == PODS:
            self._blind[who, job] = f"it has deleted {name}"

    def _note_refusal(self, who: str, job: str, what: str) -> None:
        times, now = self._refused[who, job], self._case.now
        if not times or times[-1] < now - TOGETHER_SECONDS:  # otherwise they were sent together
            times.append(now)
        while times[0] < now - WINDOW_SECONDS:
            times.popleft()
        if len(times) > REFUSED_AT_MOST:
            words = f"{who} was refused calls for {job} at {len(times)} moments in {WINDOW_SECONDS:.0f} s"
            self._case.fail("hammering", f"{words}, now the {what}")


def _job_of(kind: str, name: str) -> str:
    """The job that an object of that name belongs to."""
    return name if kind == JOBS else name.rsplit("-", 2 if kind == PODS else 1)[0]
