"""The sinks that keep nothing: the agent's pipe, in the words of perdure.wire.channel, and lines for people."""

from __future__ import annotations

import logging

from perdure.console import say, speak_as
from perdure.loop.telemetry.events import Evaluating, Event, Leaving, Reported, Stepped
from perdure.wire import channel
from perdure.wire.channel import (
    Attached,
    CommitDone,
    Exiting,
    HandoverEnded,
    Imaged,
    Imaging,
    Resulted,
    SaveFailed,
    SessionOpened,
    TookOver,
    Voting,
)


class AgentPipe:
    """Sends the agent what it needs for its decisions, the end last. Without an agent it does nothing."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._ended = False

    def take(self, event: Event) -> None:
        """Sends the events that the agent needs."""
        if self._fd is None or self._ended:
            return
        if type(event) is Stepped:  # of each step, so without a match
            if not event.alone:
                channel.write_step(self._fd, event.step, event.epoch)
            return
        match event:
            case (
                Attached()
                | SessionOpened()
                | CommitDone()
                | SaveFailed()
                | Resulted()
                | Voting()
                | TookOver()
                | HandoverEnded()
                | Imaging()
                | Imaged()
            ):
                channel.write_report(self._fd, event)
            case Evaluating(step, epoch):
                channel.write_step(self._fd, step, epoch)  # tells agents of any version that there is something to save
            case Exiting():
                self._ended = True
                channel.write_report(self._fd, event)


class LogLines:
    """Prints what happens to a run, for readers of the pod's log. Only rank 0 prints."""

    def __init__(self, run: int | None, rank: int) -> None:
        self._rank = rank
        self._leaving = ""
        speak_as(run, rank)

    def take(self, event: Event) -> None:
        """Prints events that deserve a line."""
        if type(event) is Stepped:  # of each step, so without a match
            return
        match event:
            case SessionOpened(run):
                speak_as(run, self._rank)
            case TookOver(run, rank, world, step):
                self._rank = rank
                speak_as(run, rank)
                if rank == 0:
                    say(f"took over the living run at step {step}, with {_ranks(world)}")
            case HandoverEnded(run, word, why) if self._rank == 0:
                say(f"hand-over to run {run}: {word.value}: {why}")
            case Reported(step, epoch, values) if self._rank == 0:
                said = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
                say(f"step {step}, epoch {epoch}: {said}")
            case Leaving(_, cause):
                self._leaving = f", leaving: {cause}"
            case CommitDone(commit) if self._rank == 0:
                # While training continues a save is no news, so its level is lower.
                level = logging.INFO if self._leaving else logging.DEBUG
                say(f"saved step {commit.step}{self._leaving}", level)


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _ranks(world: int) -> str:
    return "1 rank" if world == 1 else f"{world} ranks"
