"""A trainer that saves in the background and is killed.

`python -m tests.unit.runtime.session.killed_saves ROOT EPOCHS [MOMENT WHOM SIGNAL SAVE | STEP]`; see `disturb` and
`lose`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from perdure.checkpoint.background import events as ev
from perdure.loop.background_saves import BackgroundSaves, BlockingSave
from perdure.session.session import Session
from tests.support.undrawn import Script
from tests.unit.runtime.session.background import BATCH, Uploads, dataset, digest, network

STEP_SECONDS = 0.01
"""What a step computes beside its model: saves are under way most of the time."""


def disturb(moment: str, whom: str, number: int, save: int) -> None:
    """At one moment of its first save (or of a later one), "before Copy" or "after Append", this rank sends a signal to
    itself ("trainer") or to the process that uploads for it. "during Copy": while the copy goes on beside its
    training."""
    act, sent, left = BackgroundSaves._act, list[int](), iter(range(save - 1, -1, -1))

    def send(saves: BackgroundSaves) -> None:
        pid = os.getpid() if whom == "trainer" else saves._effects.copies.process and saves._effects.copies.process.pid
        if pid and not sent and not next(left):
            sent.append(pid)
            os.kill(pid, number)

    def disturbed(self: BackgroundSaves, action: ev.Action, save: BlockingSave | None) -> bool:
        if moment == f"before {type(action).__name__}":
            send(self)
        done = act(self, action, save)
        if moment == f"after {type(action).__name__}":
            send(self)
        if moment == f"during {type(action).__name__}" and self._effects.deferral.copies:
            send(self)
        return done

    vars_of: Any = BackgroundSaves
    vars_of._act = disturbed


def lose(session: Session, lost_in: int) -> None:
    """A step begins. In step `lost_in` rank 1 dies; what uploads for rank 0 stands still before any save."""
    if session.steps_done == 1 and session.rank == 0:
        Uploads(session).freeze()
    if session.steps_done + 1 == lost_in and session.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def main(root: str, epochs: int, lost_in: int = 0) -> None:
    """Its last line is its training result."""
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        net = network()
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer)
        script = Script("torch")
        for _ in session.epochs(epochs):
            for inputs, labels in session.loader(dataset(), BATCH):
                script.goes_on()
                if lost_in:
                    lose(session, lost_in)
                optimizer.zero_grad()
                session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
                time.sleep(STEP_SECONDS)
                script.calls()
                session.step()
    print(digest(net), flush=True)


if __name__ == "__main__":
    if sys.argv[4:]:
        disturb(sys.argv[3], sys.argv[4], *map(int, sys.argv[5:]))
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:4] if not sys.argv[4:] else ()))
