"""What the operator counts of its work, and the frozen values that a scrape gets.

The loop counts and freezes; no other thread ever reads these counters. Knows nothing of Prometheus. Used by `loop`,
`operator` and `exposition`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from perdure_operator.cluster.read.records import JobRecord, Key

ROUND_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram of rounds. One call to the API server takes 10 s at most,
35 s if it writes a pod."""


class RoundOutcome(StrEnum):
    """How a round ended."""

    UNCHANGED = "unchanged"
    WROTE = "wrote"
    CONFLICT = "conflict"
    """The job or an object of it changed meanwhile: an ordinary repetition."""
    REFUSED = "refused"
    """The API server refused a call, or did not answer."""
    ERROR = "error"
    """A fault in the operator."""


@dataclass
class RoundCounts:
    """Rounds since the process started. Belongs to the operator's loop."""

    outcomes: Counter[RoundOutcome] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    """Writes by kind, `Status` among them, only of rounds in which all writes succeeded."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(ROUND_SECONDS) + 1))
    """Rounds by duration; each counts in one bucket. The last has those longer than all bounds."""
    seconds: float = 0.0

    def ended(self, outcome: RoundOutcome, seconds: float) -> None:
        """Count one round."""
        self.outcomes[outcome] += 1
        self.seconds += seconds
        place = next((place for place, bound in enumerate(ROUND_SECONDS) if seconds <= bound), len(ROUND_SECONDS))
        self.buckets[place] += 1


class Echoes:
    """How late the watch is: our own status writes, by the time until the watch shows them. Belongs to the loop."""

    def __init__(self) -> None:
        self._unseen: dict[Key, tuple[int, float]] = {}
        self._shown: dict[Key, int] = {}

    def wrote(self, job: Key, version: int, now: float) -> None:
        """The API server answered a status write with this version. An older write that is not shown yet counts."""
        if self._shown.get(job, 0) >= version:  # the watch was faster than the answer
            return
        since = self._unseen[job][1] if job in self._unseen else now
        self._unseen[job] = (version, since)

    def begins_anew(self) -> None:
        """The watch has listed all jobs. What it has not shown of before it never shows, and versions may be lower: the
        cluster's store may have been restored."""
        self._unseen.clear()
        self._shown.clear()

    def showed(self, job: Key, version: int, *, deleted: bool = False) -> None:
        """The watch showed this version."""
        self._shown[job] = max(version, self._shown.get(job, 0))
        written = self._unseen.get(job)
        if written is not None and version >= written[0]:
            del self._unseen[job]
        if deleted:
            del self._shown[job]

    def forget_all_but(self, jobs: Iterable[Key]) -> None:
        """Forget jobs whose deletion the watch has missed: it shows their writes no more."""
        kept = frozenset(jobs)
        for known in (self._unseen, self._shown):
            for job in known.keys() - kept:
                del known[job]

    def oldest(self, now: float) -> float:
        """Seconds since the oldest write that the watch has not shown; 0 if it has shown all."""
        return max((now - since for _, since in self._unseen.values()), default=0.0)


@dataclass(frozen=True)
class OperatorFacts:
    """The operator's own state at one moment."""

    leading: bool
    synced: bool
    """Whether it leads and has read every object; until then it runs no round."""
    lease_age: float | None
    """Seconds since the newest renewal was sent; None for a process that does not lead."""
    queue_due: int
    """Jobs that are due and that no worker has taken."""
    queue_oldest: float
    """Seconds for which the first of them has been due."""
    rounds_running: int
    outcomes: Mapping[RoundOutcome, int]
    writes: Mapping[str, int]
    buckets: tuple[int, ...]
    round_seconds: float
    watch_lag: float
    requests: Mapping[tuple[str, str], int]
    """Requests to the API server by verb and status; the status is "none" where no answer came."""


@dataclass(frozen=True)
class Frozen:
    """All that one scrape shows."""

    facts: OperatorFacts
    jobs: tuple[JobRecord, ...] | None
    """None for a process that does not lead."""
