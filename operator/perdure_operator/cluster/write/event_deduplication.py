"""Decides which events to send, so that a repeatedly failing job floods neither etcd nor `kubectl describe`.

Pure but for its memory of sent events; the clock is passed in. Called by `act`.
"""

from __future__ import annotations

from collections import Counter, deque
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.state.decision import JobEvent

AGAIN: Final = timedelta(minutes=10)
"""An event about a job is not repeated within this time."""
MOST_ALIKE: Final = 10
"""Events with one reason that are sent about a job within that time. The last of them says that others follow."""

_MORE: Final = "; others like it follow and are not sent, the job's conditions show the newest"


class EventDeduplicator:
    """Events sent lately. Failed ones do not count, so that they are tried again."""

    def __init__(self) -> None:
        self._sent: deque[tuple[datetime, str, JobEvent]] = deque()
        self._known: set[tuple[str, JobEvent]] = set()
        self._alike: Counter[tuple[str, str]] = Counter()

    def to_send(self, uid: str, event: JobEvent, now: datetime) -> JobEvent | None:
        """The event to send about the job with this uid; None if it says nothing new."""
        self._forget(now)
        count = self._alike.get((uid, event.reason), 0)
        if (uid, event) in self._known or count >= MOST_ALIKE:
            return None
        return event.model_copy(update={"message": event.message + _MORE}) if count + 1 == MOST_ALIKE else event

    def sent(self, uid: str, event: JobEvent, now: datetime) -> None:
        """Remember that the event was sent about the job with this uid."""
        self._sent.append((now, uid, event))
        self._known.add((uid, event))
        self._alike[uid, event.reason] += 1

    def _forget(self, now: datetime) -> None:
        while self._sent and now - self._sent[0][0] >= AGAIN:
            _, uid, event = self._sent.popleft()
            self._known.discard((uid, event))
            alike = (uid, event.reason)
            self._alike[alike] -= 1
            if not self._alike[alike]:
                del self._alike[alike]
