"""Who has written in vain, or has deleted something, looks at the cluster again before its next status; and not at once
where the server has no time: every piece of news would be one more call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from tests.simulation.checks.case import Case, Promise
from tests.simulation.objects import BUDGETS, JOBS, PODS

REFUSED_A_MINUTE: Final = 60
"""A pause that doubles makes eight a minute, and news bring it forward once in six seconds."""
_WRITES: Final = ("create", "patch", "replace", "status", "delete")
_EXPECTED: Final = {"delete": ("", "404"), "create": ("", "409")}
"""Answers after which a round goes on: somebody was faster."""
_OVERLOADED: Final = "429"


class Looks(Promise):
    """Looked at when requests are sent and answered."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._blind: dict[tuple[str, str], str] = {}
        """By replica and job: after what it has not looked again."""
        self._refused: dict[tuple[str, str], deque[float]] = defaultdict(deque)
        """By replica and job: when the server had no time for it, in the last minute."""

    def on_call(self, who: str, verb: str, kind: str, name: str) -> None:
        if kind == PODS and verb == "list":
            job = name.partition("=")[2]
            self._blind = {one: why for one, why in self._blind.items() if one[0] != who or job not in ("", one[1])}
        elif kind == JOBS and verb == "status" and (who, name) in self._blind:
            words = f"{who} writes the status of {name} and has not looked at its pods again"
            self._case.fail("blind", f"{words} since {self._blind[who, name]}")

    def on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:
        if kind not in (JOBS, PODS, BUDGETS):
            return
        if verb == "list":
            job = name.partition("=")[2]
        else:
            job = name if kind == JOBS else name.rsplit("-", 2 if kind == PODS else 1)[0]
        if wrong == _OVERLOADED and job:
            self._note_refusal(who, job, f"{verb} of {kind}")
        if verb not in _WRITES:
            return
        if wrong not in _EXPECTED.get(verb, ("",)):
            self._blind[who, job] = f"the {verb} of {name} failed: {wrong}"
        elif verb == "delete" and kind == PODS:
            self._blind[who, job] = f"it has deleted {name}"

    def _note_refusal(self, who: str, job: str, what: str) -> None:
        times, now = self._refused[who, job], self._case.now
        times.append(now)
        while times[0] < now - 60.0:
            times.popleft()
        if len(times) > REFUSED_A_MINUTE:
            words = f"{who} was refused {len(times)} calls for {job} in a minute, now the {what}"
            self._case.fail("hammering", f"{words}: the server has no time")
