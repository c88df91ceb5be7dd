"""The agent's pipe as a sink: what the agent decides by, in the words of perdure.channel; the ending is the last."""

from __future__ import annotations

from perdure import channel
from perdure.channel import Attached, Committed, Exiting, Opened
from perdure.telemetry.events import Event, Stepped


class AgentPipe:
    """Tells the agent; without one it tells nobody."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._ended = False

    def take(self, event: Event) -> None:
        """Sends what the agent wants to know."""
        if self._fd is None or self._ended:
            return
        match event:
            case Stepped(step, epoch):
                channel.write_report(self._fd, channel.Stepped(step, epoch))
            case Attached() | Opened() | Committed() | Exiting():
                self._ended = isinstance(event, Exiting)
                channel.write_report(self._fd, event)
