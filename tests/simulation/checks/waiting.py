"""I9: every waiting state says what it waits for, and until when; no deadline is long past."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.simulation.checks.case import Case, Promise
from tests.simulation.checks.reading import condition, current, finished, intent, plans, root_of, status_of, upcoming
from tests.simulation.objects import EPOCH, JOBS, PODS, Json, key_of, seconds_of, terminal, terminating, uid_of

OVERDUE_SECONDS: Final = 75.0
STAYS_SECONDS: Final = 30.0
SILENT_SECONDS: Final = 90.0
PATIENCE_SECONDS: Final = 66.0
FREE_SECONDS: Final = 4.0
"""A job learns of another job's deletion if it waits for it."""
LOOKED_SECONDS: Final = 15.0
"""If the other one exists, but is finished or suspended, it learns that when it looks again."""
QUIET_SECONDS: Final = 15.0
"""An intent is given up, or members are asked, within five seconds."""

FLAGGED_SECONDS: Final = 15.0
_HELD: Final = {"SharedRoot", "WaitingForPredecessor"}
"""The second is reported first."""

_TIME: Final = re.compile(r"(?:until|by|before|at) ((?:\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d(?:\.\d+)?Z)")


class Waiting(Promise):
    """Checked while a leader works."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._dead_since: dict[str, float] = {}
        """By job and run: when status first knew that a member had died while all had to save."""

    def look(self) -> None:
        due: set[tuple[str, str]] = set()
        for job in self._world.server.each(JOBS):
            if not finished(job) and not terminating(job):
                self._look_at(job, due)
        self._since = {key: at for key, at in self._since.items() if key[0] != "deadline" or key in due}

    def _look_at(self, job: Json, due: set[tuple[str, str]]) -> None:
        status, name, uid = status_of(job), key_of(job)[1], uid_of(job)
        said = condition(status, "Running")
        silent = not said.get("reason") or (said["status"] != "True" and not said.get("message"))
        self._lasting("I9", uid, silent, SILENT_SECONDS, f"{name}: nothing is said of whether it runs: {said}")
        for text in {*_promises(status), *self._exit_deadline(job, status)}:
            late = self._case.now - seconds_of(text)
            words = f"{name}: waits {late:.0f} s after its deadline: {said.get('message', '')}"
            due.add(("deadline", f"{uid} {text}"))
            self._lasting("deadline", f"{uid} {text}", late > OVERDUE_SECONDS, STAYS_SECONDS, words)
        quiet = bool(intent(status)) and not intent(status).get("leave") and not self._is_preparing(status)
        words = f"{name}: no member is asked to leave, and the reason for it is not withdrawn: {intent(status)}"
        self._lasting("dither", uid, quiet and not self._case.deaf, QUIET_SECONDS, words)
        self._look_at_patience(job, status)
        self._look_at_root(job, said)

    def _look_at_root(self, job: Json, said: Json) -> None:
        """Of two live jobs with one root, one waits for the other, says so, and only as long as necessary."""
        uid, name = uid_of(job), key_of(job)[1]
        others = [one for one in self._world.server.each(JOBS) if uid_of(one) != uid and root_of(one) == root_of(job)]
        free = said.get("reason") == "SharedRoot" and all(finished(one) or self._rests(one) for one in others)
        words = f"{name} waits for its root, and no other job has it: {said.get('message')}"
        learned = self._case.patience(LOOKED_SECONDS if others else FREE_SECONDS)
        self._lasting("root-free", uid, free, learned, words)
        for other in others:
            untold = _is_live(job) and _is_live(other) and not (current(status_of(job)) and current(status_of(other)))
            held = {condition(status_of(one), "Running").get("reason") for one in (job, other)} & _HELD
            words = f"{name} and {key_of(other)[1]} have the same root, and neither is said to wait for the other"
            patience = self._case.patience(FLAGGED_SECONDS)
            self._lasting("root-shared", f"{uid} {uid_of(other)}", untold and not held, patience, words)

    def _rests(self, job: Json) -> bool:
        """Whether it is suspended, and has no member."""
        status = status_of(job)
        named = any(plans(status)) or upcoming(status).get("members")
        return bool(job["spec"].get("suspend")) and not named and not self._case.pods(uid_of(job))

    def _is_preparing(self, status: Json) -> bool:
        """Standbys start in their time, or fail on their own, which ends no run before a deadline."""
        if upcoming(status).get("plan"):
            return True  # a member was asked
        until = intent(status).get("readyBy")
        over = bool(until) and seconds_of(until) < self._case.now
        failed = (upcoming(status).get("replacements") or {}).get("nodes")
        fail = bool(failed) and not intent(status).get("deadlineSeen")
        return bool(intent(status).get("prepare")) and (fail or not over)

    def _look_at_patience(self, job: Json, status: Json) -> None:
        """Once a member has died no other can save: they are not waited for as if they could."""
        uid, leaving = f"{uid_of(job)} {current(status).get('run')}", intent(status)
        ended = current(status).get("outcomes") or ()
        dead = any(one.get("infrastructure") or one.get("outcome") in ("failed", "peer-lost") for one in ended)
        told = any(one.get("outcome") in ("checkpointed", "completed", "stopped") for one in ended)
        if not leaving.get("deadline") or not dead or told:
            self._dead_since.pop(uid, None)
            return
        since = self._dead_since.setdefault(uid, self._case.now)
        late = seconds_of(leaving["deadline"]) - since
        words = f"{key_of(job)[1]}: a member is dead, and the others may save for {late:.0f} s"
        self._lasting("patience", uid, late > PATIENCE_SECONDS, 3.0, words)

    def _exit_deadline(self, job: Json, status: Json) -> Iterator[str]:
        """When the members of the ending run have to be gone, while one of them is not: late ones have their grace.

        Once status asks a user to look at a pod that does not end, or at its node, it promises no time any more.
        """
        if condition(status, "Running").get("reason") in ("MemberStuck", "NodeUnreachable", "MassOutage"):
            return
        deadline = intent(status).get("deadline")
        members = {one["name"] for plan in plans(status) for one in plan["members"]}
        found = (self._world.server.find(PODS, key_of(job)[0], name) for name in members)
        left = [pod for pod in found if pod is not None and not terminal(pod)]
        graces = (str(pod["metadata"]["deletionTimestamp"]) for pod in left if terminating(pod))
        if deadline and left:
            yield max([str(deadline), *graces], key=seconds_of)


def _is_live(job: Json) -> bool:
    return not (finished(job) or terminating(job) or job["spec"].get("suspend"))


def _promises(status: Json) -> Iterator[str]:
    """The times in the messages of Running and Disrupted."""
    for one in status.get("conditions") or ():
        if one["type"] in ("Running", "Disrupted") and (one["type"], one["status"]) != ("Running", "True"):
            for text in _TIME.findall(one.get("message", "")):
                yield text if "T" in text else f"{EPOCH:%Y-%m-%d}T{text}"
