"""When the alarms of a hand-over go off, by the process's monotonic clock. Pure; called by the shell.

Durations come from the assignment and count from its first sight, so the times differ a little between parties. No
decision may depend on that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from perdure.live.protocol.events import Alarm

ACK_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 10.0
"""How long old ranks wait in the stop for a newcomer's first batch, and how long after the limit a voted party waits
before it settles the attempt in the log."""
HERE_SECONDS: Final = 1.0
"""The heartbeat's interval."""
SILENCE_SECONDS: Final = 3.0
"""A party silent for this long ends the attempt, or makes others read the log. Both cost only the attempt."""
LOST_SECONDS: Final = 20.0
"""A party silent for this long ends a run that waits for it. A node that only stalls comes back before."""
SETTLE_SECONDS: Final = 5.0
"""A party settles the attempt this long before its own deadline at the latest."""
SAVE_SECONDS: Final = 60.0
"""Time for an exit save if the offer gives none."""
MISSING_SECONDS: Final = 3.0
"""How long a decider lingers for newcomers that never arrived."""
END_SECONDS: Final = 1.0
"""Time left before its deadline when a process gives up."""


@dataclass(frozen=True)
class Timetable:
    """Times of time.monotonic(); None for what has not begun."""

    limit: float
    deadline: float
    """When this process would be killed."""
    save: float = 0.0
    """Measured seconds of an exit save; 0 if unknown."""
    stopped: float | None = None
    informed: float | None = None
    """When the agent was informed of the vote."""

    @classmethod
    def of_old_rank(cls, now: float, *, limit: float, seconds: float, save: float) -> Timetable:
        """From an offer that is seen `now`: `seconds` are its time for an exit save, 0 if it gives none, and `save` is
        what such a save took."""
        left = max(seconds, limit) + (0 if seconds else SAVE_SECONDS)
        return cls(now + limit, now + left + QUIET_SECONDS, save)

    @classmethod
    def of_newcomer(cls, now: float, *, limit: float) -> Timetable:
        """From its start."""
        return cls(now + limit, now + limit + 3 * QUIET_SECONDS)

    def shortened(self, deadline: float) -> Timetable:
        """The timetable with an earlier deadline: SIGTERM at a leaver, or a smaller `seconds`."""
        deadline = min(self.deadline, deadline)
        return replace(self, deadline=deadline, limit=min(self.limit, deadline - QUIET_SECONDS))

    def at(self, alarm: Alarm) -> float | None:
        """When the alarm goes off; None if it is not set."""
        match alarm:
            case Alarm.ACK:
                return None if self.informed is None else self.informed + ACK_SECONDS
            case Alarm.SILENCE:
                return None if self.stopped is None else self.stopped + QUIET_SECONDS
            case Alarm.LIMIT:
                return self.limit
            case Alarm.QUIET:
                return min(self.limit + QUIET_SECONDS, self.deadline - SETTLE_SECONDS)
            case Alarm.LAST_CALL:
                return self.limit - 2 * self.save
            case Alarm.DEADLINE:
                return self.deadline - END_SECONDS

    def due(self, now: float) -> tuple[Alarm, ...]:
        """The alarms that have gone off, in the order of their times. A repeated alarm does no harm."""
        moments = [(moment, alarm) for alarm in Alarm if (moment := self.at(alarm)) is not None and moment <= now]
        return tuple(alarm for _, alarm in sorted(moments))

    def next(self, now: float) -> float | None:
        """When the next alarm goes off; None if there is none."""
        moments = [moment for alarm in Alarm if (moment := self.at(alarm)) is not None]
        return min((moment for moment in moments if moment > now), default=None)
