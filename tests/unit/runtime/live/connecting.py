"""A script for the tests of this folder: a newcomer fails to connect, or is late, once all parties have the bridge."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import perdure
from perdure.live import handover, newcomer
from perdure.live.effects import Effects
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.jobs import WAIT_AT
from tests.unit.runtime.live.scripts import Ended, await_ready, digest
from tests.unit.runtime.live.variants import Kit, plain

HARMED_RANK = 1
RELEASED_AT = 10
SIGNALS = {"killed": signal.SIGKILL, "still": signal.SIGSTOP}


class Harmed(Effects):
    """Connects the newer run's groups once all have the bridge; the newcomer for HARMED_RANK does not, or late."""

    def connect_ranks(self) -> None:
        place, harm = os.environ["PLACE"], os.environ["HARM"]
        moment(place, f"bridged-{self.party.number}").touch()
        for party in self.attempt.parties:
            await_moment(place, f"bridged-{party.number}")
        if self.party.new == HARMED_RANK:
            moment(place, "harmed").touch()
            if harm in SIGNALS:
                os.kill(os.getpid(), SIGNALS[harm])
            await_moment(place, "released")
        super().connect_ranks()


def train(root: str, *, harm: str = "", wait_at: int | None = None) -> dict[str, Any]:
    """Old ranks wait at step WAIT_AT until the newcomer is harmed, and if it was `killed` until the attempt has ended.

    One that is `late` goes on when the old ranks are at step RELEASED_AT; there they wait until it is connected.
    """
    torch.set_num_threads(1)
    os.environ |= {"PLACE": root, "HARM": harm}
    handover.Effects = newcomer.Effects = Harmed  # type: ignore[attr-defined]
    ended = Ended()
    with Session.from_env(root) as session:
        session._core.run.reporter.add(ended)
        kit = Kit(session, "")
        with suppress(Exit):
            for _ in session.epochs(3):
                for _ in plain(kit):
                    kit.step()
                    if harm and perdure.progress(session).run == 1:
                        _trains_beside(session, root, harm, ended)
                    session.step()
            return {"rank": session.rank, "steps": session.steps_done, "weights": digest(kit.net.parameters())}
        return {"left": session.steps_done}


def _trains_beside(session: Session, place: str, harm: str, ended: Ended) -> None:
    if session.steps_done == WAIT_AT:
        session._core.boundary.live_handover.look()
        await_moment(place, "harmed")
        if harm == "killed":
            ended.once.wait(60)
    if session.steps_done == RELEASED_AT and harm == "late":
        moment(place, "released").touch()
        await_ready(session._core)


def moment(place: str, name: str) -> Path:
    """The file that tells of it."""
    return Path(f"{place}.{name}")


def await_moment(place: str, name: str) -> None:
    """Returns once it has come."""
    until = time.monotonic() + 60
    while not moment(place, name).exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{name} has not come")
        time.sleep(0.01)
