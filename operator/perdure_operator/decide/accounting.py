"""What a job's time went to: `status.timeAccount`, from which metrics and `kubectl perdure` make goodput and badput.

The operator's own clock says how long runs were on, and what the job waited for in between. What a run did with its
time, its trainer tells: each account tells of the whole run so far, in reports and in the outcomes of members. What
nobody gave account of is unreported, and never guessed.

No counter falls: productive seconds count for good once their steps are in a commit, so the unsaved ones are kept
beside, in `open`. When the next run gives its first account, it says at which step it began. Then the unsaved steps
after that step are lost; of several, in equal parts. Steps that were lost with a commit stay productive. A newcomer
to a living run knows of no unsaved steps but its own: those before stay unsaved until it knows of a commit.

A run that begins in place starts its processes while the run before goes on: of their start counts what the time has
room for.

A newcomer may give account before the leaver's last one is here, which comes with its outcome. Until all leavers have
ended, what the run before has more counts for it, and no second is called unreported: those would stay so.

The pause before a run that began with new processes is what is known of it: the save of the members that left, the time
in which no run was on, and the start and the restore of the new processes. A start after a suspension is none.

`keep_account` writes at a change alone; reports and outcomes come with writes that are due anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import inf
from typing import Any, Final

from perdure.wire.account import CAUSES, RunAccount
from perdure_operator.api.status import (
    PAUSE_SECONDS,
    OpenAccount,
    PauseCounts,
    SecondsSpent,
    TimeAccount,
    TimeGoesTo,
)
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import own

_TOLD: Final = ("productive", *CAUSES)
_IN_RUNS: Final = (*_TOLD, "redone")
WORDS: Final = {"handover": "hand-over"}
"""Causes whose names in status are not those that people read."""
_NOISE_SECONDS: Final = 0.1
"""Seconds are rounded."""
_WAITS: Final = {TimeGoesTo.HELD: "held", TimeGoesTo.NODES: "nodes", TimeGoesTo.MEMBERS: "members"}


def keep_account(draft: Draft) -> Draft:
    """Close the time that went to one thing once it goes to another."""
    time, goes_to = draft.status.time_account, _goes_to(draft)
    if time is None and draft.status.finished_at:
        return draft
    new = time
    if new is not None and new.before is not None and _leavers_have_told(draft, new.before):
        new = settled(new.model_copy(update={"before": None}), draft.now)
    if new is None or new.goes_to is not goes_to:
        new = changed(new or TimeAccount(), goes_to, draft.now)
    return draft if new is time else draft.update(time_account=new)


def _leavers_have_told(draft: Draft, before: OpenAccount) -> bool:
    """Whether all that left with this run have ended. Status may still have it as the current one."""
    current = draft.current
    return current is None or (current.run > before.run and draft.status.previous is None)


def _goes_to(draft: Draft) -> TimeGoesTo | None:
    if draft.status.finished_at:
        return None
    if draft.current is not None:
        return TimeGoesTo.RUN
    if draft.snapshot.spec.suspend:
        return None
    if not draft.next_members:
        return TimeGoesTo.HELD
    pods = own(draft.snapshot)
    placed = all(name in pods and pods[name].node for name in draft.next_members)
    return TimeGoesTo.MEMBERS if placed else TimeGoesTo.NODES


def changed(time: TimeAccount, goes_to: TimeGoesTo | None, now: datetime) -> TimeAccount:
    """The account, from now on with time that goes there."""
    since, spent = _since(time, now), time.spent
    if cause := _WAITS.get(time.goes_to) if time.goes_to else None:
        spent = _add(spent, {cause: since})
    runs, of_run = _rounded(time.run_seconds + (since if time.goes_to is TimeGoesTo.RUN else 0.0)), time.open
    if goes_to is None and of_run is not None:
        of_run = of_run.model_copy(update={"waited": None})
    new = TimeAccount(
        goes_to=goes_to,
        since=None if goes_to is None else now,
        run_seconds=runs,
        spent=spent,
        open=of_run,
        restarts=time.restarts,
    )
    return new if goes_to is TimeGoesTo.RUN else settled(new, now)


def settled(time: TimeAccount, now: datetime) -> TimeAccount:
    """The account, with what nobody gave account of up to now as unreported, once nobody else may."""
    if time.before is not None:
        return time
    unreported = max(time.spent.unreported, _rounded(_untold(time, now)))
    return time.model_copy(update={"spent": time.spent.model_copy(update={"unreported": unreported})})


def _untold(time: TimeAccount, now: datetime) -> float:
    """The seconds of runs of which nobody gave account. Below zero if members told more."""
    on = time.run_seconds + (_since(time, now) if time.goes_to is TimeGoesTo.RUN else 0.0)
    told: float = sum(getattr(time.spent, cause) for cause in _IN_RUNS)
    return on - told - (time.open.unfinished if time.open else 0.0)


def with_accounts(
    time: TimeAccount, accounts: Iterable[RunAccount], now: datetime, *, left: float | None = None
) -> TimeAccount:
    """The account with what a member tells of its newest runs, oldest first. What is known already changes nothing.
    `left`: the member has ended, and saved for so many seconds before."""
    news = tuple(accounts)
    for number, account in enumerate(news):
        if time.open is None or account.run > time.open.run:
            before, time = time.open, _opened(time, account, same_process=number > 0)
            if not account.live and time.open is not None:
                time = _started(time, time.open, before, news[number:], now)
        if time.open is not None and account.run == time.open.run:
            time = _counted(time, time.open, account)
        elif time.open is not None and time.before is not None and account.run == time.before.run:
            time = _told_late(time, time.open, time.before, account, now)
    if left is not None and news and time.open is not None and news[-1].run == time.open.run:
        time = time.model_copy(update={"open": _left(time.open, _waited(time.spent) - time.open.unfinished - left)})
    return time


def _left(run: OpenAccount, waited: float) -> OpenAccount:
    """The run, once a member of it has ended. Of several saves the longest counts."""
    return run if run.waited is None else run.model_copy(update={"waited": _rounded(min(run.waited, waited))})


def _waited(spent: SecondsSpent) -> float:
    return spent.held + spent.nodes + spent.members


def with_pause(known: PauseCounts, pause: float) -> PauseCounts:
    """The counts with one more pause."""
    place = next((place for place, bound in enumerate(PAUSE_SECONDS) if pause <= bound), len(PAUSE_SECONDS))
    counts = [*known.counts, *[0] * (len(PAUSE_SECONDS) + 1 - len(known.counts))]
    counts[place] += 1
    return PauseCounts(counts=tuple(counts), seconds=_rounded(known.seconds + pause))


def _opened(time: TimeAccount, account: RunAccount, *, same_process: bool) -> TimeAccount:
    """With the account of a newer run, of which nothing is counted yet. It decides what the one before was worth.
    `same_process`: whether its process has just told of that one, too."""
    before, new = time.open, OpenAccount(run=account.run, waited=_rounded(_waited(time.spent)))
    if before is None:
        return time.model_copy(update={"open": new})
    if account.live:
        unsaved = {"unsaved": before.unsaved, "unsaved_steps": before.unsaved_steps}
        opened = new.model_copy(update={"step": account.began, **unsaved})
        return time.model_copy(update={"open": opened, "before": None if same_process else before})
    lost_steps = min(before.unsaved_steps, max(0, before.step - account.began))
    lost = before.unsaved * lost_steps / before.unsaved_steps if lost_steps else 0.0
    spent = _add(time.spent, {"productive": -lost, "redone": lost + before.unfinished})
    return time.model_copy(update={"open": new, "spent": spent, "before": None})


def _told_late(
    time: TimeAccount, now_open: OpenAccount, before: OpenAccount, account: RunAccount, now: datetime
) -> TimeAccount:
    """With what the leaver's account of the run before has more, as far as the time has room. A newcomer that knows of
    no commit knows of none of its unsaved steps either."""
    more = _more(before, account, max(0.0, _untold(time, now) - time.spent.unreported))
    if more is None:
        return time
    heard = _heard(before, account, more)
    update: dict[str, Any] = {"spent": _add(time.spent, more), "before": heard}
    if now_open.joined:
        unsaved = {
            "unsaved": _rounded(max(0.0, now_open.unsaved + heard.unsaved - before.unsaved)),
            "unsaved_steps": max(0, now_open.unsaved_steps + heard.unsaved_steps - before.unsaved_steps),
        }
        update["open"] = now_open.model_copy(update=unsaved)
    return time.model_copy(update=update)


def _started(
    time: TimeAccount, run: OpenAccount, before: OpenAccount | None, news: tuple[RunAccount, ...], now: datetime
) -> TimeAccount:
    """With the pause before a run of new processes. The part of their start in which another run went on is known, and
    counts nowhere."""
    told = sum(getattr(account, cause) for account in news for cause in (*_TOLD, "unfinished"))
    room = max(0.0, _untold(time, now) - time.spent.unreported)
    overlap = _rounded(min(news[0].start, max(0.0, told - room)))
    update: dict[str, Any] = {"open": run.model_copy(update={"start": overlap})}
    if before is not None and before.waited is not None:
        pause = _waited(time.spent) - before.waited + news[0].start - overlap + news[0].restore
        update["restarts"] = with_pause(time.restarts, pause)
    return time.model_copy(update=update)


def _more(before: OpenAccount, account: RunAccount, room: float = inf) -> dict[str, float] | None:
    """What the run's newer account has more, by cause; None for an older one. One rank may have waited where another
    one worked: then the causes share what the account has more in all, and so where there is less room."""
    more = {cause: max(0.0, getattr(account, cause) - getattr(before, cause)) for cause in _TOLD}
    in_all = sum(getattr(account, cause) - getattr(before, cause) for cause in _TOLD)
    if account.step < before.step or in_all + account.unfinished - before.unfinished < -_NOISE_SECONDS:
        return None
    told = sum(more.values())
    share = min(1.0, max(0.0, in_all) / told, room / told) if told else 0.0
    return {cause: _rounded(seconds * share) for cause, seconds in more.items()}


def _counted(time: TimeAccount, before: OpenAccount, account: RunAccount) -> TimeAccount:
    """With what the run's newer account has more."""
    more = _more(before, account)
    if more is None:
        return time
    return time.model_copy(update={"spent": _add(time.spent, more), "open": _heard(before, account, more)})


