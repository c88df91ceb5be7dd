"""A save while the run trains on: a node shows a signal that may end its members without notice, or a user asks.

Each new signal, and each new value of the job's annotation perdure.dev/save, asks for one save, which covers all that
show by then. For a signal that comes and goes the pauses between saves grow; a user's requests make none longer. The
request is part of the members' assignments: a number that grows within their run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from perdure.wire import Completion
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import SavesAsked
from perdure_operator.decide.assignments import run_named
from perdure_operator.decide.draft import Draft, clock, doubled_seconds, later
from perdure_operator.decide.facts import CAUSE_LENGTH, still_running
from perdure_operator.decide.signals import saves_wanted, users_save

FIRST_PAUSE_SECONDS: Final = 60
LONGEST_PAUSE_SECONDS: Final = 600
FORGOTTEN_SECONDS: Final = 2 * LONGEST_PAUSE_SECONDS
"""A row of saves ends after this long without one."""
MOST_SHOWN: Final = 64
"""How many signals status keeps, beside a user's request: further ones ask for no save."""


def ask_for_save(draft: Draft) -> Draft:
    """Ask the current run for a save, if a signal shows for which none was asked yet."""
    pods = still_running(draft)
    wanted = saves_wanted(draft.snapshot, pods)
    if not wanted and draft.status.saves is None:
        return draft
    old = draft.status.saves or SavesAsked()
    kept = tuple(one for one in old.shown if one in wanted)
    room = sum(not is_users(one) for one in kept) < MOST_SHOWN
    new = [one for one in wanted if one not in kept and (room or is_users(one))]
    if not new or not _can_be_asked(draft):
        return _with(draft, old, kept)
    if until := paused_until(old, draft.now):
        return _with(draft, old, kept).wake(until).because(f"the next save is asked for at {clock(until)}")
    words = "; ".join(dict.fromkeys(wanted[one] for one in new))[:CAUSE_LENGTH]
    before = _count(old, draft.now)
    count = max(1, before) if all(is_users(one) for one in new) else before + 1
    draft = draft.update(saves=SavesAsked(shown=_to_keep(wanted), count=count, last_time=draft.now))
    if draft.snapshot.spec.completion is not Completion.LOG:
        message = (
            f"{words}: no member can be asked to save and train on, as completion is {draft.snapshot.spec.completion}"
        )
        return draft.tell(Reason.SAVE_NOT_ASKED, message, warning=True)
    saves = draft.current.saves + 1 if draft.current else 0
    return draft.update_current(saves=saves).tell(Reason.SAVE_ASKED, f"the run saves and trains on: {words}")


def is_users(shown: str) -> bool:
    """Whether it is a user's request, and no node's or pod's signal."""
    return shown.startswith(users_save(""))


def _to_keep(wanted: Iterable[str]) -> tuple[str, ...]:
    """A user's request, and as many signals as status keeps."""
    signals = sorted(one for one in wanted if not is_users(one))
    return (*filter(is_users, wanted), *signals[:MOST_SHOWN])


def _can_be_asked(draft: Draft) -> bool:
    """Whether a run is on whose members all have their ranks, and know of no other run."""
    current, upcoming = draft.current, draft.status.next
    if current is None or not current.warm or current.outcomes or (upcoming and upcoming.plan):
        return False
    if current.intent and current.intent.leave:
        return False
    return all(run_named(pod.assignment) == current.run for pod in still_running(draft))


def _with(draft: Draft, old: SavesAsked, kept: tuple[str, ...]) -> Draft:
    over = not kept and _count(old, draft.now) == 0
    return draft.update(saves=None if over else old.model_copy(update={"shown": kept}))


def _count(old: SavesAsked, now: datetime) -> int:
    lately = old.last_time is not None and now < later(old.last_time, FORGOTTEN_SECONDS)
    return old.count if lately else 0


def paused_until(old: SavesAsked, now: datetime) -> datetime | None:
    """When the next save may be asked for; None if it may be now."""
    count = _count(old, now)
    if old.last_time is None or not count:
        return None
    until = later(old.last_time, doubled_seconds(count, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
    return until if now < until else None
