"""When the alarms of a hand-over go off, by one process's monotonic clock. Pure; called by the shell.

Durations come from the assignment and count from first sight of it, so they differ a little between the parties:
nothing may depend on that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from perdure.live.protocol.events import Alarm

ACK_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 10.0
"""How long old ranks wait in the stop for a newcomer's first batch, and how long after the limit the log is asked."""
HERE_SECONDS: Final = 1.0
"""How often each party says that it is there."""
SILENCE_SECONDS: Final = 3.0
"""After so long without a word an attempt is given up, or the log asked: both cost nothing but the attempt."""
LOST_SECONDS: Final = 20.0
"""After so long a run is given up that waits for a rank: a node that only stutters comes back before."""
SETTLE_SECONDS: Final = 5.0
"""How long before its own deadline a party settles at the latest."""
END_SECONDS: Final = 1.0
"""What is left of a process's time when it gives up."""


@dataclass(frozen=True)
class Timetable:
    """Moments of time.monotonic(). What has not begun yet is None."""

    limit: float
    deadline: float
    """When this process would be killed."""
    save: float = 0.0
    """How long an exit save takes, in seconds, as measured; 0: unknown."""
    stopped: float | None = None
    told: float | None = None
    """When the agent was told of the vote."""

    def shortened(self, deadline: float) -> Timetable:
        """With an earlier end of this process: SIGTERM at a leaver, or a smaller `seconds`."""
        deadline = min(self.deadline, deadline)
        return replace(self, deadline=deadline, limit=min(self.limit, deadline - QUIET_SECONDS))

    def at(self, alarm: Alarm) -> float | None:
        """When it goes off."""
        match alarm:
            case Alarm.ACK:
                return None if self.told is None else self.told + ACK_SECONDS
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
        """Those that have gone off, in the order of their moments; telling one twice does no harm."""
        moments = [(moment, alarm) for alarm in Alarm if (moment := self.at(alarm)) is not None and moment <= now]
        return tuple(alarm for _, alarm in sorted(moments))

    def next(self, now: float) -> float | None:
        """When the next one goes off."""
        moments = [moment for alarm in Alarm if (moment := self.at(alarm)) is not None]
        return min((moment for moment in moments if moment > now), default=None)
