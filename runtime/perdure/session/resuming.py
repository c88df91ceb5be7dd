"""How a run goes on from the newest commit: it is opened in the log, then everything is put where it was left.

Called once, by `Session.restore`.
"""

from __future__ import annotations

from perdure.channel import Opened
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.opening import Opening, load_newest, open_run, say
from perdure.checkpoint.state import Loaded
from perdure.session.hooks import HookName
from perdure.session.leaving import give_up, stop_without_step
from perdure.session.rng import going_on
from perdure.session.run import OWN_STOPPING, OWN_VALUES, Run
from perdure.telemetry.events import Resumed
from perdure.telemetry.trace import StoreTrace, TraceLines


def resume(run: Run, *, seed: int) -> None:
    """Opens the run and restores. Collective; `seed` is for random states that cannot be resumed."""
    settings = run.settings
    opening = open_run(settings, run.store, run.peers, lambda: give_up(run))
    run.opening = opening
    if settings.trace:
        run.trace = StoreTrace(run.store, uid=settings.uid, run=opening.run, rank=run.rank, world=run.world)
        run.reporter.add(TraceLines(run.trace))
    run.opened_checkpointer = _checkpointer(run, opening)
    run.tell(Opened(opening.run))
    run.requests.before_first_step(lambda: stop_without_step(run))
    with run.timings.part("restore"):
        loaded = load_newest(settings, run.store, run.peers, opening.writer, run.registry)
        if loaded:
            _go_on_from(run, loaded, seed)
        run.checkpointer.rehearse()
    run.tell(Opened(opening.run, run.checkpointer.commit))
    run.tell(Resumed(run.progress.step))
    run.schedule.saved()
    if run.rank == 0 and run.registry.names <= {OWN_VALUES, OWN_STOPPING}:
        say(
            "no model and no optimizer is registered, so none is saved: a resumed run would go on with new weights; "
            "call session.register(model=model, optimizer=optimizer) before epochs()"
        )
    _tell_script(run, loaded)


def _tell_script(run: Run, loaded: Loaded | None) -> None:
    if loaded is None:
        run.hooks.run(HookName.INIT)
        return
    run.hooks.run(HookName.RESUMED, loaded.commit)
    if loaded.world != run.world:
        run.hooks.run(HookName.RANKS)


def _checkpointer(run: Run, opening: Opening) -> Checkpointer:
    return Checkpointer(
        store=run.store,
        peers=run.peers,
        writer=opening.writer,
        run=opening.run,
        keep=run.settings.keep,
        trace=run.trace,
        timings=run.timings,
        read=run.state,
    )


def _go_on_from(run: Run, loaded: Loaded, seed: int) -> None:
    run.registry.load(loaded.state)
    same_world = loaded.world == run.world
    if same_world and loaded.state.rank:
        run.stopping.resume_asked(loaded.state.rank["asked"])
    step, rank = loaded.position.step, run.rank
    run.progress.generators.resume(going_on(loaded.state.rank, same_world=same_world, seed=seed, step=step, rank=rank))
    run.progress.resume(loaded.position)
    run.checkpointer.commit = loaded.commit
