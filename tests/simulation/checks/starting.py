"""Status reports the start before a trainer correctly: it names the container that keeps a member from starting; an
init container's exit is a failure of the code, SIGKILL one of infrastructure, and a native sidecar's end neither. A run
that has begun starts no more."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import (
    condition,
    current,
    failures,
    finished,
    plan_of,
    previous,
    status_of,
    upcoming,
)
from tests.simulation.objects import JOBS, NODES, PODS, Json, is_ready, key_of, owner_of, terminal, terminating, uid_of

NAMED_SECONDS: Final = 5.0
BEGUN_SECONDS: Final = 10.0
"""The time to notice that all are Ready."""
_WAITS: Final = ("ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff")
_TOLD: Final = ("ImagePullFailed", "ContainerEnded")
_UNSURE: Final = ("status-restored", "absurd-outcome", "foreign-outcome")
"""Outcomes may be false."""
_SIGNALLED: Final = (137, 143)
_ENDED: Final = re.compile(r"init container (\S+) ended")


class Starting(Promise):
    """Checked when pods and status change, and once a second."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._ends: dict[str, set[str]] = defaultdict(set)
        """By uid of the job: how pods ended since a failure was last counted.

        `code` and `killed` before their trainers, and `other`.
        """

        self._begun: dict[tuple[str, int], float] = {}
        """By uid of the job and run: since when all its members have been Ready at once."""

    def on_change(self, change: Change) -> None:
        if change.kind == PODS:
            self._on_pod(change)
        elif change.kind == NODES and (change.event == "DELETED" or not is_ready(change.raw)):
            for uid in self._case.jobs:
                self._ends[uid].add("other")
        elif change.kind == JOBS and change.old is not None and by_operator(change):
            self._on_status(change.raw, change.old)

    def _on_pod(self, change: Change) -> None:
        pod, old, ends = change.raw, change.old or {"metadata": {}}, self._ends[owner_of(change.raw)]
        if terminal(pod) and not terminal(old):
            ends.add(_end(pod))
        elif change.event != "ADDED" and not by_operator(change) and (terminating(pod) or change.event == "DELETED"):
            ends.add("other")

    def _on_status(self, job: Json, old: Json) -> None:
        for run in (current(status_of(job)), previous(status_of(job))):
            for one in run.get("outcomes") or ():
                self._check_words(job, one)
        code, infrastructure = (
            now - before for now, before in zip(failures(status_of(job)), failures(status_of(old)), strict=True)
        )
        if not code and not infrastructure:
            return
        ends = self._ends.pop(uid_of(job), set())
        if self._case.fired(*_UNSURE):
            return
        name = key_of(job)[1]
        if infrastructure > 0 and ends == {"code"}:
            self._case.fail(
                "blame", f"{name}: its init containers have failed, and a failure of infrastructure is counted"
            )
        if code > 0 and ends == {"killed"}:
            self._case.fail("blame", f"{name}: its init containers were killed, and a failure of the code is counted")

    def _check_words(self, job: Json, one: Json) -> None:
        pod, said = self._world.server.find(PODS, key_of(job)[0], one["name"]), _ENDED.match(one.get("errorTail") or "")
        if pod and said and said[1] in _sidecars(pod):
            self._case.fail("made-up", f"{one['name']} is said to have ended of a sidecar: {said[0]}")

    def look(self) -> None:
        for job in self._world.server.each(JOBS):
            status, said = status_of(job), condition(status_of(job), "Running")
            if finished(job) or terminating(job):
                continue
            run = uid_of(job), int(plan_of(status).get("run") or 0)
            members = {one["uid"] for one in plan_of(status).get("members") or ()}
            if members and members <= {uid_of(pod) for pod in self._case.pods(run[0]) if is_ready(pod)}:
                self._begun.setdefault(run, self._case.now)
            begun = self._begun.get(run, self._case.now)
            waits = upcoming(status).get("members")
            starts = said.get("reason") == "StartingMembers" and not waits and self._case.now - begun > BEGUN_SECONDS
            words = f"{key_of(job)[1]} has begun to train, and is said to start: {said.get('message')}"
            self._lasting("begun", uid_of(job), starts, self._case.patience(NAMED_SECONDS), words)
            if plan_of(status):
                continue
            pods = {key_of(one)[1]: one for one in self._case.pods(uid_of(job)) if not terminating(one)}
            awaited = [pods[name] for name in upcoming(status).get("members") or () if name in pods]
            stuck = {name for pod in awaited for name in _waiting(pod)}
            hidden = said.get("reason") == "StartingMembers"
            alone = said.get("reason") in _TOLD and not any(_of_others(pod) for pod in awaited)
            named = any(f"container {name} " in said.get("message", "") for name in stuck)
            words = f"{key_of(job)[1]}: {sorted(stuck)} keep members from starting, and status says: {said}"
            wrong = bool(stuck) and (hidden or (alone and not named))
            self._lasting("unnamed", uid_of(job), wrong, self._case.patience(NAMED_SECONDS), words)


def _end(pod: Json) -> str:
    for one in (pod["status"].get("initContainerStatuses") or ()) if not _has_run(pod) else ():
        ended = one["state"].get("terminated") or {}
        if ended.get("exitCode") and one["name"] not in _sidecars(pod):
            return "killed" if ended["exitCode"] in _SIGNALLED else "code"
    return "other"


def _sidecars(pod: Json) -> list[str]:
    """The native sidecars."""
    return [one["name"] for one in pod["spec"].get("initContainers") or () if one.get("restartPolicy") == "Always"]


def _has_run(pod: Json) -> bool:
    """Whether its trainer ever started."""
    states = [one.get("state") or {} for one in (pod.get("status") or {}).get("containerStatuses") or ()]
    return any("running" in state or "terminated" in state for state in states)


def _waiting(pod: Json) -> Iterator[str]:
    for one in (pod.get("status") or {}).get("initContainerStatuses") or ():
        if (one["state"].get("waiting") or {}).get("reason") in _WAITS:
            yield str(one["name"])


def _of_others(pod: Json) -> bool:
    """Whether its trainer, or a container beside it, waits too."""
    states = [one.get("state") or {} for one in (pod.get("status") or {}).get("containerStatuses") or ()]
    return any((state.get("waiting") or {}).get("reason") in _WAITS for state in states)
