"""What all promises share: the scene, the excuses, the observations of each job; and the first broken promise."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.reading import status_of
from tests.simulation.evidence import Evidence
from tests.simulation.objects import EVICTIONS, JOBS, PODS, Json, key_of, owner_of, uid_of
from tests.simulation.scene import Scene
from tests.simulation.world import Fact

WAITING: Final[dict[str, str]] = {}
"""Checks that today's operator is known to fail, each with its defect; `--all` makes them count."""

DEAF_SECONDS: Final = 420.0
LATE_SECONDS: Final = 90.0
"""Delayed news, a request or two without an answer, and the pause after them."""

SLOW_SECONDS: Final = 40.0
"""Some slow calls in a row."""
_SLOW: Final = ("slow-call",)
_NEWS: Final = (
    "watch",
    "lag",
    "api",
    "server-error",
    "timeout",
    "too-many",
    "lost-answer",
    "late-write",
    "slow-call",
    "operator",
)

STATUS_UNSURE: Final = (
    "status-restored",
    "orphan-job",
    "foreign-outcome",
    "absurd-outcome",
    "emptied-root",
    "relabel",
)
"""Faults after which a job's status may be false."""


@dataclass(frozen=True)
class Violation:
    """A broken promise."""

    at: float
    check: str
    words: str

    def __str__(self) -> str:
        return f"{self.check} at {self.at:.3f} s: {self.words}"


class Case:
    """One history and its judges."""

    def __init__(self, scene: Scene, *, everything: bool) -> None:
        self.scene = scene
        self.world = scene.world
        self.evidence = Evidence(scene.world.bucket.objects, scene.world.network)
        self.violation: Violation | None = None
        self.jobs: dict[str, str] = {}
        """Names of all jobs there ever were, by uid and in the order of their creation."""
        self.most: dict[str, int] = {}
        """The highest number of members ever wanted, by uid."""
        self._waived = () if everything else WAITING
        self._deaf, self._late, self._kinds = False, False, 0
        """The effect of the kinds of faults that have fired so far on `deaf` and `patience`."""
        self._pods: tuple[int, Mapping[str, list[Json]]] = -1, {}
        """By owner and version of the cluster."""
        self._excused: dict[str, float] = {}
        """Nodes and jobs where an event suspends I3 or I5, and until when."""

    @property
    def now(self) -> float:
        return self.world.now

    def fail(self, check: str, words: str) -> None:
        """Keep the first."""
        if self.violation is None and check not in self._waived:
            self.violation = Violation(self.now, check, words)
            self.world.tell("CHECK", str(self.violation))

    def judge(self, found: list[str]) -> None:
        """Takes the findings of `evidence`: each line names its root and, usually, the broken invariant."""
        for words in found:
            check = words.split(": ")[1].split(" ")[0] if words.count(": ") > 1 else "log"
            self.fail(check if check[:1] in ("I", "H") else "log", words)

    def excuse(self, what: str, seconds: float) -> None:
        self._excused[what] = max(self._excused.get(what, 0.0), self.now + seconds)

    def shorten(self, what: str, seconds: float) -> None:
        """The excuse is over."""
        self._excused[what] = min(self._excused.get(what, 0.0), self.now + seconds)

    def prolong_excuses(self, seconds: float) -> None:
        """Users' changes to pods and budgets stay while no operator works that could repair them."""
        for what, until in self._excused.items():
            if until >= self.now:
                self._excused[what] = until + seconds

    def is_excused(self, what: str) -> bool:
        return self._excused.get(what, -1.0) >= self.now

    def ever_excused(self, what: str) -> bool:
        return what in self._excused

    def fired(self, *faults: str) -> bool:
        """Whether any of these has had an effect so far."""
        return any(fault in self.world.fired for fault in faults)

    @property
    def deaf(self) -> bool:
        """Whether news, writes or the operator itself may have been held up."""
        self._count_kinds()
        return self._deaf

    def patience(self, quick: float, deaf: float = DEAF_SECONDS) -> float:
        """The longest delay of an action that takes `quick` if nothing delays news and writes.

        A watch that has lost news does not repeat them: the next resync does, after `deaf` seconds at most.
        """
        if self.fired("watch-gone"):
            return deaf
        self._count_kinds()
        return quick + (LATE_SECONDS if self._late else SLOW_SECONDS if self._deaf else 0.0)

    def held_up_by_other_than(self, fault: str) -> bool:
        """Whether any other fault may have held up news or writes."""
        return any(word in one for one in self.world.fired if one != fault for word in _NEWS)

    def _count_kinds(self) -> None:
        """Called often between two kinds, and none is ever forgotten."""
        fired = self.world.fired
        if len(fired) != self._kinds:
            self._kinds = len(fired)
            self._deaf = any(word in fault for fault in fired for word in _NEWS)
            self._late = any(word in fault for fault in fired for word in _NEWS if word not in _SLOW)

    def job(self, uid: str) -> Json | None:
        """The stored one."""
        return next((one for one in self.world.server.each(JOBS) if uid_of(one) == uid), None)

    def status(self, uid: str) -> Json:
        return status_of(self.job(uid) or {})

    def is_asked_for(self, pod: Json) -> bool:
        """Whether an eviction is requested: an Eviction has the name of its pod's uid."""
        return self.world.server.find(EVICTIONS, key_of(pod)[0], uid_of(pod)) is not None

    def pods(self, uid: str) -> list[Json]:
        server = self.world.server
        if self._pods[0] != server.version:
            owned = defaultdict[str, list[Json]](list)
            for one in server.each(PODS):
                owned[owner_of(one)].append(one)
            self._pods = server.version, owned
        return self._pods[1].get(uid, [])


class Promise:
    """A promise to users; checked after every change and fact, and once a second."""

    rests_on_status: ClassVar = True
    """Whether `look` expects something that follows a status, if only a write."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._world = case.world
        self._since: dict[tuple[str, str], float] = {}
        """Since when a suspicion has held, by check and object."""

    def on_change(self, change: Change) -> None:
        """An object was stored."""

    def on_fact(self, fact: Fact) -> None:
        """An event that no API server sees."""

    def on_call(self, who: str, verb: str, kind: str, name: str) -> None:
        """A replica of the operator sends a request; the name of a LIST is its selector."""

    def on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:
        """It no longer waits for it; `wrong` is "" if the answer is as requested."""

    def on_write(self, who: str, verb: str, kind: str, name: str, rests: frozenset[str]) -> None:
        """A replica sends a patch, a status or a deletion, with its preconditions: paths of the object."""

    def look(self) -> None:
        """A second has passed in which a leader has worked, and a while before."""

    @property
    def suspects(self) -> bool:
        """Whether something is wrong that may be wrong for a moment."""
        return bool(self._since)

    def silence(self) -> None:
        """No leader works: nothing can be expected."""
        self._since.clear()

    def _lasting(self, check: str, what: str, holds: bool, seconds: float, words: str) -> None:
        """Report lasting findings only, because news take time."""
        if not holds:
            self._since.pop((check, what), None)
        elif self._case.now - self._since.setdefault((check, what), self._case.now) >= seconds:
            self._case.fail(check, words)


def by_operator(change: Change) -> bool:
    return change.by.startswith("operator")


def within_a_minute(times: deque[float], now: float) -> int:
    """Their number in the last minute, including this one."""
    times.append(now)
    while times[0] < now - 60.0:
        times.popleft()
    return len(times)
