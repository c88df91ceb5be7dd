"""How an old rank takes part in a hand-over: it looks for offers while it trains, and stops where all are ready.

Everything up to the stop goes on in a thread. In the stop nothing of this rank changes before it knows go; whatever
else comes out of it, training goes on as if nothing had been, or the ranks save and leave. Owned by the session's run;
called by perdure.session.boundary.
"""

from __future__ import annotations

import threading
from typing import NoReturn

from perdure.channel import HandoverEnded, TookOver, read_offer
from perdure.checkpoint.verdict import Verdict
from perdure.contract import ExitKind, HandoverWord, Leave, Train
from perdure.errors import PerdureError
from perdure.handover.bridge import QUIET_SECONDS, Word
from perdure.handover.parties import Part, attempt_of
from perdure.session.effects import Effects, Stop
from perdure.session.hooks import HookName
from perdure.session.leaving import Exit
from perdure.session.run import Run


class _GivenUp(Exception):
    """Nobody waits for the attempt any more."""


class Handing:
    """One old rank's attempts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stamp: tuple[int, int] | None = None
        self._effects: Effects | None = None
        self._connected = threading.Event()
        self._tried = 0
        """The highest run that was offered, and is decided here."""

    def look(self) -> int:
        """Which run this rank is ready to become at the next hand-out; 0: none."""
        if self._is_new():
            self._read()
        return self._effects.attempt.next if self._effects and self._connected.is_set() else 0

    def hand_over(self, stop: Stop) -> bool:
        """All old ranks stand here, ready: returns as a rank of the newer run, or of the older one; a leaver exits.

        True if the ranks are to save and leave instead.
        """
        effects = self._effects
        if effects is None:
            raise RuntimeError("no hand-over is ready")
        effects.begin()
        word = self._try(effects, stop)
        self._effects = None
        self._tried = effects.attempt.next
        self._connected.clear()
        if word.word is HandoverWord.GO:
            return self._go(effects, word)
        return self._stay(effects, word)

    def _is_new(self) -> bool:
        file = self._run.settings.offer_file
        if file is None:
            return False
        try:
            found = file.stat()
        except OSError:
            return False
        stamp = found.st_mtime_ns, found.st_ino
        was, self._stamp = self._stamp, stamp
        return stamp != was

    def _read(self) -> None:
        run = self._run
        offer = read_offer(run.settings.offer_file) if run.settings.offer_file else None
        if offer is None or offer.handover is None or offer.handover.run != run.settings.run:
            return
        if offer.run <= self._tried or (self._effects and offer.run <= self._effects.attempt.next):
            return
        if self._effects:
            self._effects.given_up = True
        try:
            self._effects = self._prepare(offer)
        except PerdureError as error:
            self._tried = offer.run
            run.tell(HandoverEnded(offer.run, HandoverWord.ABORT, str(error)))

    def _prepare(self, offer: Train | Leave) -> Effects:
        run, block = self._run, offer.handover
        if block is None:
            raise RuntimeError("the offer has no block")
        attempt = attempt_of(block, offer.run)
        effects = Effects(run, attempt, attempt.of_old(run.rank), block, getattr(offer, "master", ""))
        warm = run.registry.kind()
        self._connected = threading.Event()
        threading.Thread(target=self._connect, args=(effects, warm), name="perdure-handover", daemon=True).start()
        return effects

    def _connect(self, effects: Effects, warm: str) -> None:
        def give_up() -> None:
            if effects.given_up:
                raise _GivenUp

        try:
            effects.connect(warm, give_up)
        except _GivenUp:
            return
        except PerdureError as error:
            self._run.tell(HandoverEnded(effects.attempt.next, HandoverWord.ABORT, str(error)))
            return
        self._connected.set()

    def _try(self, effects: Effects, stop: Stop) -> Word:
        try:
            effects.give(stop)
            effects.vote(QUIET_SECONDS)
            if not effects.party.decides:
                return effects.bridge.hear(effects.block.limit + QUIET_SECONDS)
            word = self._decide(effects)
            effects.bridge.say(word)
            return word
        except PerdureError as error:
            return Word(HandoverWord.ABORT, str(error))

    def _decide(self, effects: Effects) -> Word:
        verdict = effects.append_opened()
        while verdict is Verdict.OPEN:
            verdict = effects.append_opened()
        effects.lap("append")
        return effects.word() if verdict is Verdict.GO else Word(HandoverWord.ABORT, f"the log says {verdict.value}")

    def _go(self, effects: Effects, word: Word) -> bool:
        run = self._run
        effects.bridge.seen()
        if effects.party.part is Part.LEAVER:
            self._leave(effects)
        effects.install(word)
        attempt = effects.attempt
        run.tell(TookOver(attempt.next, run.rank, run.world, run.progress.step, effects.parts))
        if attempt.world != attempt.new_world:
            run.hooks.run(HookName.RANKS)
        return False

    def _leave(self, effects: Effects) -> NoReturn:
        run = self._run
        run.pulse.stop()
        run.hooks.run(HookName.LEAVING, f"handed over to run {effects.attempt.next}")
        run.tell(run.ending(ExitKind.HANDED_OVER))
        run.checkpointer.write_trace(run.requests.left)
        raise Exit

    def _stay(self, effects: Effects, word: Word) -> bool:
        run, attempt = self._run, effects.attempt
        words = run.peers.gather(word.word.value)
        if writer := run.checkpointer.writer:
            writer.aborted = max(writer.aborted, attempt.next)
        run.tell(HandoverEnded(attempt.next, word.word, word.why))
        return HandoverWord.RESTART.value in words