def _heard(before: OpenAccount, account: RunAccount, more: Mapping[str, float]) -> OpenAccount:
    """What is known of the run once these seconds of this account are counted."""
    new: dict[str, Any] = {cause: _rounded(getattr(before, cause) + more[cause]) for cause in _TOLD}
    new |= {"step": account.step, "unfinished": account.unfinished, "unsaved_steps": account.unsaved_steps}
    unsaved = before.unsaved + more["productive"]
    new["unsaved"] = _rounded(unsaved if account.joined else min(account.unsaved, unsaved))
    if account.joined:
        new["unsaved_steps"] = before.unsaved_steps + account.step - before.step
    return before.model_copy(update=new | {"joined": account.joined})


def goodput(time: TimeAccount) -> float:
    """Seconds of steps that are in a commit, or that a later run has begun with."""
    return max(0.0, _rounded(time.spent.productive - _unsaved(time)))


def _unsaved(time: TimeAccount) -> float:
    return time.open.unsaved if time.open else 0.0


def undecided(time: TimeAccount) -> float:
    """Seconds of finished steps that are in no commit yet, and of the step that is being made."""
    return _unsaved(time) + (time.open.unfinished if time.open else 0.0)


def badput(time: TimeAccount) -> dict[str, float]:
    """All other seconds, by cause."""
    spent = time.spent.model_dump()
    return {WORDS.get(cause, cause): seconds for cause, seconds in spent.items() if cause != "productive"}


def ratio(time: TimeAccount) -> float | None:
    """Goodput by all seconds; None before there are any."""
    good = goodput(time)
    whole = good + undecided(time) + sum(badput(time).values())
    return good / whole if whole else None


def _since(time: TimeAccount, now: datetime) -> float:
    return max(0.0, (now - time.since).total_seconds()) if time.since else 0.0


def _add(spent: SecondsSpent, more: Mapping[str, float]) -> SecondsSpent:
    return spent.model_copy(update={cause: _rounded(getattr(spent, cause) + more[cause]) for cause in more})


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
