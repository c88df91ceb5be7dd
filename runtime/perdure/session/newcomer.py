"""How a process joins a living run: its state comes in `restore()`, its ranks with the first batch.

Between the two it has no group: what the script does there no other rank does, and a collective would pair with the
old ranks' gradients. So its vote is given when the script asks for the batch that the old ranks stand at. Until it
knows go it is no rank of anything, and its end costs nobody anything.

Called by perdure.session.resuming and perdure.session.boundary.
"""

from __future__ import annotations

from perdure.channel import TookOver
from perdure.checkpoint.state import State
from perdure.contract import HandoverWord
from perdure.errors import HandoverFailed
from perdure.group.rendezvous import Deadline
from perdure.handover.bridge import QUIET_SECONDS
from perdure.handover.parties import attempt_of
from perdure.session.effects import Effects, Header
from perdure.session.leaving import give_up
from perdure.session.run import Run


class Newcomer:
    """One process that joins."""

    def __init__(self, run: Run) -> None:
        settings, block = run.settings, run.settings.handover
        if block is None or settings.run is None:
            raise RuntimeError("this process was not started for a hand-over")
        attempt = attempt_of(block, settings.run)
        host, port = settings.master or ("", 0)
        self._run = run
        self._effects = Effects(run, attempt, attempt.of_new(settings.rank), block, f"{host}:{port}")

    @property
    def header(self) -> Header:
        """What old rank 0 has told."""
        if self._effects.header is None:
            raise RuntimeError("no state was received")
        return self._effects.header

    @property
    def old_world(self) -> int:
        """How many ranks the living run has."""
        return self._effects.attempt.world

    def receive(self) -> State:
        """Waits until the old ranks stand still for this process, and takes their state."""
        run, effects = self._run, self._effects
        effects.connect(run.registry.kind(), lambda: give_up(run))
        effects.bridge.await_stop(Deadline(effects.block.limit, lambda: give_up(run)))
        effects.begin()
        return effects.take()

    def first_batch(self, source: str) -> bool:
        """The script asks `source` for a batch: False if it is not the one that the old ranks stand at.

        Otherwise this process is a rank of the newer run when it returns. HandoverFailed if it is not to be one.
        """
        run, effects = self._run, self._effects
        if source != self.header.source:
            return False
        effects.lap("script")
        effects.vote(QUIET_SECONDS)
        word = effects.bridge.hear(effects.block.limit + QUIET_SECONDS)
        effects.lap("word")
        if word.word is not HandoverWord.GO:
            raise HandoverFailed(f"run {effects.attempt.next} does not take over run {effects.attempt.run}: {word.why}")
        effects.bridge.seen()
        effects.install(word)
        run.joining = False
        run.progress.saved = self.header.saved
        run.schedule.take_over(run.rank, self.header.age)
        run.tell(TookOver(effects.attempt.next, run.rank, run.world, run.progress.step, effects.parts))
        return True
