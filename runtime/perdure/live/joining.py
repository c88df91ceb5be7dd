"""Connects a process with its run: it listens for requests, registers with its agent, and meets the other ranks.

`Session` calls it first of all. It restores nothing.
"""

from __future__ import annotations

from datetime import timedelta

from perdure.errors import UserError
from perdure.group.agreement import Agreement
from perdure.group.found import meet_in_its_store
from perdure.group.peers import Alone
from perdure.group.rendezvous import Deadline, rendezvous
from perdure.group.world import foreign, has_placeholder, uninstall
from perdure.live.liveness import tell_attached
from perdure.live.membership import make_heartbeat
from perdure.loop.leaving import give_up
from perdure.loop.run import Run
from perdure.loop.survivor_snapshots import PATIENCE_SECONDS
from perdure.state.fully_sharded import groups, take_groups
from perdure.wire import Env


def attach(run: Run) -> None:
    """Start to listen for requests, and tell the agent which process it can ask to save."""
    tell_attached(run)
    run.requests.on_image(lambda: run.images.leave(PATIENCE_SECONDS))
    run.requests.listen()


def meet_in_place(run: Run) -> None:
    """Begin the newer run in place, without a live hand-over: its ranks meet as usual and wait until the older run
    ends. UserError if the script has made groups over a placeholder, which no other rank is in."""
    run.joining = False
    was_placeholder, modules = has_placeholder(), run.registry.sharded_modules
    if was_placeholder:
        if names := foreign(groups(modules)):
            raise UserError(
                f"this process was to join a living run, and its script has made groups without the other ranks "
                f"({', '.join(names[:3])}): make them after the first batch"
            )
        uninstall()
    meet(run, run.timeout)
    if was_placeholder:
        take_groups(modules)
    with run.own_collectives():
        if run.framework:
            run.framework.met_in_place()
        for replica in run.replicas:
            replica.adapt(run.world, gather=run.peers.gather)


def meet(run: Run, timeout: float) -> None:
    """Connect all ranks; `timeout` (seconds) limits their collectives.

    Raises PeerLost if they do not meet in time, and Exit if this rank is asked to leave.
    """
    import torch._dynamo  # noqa: F401, PLC0415 - the first optimizer would; here others still start

    run.timeout = timeout
    if run.settings.joined and not run.joining:
        run.settings, run.found = meet_in_its_store(run.settings)
    settings = run.settings
    run.timings.begin(settings.started)
    run.open_store()
    if run.joining:
        run.peers, run.agreement = Alone(settings.rank, settings.world), Agreement(None)
        run.heartbeat = make_heartbeat(run)
        return
    with run.timings.part("rendezvous"):
        deadline = Deadline(settings.rendezvous, lambda: give_up(run), Env.RENDEZVOUS_SECONDS)
        groups = rendezvous(settings, timeout=timedelta(seconds=timeout), deadline=deadline)
    run.peers = groups.peers
    run.agreement = Agreement(
        groups.agreement, interval=settings.check_seconds, beside=run.background, apart=run.measurements
    )
    run.heartbeat = make_heartbeat(run)
    run.heartbeat.start()
