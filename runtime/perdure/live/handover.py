"""An old rank's side of a live hand-over: it looks for offers while it trains, and stops when all are ready.

Everything before the stop runs in threads. During the stop this rank does not change before it knows GO. Otherwise
training continues as if nothing had happened, or the ranks save and leave. Called by perdure.session.boundary.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from functools import partial
from typing import Final, NoReturn

from perdure.checkpoint.manifest import Item
from perdure.errors import Fenced, PeerLost, PerdureError, UserError
from perdure.group.gloo import GlooPeers
from perdure.host.threads import Flag
from perdure.live.driving import Driver
from perdure.live.effects import Effects
from perdure.live.header import Stop
from perdure.live.liveness import kept_world
from perdure.live.protocol import events as ev
from perdure.live.protocol.machine import PartyPhase
from perdure.live.protocol.offers import read_offer
from perdure.live.protocol.parties import Attempt, PartyRole, attempt_of
from perdure.live.protocol.state import lingers
from perdure.live.protocol.timing import MISSING_SECONDS, QUIET_SECONDS, Timetable
from perdure.live.transfer import to_preallocate
from perdure.loop.hooks import HookName
from perdure.loop.leaving import Exit, lose_peers, tell_leaving
from perdure.loop.run import Run
from perdure.wire import ExitKind, Handover, HandoverWord, Leave, Train, channel
from perdure.wire.channel import HandoverEnded

LINGER_LOOKS_SECONDS: Final = 0.05
"""How often a lingering decider checks whether its store is still needed."""
FAREWELL_SECONDS: Final = 0.5
"""How long a finished leaver waits before it exits: its last messages arrive, and its exit does not disturb the others'
first steps."""


class LiveHandover:
    """One old rank's attempts, one after another."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stamp: tuple[int, int] | None = None
        self._driver: Driver[Effects] | None = None
        self._tried = 0
        """The highest run that was offered."""
        self.ready = threading.Event()
        """Set while this rank is ready to hand over."""
        self.exit_wanted = False
        """Whether a failed attempt requires the ranks to save and leave."""
        run.requests.on_request(self._requested)

    def look(self) -> int:
        """The run that this rank is ready to hand over to before its next batch; 0 for none."""
        if self._is_new():
            self._read()
        return self._driver.named if self._driver and self._run.background.may_hand_over else 0

    def hand_over(self, stop: Stop) -> bool:
        """Hand over, once all old ranks are here. Returns as a rank of the newer or the older run; a leaver exits.

        Returns True if the ranks have to save and leave instead.
        """
        driver = self._driver
        if driver is None:
            raise RuntimeError("the ranks stopped for a hand-over that this rank has no record of")
        driver.effects.begin()
        try:
            return self._stop(driver, stop)
        finally:
            driver.effects.end()

    def _stop(self, driver: Driver[Effects], stop: Stop) -> bool:
        if why := self._run.background.stop():
            driver.feed(ev.Unable(why))
        driver.feed(ev.Stopped())
        while True:
            match driver.next_act():
                case ev.MoveState() if driver.phase is PartyPhase.MOVING:  # otherwise the attempt was aborted before
                    _give(driver, stop)
                case ev.Install():
                    self._install(driver)
                    return False
                case ev.TrainOn() if driver.phase is PartyPhase.ABORTED:
                    self._run.background.train_on()
                    return False
                case ev.SaveAndExit():
                    return True
                case ev.ExitProcess(kind, why):
                    self._exit(driver, kind, why)

    def leaving(self) -> None:
        """Report that the ranks agreed to save and leave."""
        if self._driver:
            self._driver.feed(ev.ExitAgreed())

    def goal_reached(self) -> None:
        """Report that the training is done."""
        if self._driver:
            self._driver.feed(ev.TrainingDone())

    def saved(self) -> None:
        """Report that the older run ended in the log. A decider stays until no party needs its store."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        driver.feed(ev.OlderRunEnded())
        attempt = driver.effects.attempt
        for party in range(attempt.world):
            driver.feed(ev.SeenBy(party))  # the old ranks agreed on the exit, so they know the outcome
        begun = time.monotonic()
        while lingers(driver.state, time.monotonic() - begun, driver.effects.missing):
            time.sleep(LINGER_LOOKS_SECONDS)

    # Offers.

    def _is_new(self) -> bool:
        file = self._run.settings.offer_file
        if file is None or not os.access(file, os.F_OK):
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
        offer = channel.read_offer(run.settings.offer_file) if run.settings.offer_file else None
        attempted = self._driver.effects.attempt.next if self._driver else 0
        read = read_offer(offer, run=run.settings.run or 0, tried=self._tried, attempted=attempted)
        if offer is None or read is None:
            return
        if self._driver:
            self._driver.feed(ev.Newer(read.block.run))
        if read.later:
            self._stamp = None
        if not read.begins:
            return
        self._tried = offer.run
        try:
            self._begin(offer, read.block)
        except PerdureError as error:
            run.tell(HandoverEnded(offer.run, HandoverWord.ABORT, str(error)))

    def _begin(self, offer: Train | Leave, block: Handover) -> None:
        run, now = self._run, time.monotonic()
        attempt = attempt_of(block, offer.run, run.settings.pod)
        master = offer.master if isinstance(offer, Train) else ""
        effects = Effects(run, attempt, attempt.of_old(run.rank), block, master)
        effects.preallocations = _to_preallocate(run, attempt)
        effects.resharding.prepare()
        save = run.timings.of_a_save()
        timetable = Timetable.of_old_rank(now, limit=block.limit, seconds=offer.seconds, save=save)
        if self._driver:
            self._driver.finish()
        self._driver = Driver(effects, timetable, ask_exit=self._want_exit, ready=self.ready)
        self._driver.abandoned = partial(self._end_if_it_hangs, self._driver.leaving)
        self._driver.begin(run.registry.kind(), kept_world(run))

    def _end_if_it_hangs(self, leaving: Flag, action: ev.ExitProcess) -> None:
        """End the process if its main thread is stuck in a collective, which takes half an hour to fail."""
        if action.kind is not ExitKind.PEER_LOST:
            return

        def end() -> None:
            if not leaving.wait(QUIET_SECONDS + MISSING_SECONDS):
                lose_peers(self._run, action.why)

        threading.Thread(target=end, name="perdure-handover-end", daemon=True).start()

    def _want_exit(self) -> None:
        self.exit_wanted = True

    def _requested(self) -> None:
        """Handle a request to leave. From another thread."""
        driver, left = self._driver, self._run.requests.left()
        if driver is None:
            return
        if left is not None and driver.effects.party.part is PartyRole.LEAVER:
            driver.shorten(time.monotonic() + left)
        driver.feed(ev.Sigterm())

    # After the stop.

    def _install(self, driver: Driver[Effects]) -> None:
        run, effects, word = self._run, driver.effects, driver.word
        if word is None:
            raise RuntimeError("no party has said go")
        run.old_groups.keep(effects.install(word), driver.is_needed)
        run.background.join_newer_run()
        self._driver, self.exit_wanted = None, False
        self.ready.clear()
        run.tell(effects.took_over())
        if effects.attempt.world != effects.attempt.new_world:
            run.hooks.run(HookName.RANKS)
            effects.own_states.derive_generators()

    def _exit(self, driver: Driver[Effects], kind: ExitKind, why: str) -> NoReturn:
        run = self._run
        if kind is ExitKind.HANDED_OVER:
            run.heartbeat.stop()
            run.background.end()
            run.mirror.end()
            tell_leaving(run, f"handed over to run {driver.effects.attempt.next}")
            run.tell(run.ending(kind))
            run.checkpointer.write_trace(run.requests.left)
            time.sleep(FAREWELL_SECONDS)
            driver.finish()
            driver.effects.let_go()
            raise Exit
        if kind is ExitKind.FENCED:
            raise Fenced(why)
        if driver.state.word is HandoverWord.GO:
            run.images.hold_on()
        if driver.hangs:
            lose_peers(run, why)
        raise PeerLost(why)


def _to_preallocate(run: Run, attempt: Attempt) -> tuple[Item, ...]:
    """The tensors that newcomers need memory for. Called by the main thread, which owns the registered objects."""
    if run.rank != 0 or not attempt.newcomers:
        return ()
    try:
        return to_preallocate(run.registry.grown())
    except UserError:
        return ()  # all ranks meet this error in the stop, and end the attempt there


def _give(driver: Driver[Effects], stop: Stop) -> None:
    """Another thread may end the attempt meanwhile, and agree with the other old ranks to train on. A call to them
    that is late would then wait for ranks that are in their next step, and they for this one."""
    peers = driver.effects.peers
    moving = (
        peers.only_while(lambda: driver.phase is PartyPhase.MOVING) if isinstance(peers, GlooPeers) else nullcontext()
    )
    try:
        with moving:
            driver.effects.give(stop)
    except PerdureError as error:
        driver.feed(ev.Unable(str(error)))
    else:
        driver.feed(ev.Moved())
