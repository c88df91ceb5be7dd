"""What the operator owes to an EvictionRequest: an answer at once and then every minute, in no entry but its own; a
move, unless the job says otherwise; and the report of completion once the pod has ended, not before. A request
withdrawn before any member was asked to leave is over. I4 covers that nothing is lost."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator, within_a_minute
from tests.simulation.checks.reading import (
    ROLE,
    finished,
    intent,
    plan_of,
    status_of,
    terminated,
    upcoming,
)
from tests.simulation.evictor import is_over
from tests.simulation.objects import (
    EVICTIONS,
    JOBS,
    PODS,
    Json,
    is_ready,
    key_of,
    labels_of,
    node_of,
    owner_of,
    seconds_of,
    terminal,
    terminating,
    uid_of,
)

OPERATOR: Final = "perdure.dev/operator"
PRIORITY: Final = 10000
ANSWERED_SECONDS: Final = 10.0
BEAT_SECONDS: Final = 80.0
"""Every 60 s, and the operator may be busy for a moment."""
APART_SECONDS: Final = 18.0
"""Two answers are 20 s apart; their times have whole seconds."""
DONE_SECONDS: Final = 20.0
REFUSED_SECONDS: Final = 120.0
"""Some refusals in a row."""
HEEDED_SECONDS: Final = 60.0
WITHDRAWN_SECONDS: Final = 20.0
NEWS_SECONDS: Final = 3.0
"""A state this old is known, if nothing delays the news."""
PAUSED_SECONDS: Final = 60.0
"""The longest pause of rounds that fail in a row, and of withdrawals meanwhile."""
A_MINUTE: Final = 8
"""Requests about one Eviction: answers, including refused ones."""
_HELD_UP: Final = ("late-write", "lost-answer", "timeout")
"""An answer may arrive, or become known, long after it was sent."""
_CAUSE: Final = re.compile(r"(\S+) is to be evicted")


class Evictions(Promise):
    """If Kubernetes has them; checked when they change, and once a second."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._writes: dict[str, deque[float]] = defaultdict(deque)
        self._known: dict[str, float] = {}
        """By name of the pod: when its Eviction last changed, or was deleted."""
        self._failed = -1e9
        """When a request of the operator was last refused, or not answered."""

    def on_write(self, who: str, verb: str, kind: str, name: str, rests: frozenset[str]) -> None:  # noqa: ARG002
        if kind != EVICTIONS:
            return
        count = within_a_minute(self._writes[name], self._case.now)
        if count > A_MINUTE:
            self._case.fail("storm", f"{who} answers {name} for the {count}th time within a minute")
        if not any(path.endswith("/name") for path in rests):
            self._case.fail("precondition", f"{who} answers {name} wherever its own answer is by now")

    def on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:  # noqa: ARG002
        if wrong:
            self._failed = self._case.now

    def on_change(self, change: Change) -> None:
        if change.kind == EVICTIONS and not (change.old and is_over(change.old)):
            self._known[_target(change.raw)["name"]] = self._case.now
            if by_operator(change) and change.old is not None:
                for check, words in self._wrong(change.raw, change.old):
                    self._case.fail(check, f"Eviction of {_target(change.raw)['name']}: {words}")
        elif change.kind == PODS and change.event == "ADDED" and by_operator(change):
            self._check_named(change.raw)
        elif change.kind == JOBS and change.old is not None and by_operator(change):
            self._check_cause(change.raw, change.old)

    def _check_named(self, pod: Json) -> None:
        """Each new member names the operator if the API supports it, beside its template's responders."""
        named = {one["name"]: one["priority"] for one in pod["spec"].get("evictionResponders") or ()}
        served = self._world.server.evictions
        if served and named.get(OPERATOR) != PRIORITY and not self._case.fired("api-changes"):
            self._case.fail("unnamed", f"{key_of(pod)[1]} names {named}, and not the operator")

    def _wrong(self, new: Json, old: Json) -> Iterator[tuple[str, str]]:
        """A write that answers."""
        if _without_own(new) != _without_own(old):
            yield "foreign-answer", "the operator has changed more than its own answer"
        mine, before = _own(new), _own(old)
        last = before.get("heartbeatTime")
        done = mine.get("completionTime") and not before.get("completionTime")
        if last and not done and not self._case.fired(*_HELD_UP):
            apart = seconds_of(mine["heartbeatTime"]) - seconds_of(last)
            if apart < APART_SECONDS:
                yield "hectic", f"answered {apart:.0f} s after the last time: {mine.get('message')}"
        if not mine.get("message"):
            yield "wordless", f"an answer without words: {mine}"
        if done and self._trains_on(new):
            yield "early-end", f"it is said to be done, and the pod lives: {mine.get('message')}"

    def _trains_on(self, eviction: Json) -> bool:
        """Whether it was to end, and has not."""
        pod = self._pod(eviction)
        job = self._case.job(owner_of(pod)) if pod else None
        if pod is None or job is None or terminal(pod) or terminated(pod) or _word(job) == "Ignore":
            return False
        given_up = labels_of(pod).get(ROLE) == "former" or not self._is_seen(pod)
        return not given_up and not finished(job)

    def _check_cause(self, job: Json, old: Json) -> None:
        """No member is asked to leave for a request that does not exist, or that the job ignores."""
        told, before = intent(status_of(job)).get("cause", ""), intent(status_of(old)).get("cause", "")
        there = {_target(one)["name"] for one in self._world.server.each(EVICTIONS) if not is_over(one)}
        for pod in set(_CAUSE.findall(told)) - set(_CAUSE.findall(before)):
            if _word(job) == "Ignore":
                self._case.fail("heeded", f"{key_of(job)[1]} ignores requests to evict, and {told}")
            if pod not in there and self._case.now - self._known.get(pod, -1e9) > self._case.patience(
                WITHDRAWN_SECONDS
            ):
                self._case.fail("made-up", f"{key_of(job)[1]}: {told}, and there was no request")

    # now and then

    def look(self) -> None:
        if not self._world.server.evictions:
            return
        due = set[tuple[str, str]]()
        for eviction in self._world.server.each(EVICTIONS):
            for check, quick, words in self._debts(eviction):
                due.add((check, uid_of(eviction)))
                name = _target(eviction)["name"]
                self._lasting(check, uid_of(eviction), True, self._patience(quick), f"Eviction of {name}: {words}")
        for job in self._world.server.each(JOBS):
            if self._clings(job):
                due.add(("clings", uid_of(job)))
                words = f"{key_of(job)[1]}: {intent(status_of(job))['cause']}, and every request is withdrawn"
                pauses = self._case.now - self._failed < PAUSED_SECONDS
                patience = self._case.patience(NEWS_SECONDS) + (PAUSED_SECONDS if pauses else 0.0)
                self._lasting("clings", uid_of(job), True, patience, words)
        self._since = {key: at for key, at in self._since.items() if key in due}

    def _debts(self, eviction: Json) -> Iterator[tuple[str, float, str]]:
        mine, pod, now = _own(eviction), self._pod(eviction), self._case.now
        if _turn(eviction) != "Active" or is_over(eviction) or mine.get("completionTime"):
            return
        job = self._case.job(owner_of(pod)) if pod else None
        if pod is None or job is None or terminating(job):
            return  # whose owner is no longer known
        last = mine.get("heartbeatTime")
        if not last:
            yield "unanswered", ANSWERED_SECONDS, f"it is the operator's turn since {mine.get('startTime')}"
        elif now - seconds_of(last) > BEAT_SECONDS:
            yield "silent", ANSWERED_SECONDS, f"the last answer is of {last}: {mine.get('message')}"
        if terminal(pod) or terminated(pod):
            yield "undone", DONE_SECONDS, f"the pod has ended, and that is not reported: {mine.get('message')}"
        elif _word(job) == "Ignore":
            yield "undone", DONE_SECONDS, f"the job ignores requests, and that is not reported: {mine.get('message')}"
        elif _word(job) == "Vacate" and self._trains(job, pod) and not intent(status_of(job)):
            yield "unheeded", HEEDED_SECONDS, f"it trains in run {plan_of(status_of(job))['run']}, and it is not moved"

    def _patience(self, quick: float) -> float:
        """A refused answer is tried again after 20 s."""
        return self._case.patience(quick) + (REFUSED_SECONDS if self._case.fired("conflict") else 0.0)

    def _trains(self, job: Json, pod: Json) -> bool:
        members = {one["uid"] for one in plan_of(status_of(job)).get("members") or ()}
        return not finished(job) and not terminating(pod) and uid_of(pod) in members

    def _clings(self, job: Json) -> bool:
        """Standbys were made, and no member was asked yet, only for requests that are all over or withdrawn."""
        status = status_of(job)
        told = intent(status)
        pods = _CAUSE.findall(told.get("cause", ""))
        if not pods or told.get("leave") or upcoming(status).get("plan") or told.get("nodes"):
            return False
        if told["cause"].count(";") + 1 > len(pods):  # for other reasons too
            return False
        return not any(self._is_wanted(key_of(job)[0], name) for name in pods)

    def _is_wanted(self, namespace: str, name: str) -> bool:
        pod = self._world.server.find(PODS, namespace, name)
        if pod is None or terminating(pod) or terminated(pod):
            return True  # it leaves by itself
        eviction = self._world.server.find(EVICTIONS, namespace, uid_of(pod))
        return eviction is not None and not is_over(eviction)

    def _pod(self, eviction: Json) -> Json | None:
        target = _target(eviction)
        pod = self._world.server.find(PODS, key_of(eviction)[0], target["name"])
        return pod if pod is not None and uid_of(pod) == target["uid"] else None

    def _is_seen(self, pod: Json) -> bool:
        node = self._world.node(node_of(pod))
        return node is not None and is_ready(node) and not self._case.ever_excused(node_of(pod))


def _word(job: Json) -> str:
    """The job's reaction to eviction requests."""
    word = (job["spec"]["disruption"].get("signals") or {}).get("eviction-request", "Vacate")
    return "Ignore" if word in ("Avoid", "Ignore") else str(word)


def _target(eviction: Json) -> dict[str, Any]:
    return dict(eviction["spec"]["target"]["pod"])


def _turn(eviction: Json) -> str:
    turns = (eviction.get("status") or {}).get("targetResponders") or ()
    return next((str(one["state"]) for one in turns if one["name"] == OPERATOR), "")


def _own(eviction: Json) -> Json:
    answers = (eviction.get("status") or {}).get("responders") or ()
    return next((one for one in answers if one["name"] == OPERATOR), {})


def _without_own(eviction: Json) -> tuple[Any, ...]:
    status = eviction.get("status") or {}
    others = [one for one in status.get("responders") or () if one["name"] != OPERATOR]
    rest = {field: value for field, value in status.items() if field != "responders"}
    return (
        eviction["spec"],
        rest,
        others,
        {**_own(eviction), **dict.fromkeys(_MINE)}.keys(),
        _own(eviction).get("startTime"),
    )


_MINE: Final = ("heartbeatTime", "expectedCompletionTime", "completionTime", "message")
