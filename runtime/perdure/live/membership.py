"""Switches a living process to the newer run's ranks. There is no way back.

The groups are connected, and the log says that the newer run has taken over. Everything that depends on ranks is
updated: torch's groups, wrapped models, loaders, agreement, heartbeat, checkpointer. Called by both sides of a
hand-over once they know GO.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from perdure.checkpoint.opening import Opening
from perdure.group.agreement import Agreement
from perdure.group.heartbeat import Heartbeat
from perdure.group.rendezvous import install_groups
from perdure.group.world import handing_out, uninstall
from perdure.live.bridge import Bridge
from perdure.live.word import Word
from perdure.log.reader import Log, slot_of
from perdure.log.writer import Writer
from perdure.loop.current_call import current_call
from perdure.loop.leaving import lose_peers
from perdure.loop.run import Run
from perdure.state.fully_sharded import take_groups
from perdure.wire.settings import Settings

BEGAN_ANEW: Final = (
    "; a process joined this run while it trained, and the script's own variables started fresh in it: if a step "
    "depends on one, keep it in session.state, or use session.steps_done or perdure.progress(session)"
)
"""Extra hint for rank-divergence errors after a newcomer has joined."""


def make_heartbeat(run: Run) -> Heartbeat:
    """A heartbeat among the ranks of this process's current run."""
    return Heartbeat(
        run.settings, lambda: run.requests.seen, lambda why: lose_peers(run, why), place=lambda: current_call(run)
    )


def make_writer(run: Run, settings: Settings) -> Writer | None:
    """The newer run's log writer, if this process becomes its rank 0; otherwise None."""
    if settings.rank != 0:
        return None
    return Writer(Log(run.store), uid=settings.uid, run=settings.run, lost=settings.lost, floor=settings.floor)


def change_ranks(run: Run, bridge: Bridge, settings: Settings, reshard: Callable[[], None]) -> list[Any]:
    """Install the bridge's groups and return the old ones. Never waits for another rank. `reshard` gives a sharded
    model the shards of a run of another size."""
    groups = bridge.groups
    if groups is None:
        raise RuntimeError("a leaver has no groups of the newer run")
    run.heartbeat.stop()
    before = [*uninstall(), run.peers, run.agreement, bridge.words, bridge.group, bridge.peers, bridge]
    install_groups(groups, settings)
    run.settings = settings
    run.peers = groups.peers
    run.agreement = Agreement(
        groups.agreement,
        interval=settings.check_seconds,
        unsaid=run.agreement.unsaid,
        hint=run.hint,
        beside=run.background,
        apart=run.measurements,
    )
    run.heartbeat = make_heartbeat(run)
    run.heartbeat.start(at_once=False)
    with run.registry.zeroing_gradients():
        if modules := run.registry.sharded_modules:
            with handing_out(groups.of_mesh):
                take_groups(modules)
        reshard()
    for replica in run.replicas:
        replica.adapt(settings.world, equal=True)
    run.progress.share(settings.rank, settings.world)
    if run.measurements:
        run.measurements.ranks_changed()
    return before


def take_over_log(run: Run, writer: Writer | None, word: Word) -> None:
    """Make this process's commits those of the newer run, which the word's entry opened."""
    checkpointer = run.checkpointer
    number = run.settings.run or 0
    if writer:
        writer.take_up(slot_of(word.seq, word.entry.encode()))
    checkpointer.run, checkpointer.peers, checkpointer.writer, checkpointer.hint = number, run.peers, writer, run.hint
    run.opening = Opening(number, number, run.opening.goal if run.opening else None, writer)
