"""The promises, checked after every change and fact: read from raw objects, never through the operator's types.

case         what they share, and the first broken promise
reading      raw status and assignments
bounds       I8 I10: writes, lists, pods and rounds stay bounded while everything goes wrong
picture      the leader's picture of the cluster is true
memory       I8 I11 I12 I13: fields that status may never take back
runs         I1 I2 I3 I4 I5 I7: which members train and are evicted, and the log
waiting      I9: reasons and deadlines
settled      I6: once faults stop
leadership   only the holder of the Lease writes
looks        after a refusal the operator looks again, and not too often
writes       every write follows from status
plans        a run's plan can be carried out
replacing    members of the next run are replaced for a reason
takeover     the old run trains until the next one is planned; seats and ranks are kept
offers       live hand-overs that nothing obstructs succeed, and become known
handovers    H1 H2 H8 H10: a run takes over only with every vote, and every party knows in time
claims       the operator's statements are true
starting     status names what happens before a trainer starts, and charges the right failures
told         the other information for users and their tools
debts        what the operator owes by now
cordons      a mere cordon moves members only as their job says
evictions    eviction requests are answered, heeded, and reported complete in time
outages      members are not given up because the control plane lost sight of nodes
accounts     the cost of runs: failures, lost steps, saves
ledger       a job's losses in status are its true losses
recovery     how long recovery takes
unasked      no member stops training unasked
lost         no trainer continues for a lost run
sizes        I8 for jobs that share a pool: sizes settle, follow the available room, and no job holds more than it needs

The truth about trainers and kubelets comes as facts of the world; `evidence` judges the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks import settled
from tests.simulation.checks.accounts import Accounts
from tests.simulation.checks.bounds import Bounds
from tests.simulation.checks.case import Case, Promise, Violation
from tests.simulation.checks.claims import Claims
from tests.simulation.checks.cordons import Cordons
from tests.simulation.checks.deaths import Deaths
from tests.simulation.checks.debts import Debts
from tests.simulation.checks.evictions import Evictions
from tests.simulation.checks.handovers import Handovers
from tests.simulation.checks.leadership import Leadership
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.looks import Looks
from tests.simulation.checks.lost import Lost
from tests.simulation.checks.memory import Memory
from tests.simulation.checks.offers import Offers
from tests.simulation.checks.outages import Outages
from tests.simulation.checks.picture import Picture
from tests.simulation.checks.plans import Plans
from tests.simulation.checks.reading import finished, wanted
from tests.simulation.checks.recovery import Recovery
from tests.simulation.checks.replacing import Replacing
from tests.simulation.checks.runs import Runs
from tests.simulation.checks.sizes import Sizes
from tests.simulation.checks.starting import Starting
from tests.simulation.checks.takeover import Takeover
from tests.simulation.checks.told import Told
from tests.simulation.checks.unasked import Unasked
from tests.simulation.checks.waiting import Waiting
from tests.simulation.checks.writes import Writes
from tests.simulation.objects import JOBS, LEASES, key_of, uid_of
from tests.simulation.scene import Scene
from tests.simulation.world import Fact

__all__ = ["Checks", "Violation"]

OTHERS: Final[tuple[Callable[[Case], Promise], ...]] = (
    Picture,
    Memory,
    Leadership,
    Looks,
    Writes,
    Plans,
    Replacing,
    Takeover,
    Handovers,
    Offers,
    Waiting,
    Claims,
    Told,
    Debts,
    Cordons,
    Evictions,
    Outages,
    Accounts,
    Recovery,
    Lost,
    Deaths,
    Unasked,
    Sizes,
    Starting,
)
POLL_SECONDS: Final = 1.0
NEWS_SECONDS: Final = 2.0
"""Without a suspicion."""
QUIET_SECONDS: Final = 3.0
"""Checks are rarer while only time passes."""
LEADS_SECONDS: Final = 30.0
"""A leader must have worked undisturbed for so long before anything is expected of it."""
BLIND_SECONDS: Final = 30.0
"""A leader has read everything so long after the last refusal, though its last pause may have begun just before."""
REFUSED_SECONDS: Final = 75.0
"""A refused status is written again within a minute. No refusal for so long means that nothing is left to write."""
_FORBIDDEN: Final = "403"


class Checks:
    """All promises of one history. Raises nothing: the first broken one is kept and ends the history."""

    def __init__(self, scene: Scene, *, everything: bool = False) -> None:
        self._case = Case(scene, everything=everything)
        self._scene = scene
        self._bounds, self._runs, self._ledger = Bounds(self._case), Runs(self._case), Ledger(self._case)
        self._promises = (self._bounds, self._runs, self._ledger, *(promise(self._case) for promise in OTHERS))
        self._of_change = [one.on_change for one in self._promises if _has(one, Promise.on_change)]
        self._of_lease = [one.on_change for one in self._promises if isinstance(one, Leadership)]
        self._of_fact = [one.on_fact for one in self._promises if _has(one, Promise.on_fact)]
        self._of_call = [one.on_call for one in self._promises if _has(one, Promise.on_call)]
        self._of_write = [one.on_write for one in self._promises if _has(one, Promise.on_write)]
        self._of_answer = [one.on_answer for one in self._promises if _has(one, Promise.on_answer)]
        self._led_since: float | None = None
        self._written_since: float | None = None
        self._blind_since: float | None = None
        """Since when a leader that nothing hinders has not read everything."""
        self._refused = -1e9
        """When a status was last refused."""
        self._looked, self._news = 0.0, True
        self.room_at = 0.0
        """When a job last ended: those that wait for its room may continue from then."""
        scene.world.server.observe(self._on_change)
        scene.world.listeners.append(self._on_fact)
        scene.operators.on_call = self._on_call
        scene.operators.on_answer = self._on_answer
        scene.operators.on_write = self._on_write
        scene.world.after(POLL_SECONDS, self._poll)

    @property
    def violation(self) -> Violation | None:
        return self._case.violation

    @property
    def rounds(self) -> int:
        """Status writes."""
        return self._bounds.rounds

    @property
    def suspect(self) -> bool:
        """Whether something is wrong that may be wrong for a moment."""
        return any(promise.suspects for promise in self._promises)

    def fail(self, check: str, words: str) -> None:
        self._case.fail(check, words)

    def judge(self) -> None:
        """At the end: compare the logs with the training."""
        self._runs.judge()
        self._ledger.judge()

    def unsettled(self) -> list[str]:
        """I6: the jobs that neither train nor are finished, each with its status."""
        return settled.unsettled(self._case, self._runs)

    def unfinished(self) -> list[str]:
        """The jobs that are not finished, or still hold something."""
        return settled.unfinished(self._case)

    def _on_change(self, change: Change) -> None:
        if change.kind == JOBS:
            uid = uid_of(change.raw)
            self._case.jobs.setdefault(uid, key_of(change.raw)[1])
            self._case.most[uid] = max(self._case.most.get(uid, 1), wanted(change.raw["spec"]))
            if finished(change.raw) and not finished(change.old or {}):
                self.room_at = self._case.now
        self._news = self._news or change.kind != LEASES
        for look in self._of_lease if change.kind == LEASES else self._of_change:
            look(change)

    def _on_fact(self, fact: Fact) -> None:
        self._news = self._news or fact.what != "step"
        for look in self._of_fact:
            look(fact)

    def _on_call(self, *call: str) -> None:
        for look in self._of_call:
            look(*call)

    def _on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:
        if kind == JOBS and wrong == _FORBIDDEN:
            self._refused = self._case.now
        for look in self._of_answer:
            look(who, verb, kind, name, wrong)

    def _on_write(self, who: str, verb: str, kind: str, name: str, rests: frozenset[str]) -> None:
        for look in self._of_write:
            look(who, verb, kind, name, rests)

    def _poll(self) -> None:
        self._check_reading()
        now, led = self._case.now, self._is_led()
        written = led and not self._is_status_refused()
        self._led_since = (self._led_since or now) if led else None
        self._written_since = (self._written_since or now) if written else None
        if not written:
            self._case.prolong_excuses(POLL_SECONDS)
        led, written = self._is_past(self._led_since), self._is_past(self._written_since)
        if not written or now - self._looked >= self._pause():
            self._look(led=led, written=written)
        self._scene.world.after(POLL_SECONDS, self._poll)

    def _is_past(self, since: float | None) -> bool:
        return since is not None and self._case.now - since >= LEADS_SECONDS

    def _pause(self) -> float:
        """Suspicions are checked again at the next opportunity, once there are news."""
        if not self._news:
            return QUIET_SECONDS
        return 0.0 if self.suspect else NEWS_SECONDS

    def _look(self, *, led: bool, written: bool) -> None:
        self._looked, self._news = self._case.now, not written
        for promise in self._promises:
            if written or (led and not promise.rests_on_status):
                promise.look()
            else:
                promise.silence()

    def _check_reading(self) -> None:
        """Until a leader has read everything, it does nothing, and `_is_led` expects nothing of it."""
        leader, calls = self._scene.operators.leader(), self._scene.world.knobs.calls
        hindered = leader is None or leader.synced or leader.link.cut or calls != type(calls)()
        self._blind_since = None if hindered else (self._blind_since or self._case.now)
        if leader and self._blind_since and self._case.now - self._blind_since > BLIND_SECONDS:
            self._case.fail("blind", f"{leader.identity} leads, and has not read everything for {BLIND_SECONDS:.0f} s")

    def _is_led(self) -> bool:
        """Whether a leader works that has read everything, gets news and can write."""
        leader, calls = self._scene.operators.leader(), self._scene.world.knobs.calls
        deaf = self._scene.world.knobs.watches.silent  # until its resync a leader cannot know
        if leader is None or not leader.synced or deaf or leader.link.cut:
            return False
        return not calls.down and calls.too_many < 0.9 and calls.error < 0.5

    def _is_status_refused(self) -> bool:
        """Whether a status waits to be written, which is the first write of a round: then nothing else follows either.

        While no status has to change, a lost right to write one excuses nothing.
        """
        refuses = self._scene.world.server.policy.refuse_status
        return bool(refuses) and self._case.now - self._refused < REFUSED_SECONDS


def _has(promise: Promise, method: Callable[..., object]) -> bool:
    """Whether the check overrides that method."""
    return getattr(type(promise), method.__name__) is not method
