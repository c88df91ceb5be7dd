"""Which events are worth sending: a job that fails again and again fills neither the events' store nor a `describe`.

Pure but for its memory of what was sent; the clock is passed in. Called by `act`.
"""

from __future__ import annotations

from collections import Counter, deque
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.state.decision import Event

AGAIN: Final = timedelta(minutes=10)
"""An event about a job is not repeated within this time."""
MOST_ALIKE: Final = 10
"""So many events with one reason are sent about a job within that time; the last of them says that others follow."""

_MORE: Final = "; others like it follow and are not told one by one, the job's conditions tell the newest"


class EventDeduplicator:
    """What has been told lately: only what was sent counts, so that what could not be is worth telling again."""

    def __init__(self) -> None:
        self._told: deque[tuple[datetime, str, Event]] = deque()
        self._known: set[tuple[str, Event]] = set()
        self._alike: Counter[tuple[str, str]] = Counter()

    def worth_telling(self, uid: str, event: Event, now: datetime) -> Event | None:
        """The event as it is to be sent about the job with this uid; None where it says nothing new."""
        self._forget(now)
        told = self._alike.get((uid, event.reason), 0)
        if (uid, event) in self._known or told >= MOST_ALIKE:
            return None
        return event.model_copy(update={"message": event.message + _MORE}) if told + 1 == MOST_ALIKE else event

    def sent(self, uid: str, event: Event, now: datetime) -> None:
        """Remember that the event was told about the job with this uid."""
        self._told.append((now, uid, event))
        self._known.add((uid, event))
        self._alike[uid, event.reason] += 1

    def _forget(self, now: datetime) -> None:
        while self._told and now - self._told[0][0] >= AGAIN:
            _, uid, event = self._told.popleft()
            self._known.discard((uid, event))
            alike = (uid, event.reason)
            self._alike[alike] -= 1
            if not self._alike[alike]:
                del self._alike[alike]
