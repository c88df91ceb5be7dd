"""A start that does not find room for all its members: its gang lets go of the nodes that it holds, and tries later.

Two jobs that hold half of the nodes each would wait for ever. One has to let go, and only one: the youngest goes first,
so that the oldest gets its room. The pauses that follow differ by uid, so that two do not meet again in step. A run
that trains never lets go.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import GangRest
from perdure_operator.decide.draft import Draft, Waiting, clock, doubled_seconds, later
from perdure_operator.decide.facts import own, refused, terminated
from perdure_operator.decide.sizing import wanted_size
from perdure_operator.decide.waiting import refusal_reason

RECHECK_SECONDS: Final = 10
"""What others do is no event of this job's."""
FIRST_PAUSE_SECONDS: Final = 60
MOST_YIELDS: Final = 5
"""So many younger ones an older one waits for at most: who can never start must not keep all of them from it."""
_ROOMLESS: Final = (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED)


@dataclass(frozen=True)
class Gang:
    """Members of a run that has not begun."""

    needed: int
    """With fewer it cannot begin."""
    placed: int
    """How many have a node."""
    roomless: int
    """How many are told that there is no room for them, by the scheduler or by a quota."""

    @property
    def in_vain(self) -> bool:
        """Whether some hold nodes that do nothing until others find some."""
        return 0 < self.placed < self.needed and self.roomless > 0


def let_go(draft: Draft) -> Draft:
    """Release all members once some have held nodes in vain for startTimeoutSeconds; a younger gang goes first."""
    upcoming, now = draft.status.next, draft.now
    if draft.current or upcoming is None or not upcoming.members:
        return draft
    gang, leaves = _gang(draft), draft.status.previous  # whoever leaves still has the room that these wait for
    since = (upcoming.in_vain_since or now) if gang.in_vain and not leaves else None
    if since != upcoming.in_vain_since:
        draft = draft.update(next=upcoming.model_copy(update={"in_vain_since": since}))
    if since is None:
        return draft
    timeout, younger = draft.snapshot.spec.start_timeout_seconds, draft.snapshot.younger_gangs
    due = lets_go(since, timeout, younger)
    if now >= due:
        return _released(draft, gang)
    first = lets_go(since, timeout, 0)
    draft = draft.wake(first if now < first else min(due, later(now, RECHECK_SECONDS)))
    if draft.waiting and draft.waiting.reason in _ROOMLESS:
        held = f"{draft.waiting.message}; the nodes that other members hold ({gang.placed}) are let go at {clock(due)}"
        draft = draft.but(waiting=Waiting(draft.waiting.reason, held))
    return draft


def rest_of_gang(draft: Draft) -> Draft:
    """Until its pause is over, or its spec is edited, nobody is made of a gang that has let go."""
    gang = draft.status.gang
    if draft.next_members:
        return draft  # they were made when it was over, by another server's clock
    if gang is None or gang.generation != draft.snapshot.generation or draft.now >= gang.until:
        return draft
    words = f"for want of room all members were let go; the next ones are created at {clock(gang.until)}"
    return draft.block(Reason.GANG_RELEASED, words, gang.until)


def _gang(draft: Draft) -> Gang:
    """Who has no pod has no room where a quota says so."""
    pods, elastic = own(draft.snapshot), draft.snapshot.spec.elastic
    here = [pods[name] for name in draft.next_members if name in pods and not terminated(pods[name])]
    refusal = refused(draft, draft.next_members)
    unmade = refusal is not None and refusal_reason(refusal.message) is Reason.QUOTA_EXCEEDED
    return Gang(
        needed=elastic.min_replicas if elastic else wanted_size(draft.snapshot).members,
        placed=sum(bool(pod.node) for pod in here),
        roomless=sum(bool(pod.unschedulable) and not pod.node for pod in here) + unmade,
    )


def _released(draft: Draft, gang: Gang) -> Draft:
    snapshot, old = draft.snapshot, draft.status.gang
    attempts = old.attempts + 1 if old and old.generation == snapshot.generation else 1
    until = draft.now + pause(snapshot.uid, attempts, snapshot.spec.start_timeout_seconds)
    rest = GangRest(attempts=attempts, until=until, generation=snapshot.generation)
    held = f": {draft.waiting.message}" if draft.waiting else ""
    words = (
        f"{gang.placed} members held nodes while others found no room for startTimeoutSeconds: all are let go, "
        f"the next ones are created at {clock(until)}{held}"
    )
    draft = draft.allot(()).update(gang=rest)
    return rest_of_gang(draft.but(waiting=None).tell(Reason.GANG_RELEASED, words, warning=True))


def lets_go(since: datetime, timeout: int, younger: int) -> datetime:
    """When a gang that holds nodes in vain since then lets go, beside so many younger ones that do or just did."""
    return since + timedelta(seconds=timeout * (1 + min(younger, MOST_YIELDS)))


def pause(uid: str, attempts: int, timeout: int) -> timedelta:
    """Before its members are made again, after so many attempts: doubled up to the timeout, and up to twice by uid."""
    seconds = doubled_seconds(attempts, FIRST_PAUSE_SECONDS, timeout)
    drawn = hashlib.sha256(f"{uid} {attempts}".encode()).digest()[0] / 256
    return timedelta(seconds=round(seconds * (1 + drawn)))
