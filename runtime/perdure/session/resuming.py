"""Continues from the newest commit: opens the run in the log, then restores everything registered.

Called once, by perdure.session.core.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from perdure.checkpoint.background.state import Carried
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.codec import decode
from perdure.checkpoint.inherit import Inheritance
from perdure.checkpoint.opening import Opening, load_newest, load_origin, open_run
from perdure.checkpoint.save import stage_together
from perdure.checkpoint.state import Loaded, RankState
from perdure.console import say
from perdure.group.collectives import on_all
from perdure.live.liveness import hidden_obstacle, kept_world, obstacle, tell_attached
from perdure.live.newcomer import Newcomer
from perdure.loop.hooks import HookName
from perdure.loop.leaving import give_up, stop_without_step
from perdure.loop.position.accumulating import of_all
from perdure.loop.run import OWN_STOPPING, OWN_VALUES, Run
from perdure.loop.telemetry.events import Resumed
from perdure.loop.telemetry.trace import StoreTrace, TraceLines
from perdure.state.merging import parts_of, with_own
from perdure.state.rng import go_on_from, in_mesh, of_lost_rank, of_other_world
from perdure.wire import CommitRef
from perdure.wire.channel import SessionOpened

NOTHING_REGISTERED: Final = (
    "no model and no optimizer is registered, so none is saved: a resumed run would go on with new weights; "
    "call session.register(model=model, optimizer=optimizer) before epochs()"
)


def resume(run: Run, *, seed: int) -> None:
    """Opens the run and restores. Collective. `seed` is for random states that cannot be resumed."""
    run.seed, settings = seed, run.settings
    run.registry.modes.begin()
    run.registry.modes.tell = say if run.rank == 0 else None
    inheritance = Inheritance(run.peers, settings.held_images)
    opening = open_run(settings, run.store, run.peers, lambda: give_up(run), inheritance.offers)
    _begin(run, opening)
    run.tell(SessionOpened(opening.run))
    run.requests.before_first_step(lambda: stop_without_step(run))
    with run.timings.part("restore"):
        lost_world = None
        if opening.image:
            lost_world = inheritance.commit(opening.image, run.checkpointer, of_lost_rank, settings.rendezvous)
        if opening.origin:
            loaded: Loaded | None = load_origin(settings, run.store, run.peers, opening.origin, run.registry)
        else:
            loaded = load_newest(settings, run.store, run.peers, opening.writer, run.registry)
            loaded = loaded and _with_own_state(loaded, inheritance)
        if loaded and lost_world:
            loaded = replace(loaded, world=lost_world)
        if loaded:
            state, ranks = loaded.state, loaded.ranks
            if state.rank is None:
                run.progress.sums.resume(of_all(loaded.ranks) if run.rank == 0 else {})
                state = replace(state, rank=decode(of_other_world(loaded.ranks)))
                state, ranks = _with_merged(run, state, parts_of(loaded.ranks)), ()
            else:
                run.progress.sums.resume(state.rank)
            _go_on_from(run, state, loaded.position.step, loaded.world, seed, ranks=ranks)
            run.progress.resume(loaded.position)
            run.checkpointer.commit = None if opening.origin else loaded.commit
        run.checkpointer.rehearse()
        if opening.origin and loaded:  # a commit of this root's own, because the other root may delete that one
            run.checkpointer.begin_with(loaded.position, f"from {opening.origin.uri}", settings.rendezvous)
        run.images.begin()
    rescued_of, behind = opening.image.run if opening.image else 0, loaded.behind if loaded else None
    begun = SessionOpened(opening.run, run.checkpointer.commit, opening.rescued, rescued_of, run.progress.step)
    run.tell(replace(begun, behind=behind.commit, behind_why=behind.why) if behind else begun)
    run.tell(Resumed(run.progress.step, dict(run.timings.seconds)))
    run.schedule.saved()
    if why := obstacle(run) or hidden_obstacle(run) or kept_world(run):
        tell_attached(run, why)  # otherwise the operator would offer hand-overs in vain
    if run.rank == 0 and run.registry.names <= {OWN_VALUES, OWN_STOPPING}:
        say(NOTHING_REGISTERED)
    _tell_script(run, loaded)


def _with_own_state(loaded: Loaded, inheritance: Inheritance) -> Loaded:
    """The same, with what a pod has kept of this rank where the commit was made. Collective."""
    own = inheritance.own_state(loaded)
    return loaded if own is None else replace(loaded, state=replace(loaded.state, rank=own))


def receive(run: Run, *, seed: int) -> Newcomer | None:
    """Gives this process the state of the living run that it will join. It is not a rank of that run yet.

    None if the newer run begins in place instead.
    """
    run.seed = seed
    run.registry.modes.begin()
    newcomer = Newcomer(run)
    stage_together(run.peers, run.state())  # refuse what cannot be saved before other ranks stop and wait for it
    with run.timings.part("rendezvous"):
        state = newcomer.receive()
    if state is None:
        return None
    header, number = newcomer.header, run.settings.run or 0
    _begin(
        run, Opening(number, 0, header.goal, None), Carried(**header.saves)
    )  # it has not read that the run is open in the log, and it may not be
    with run.timings.part("restore"):
        run.progress.sums.resume(state.rank or {})
        _go_on_from(run, state, header.position.step, newcomer.old_world, seed)
        run.progress.resume(header.position)
        run.checkpointer.commit = header.commit
        run.images.begin()
    run.tell(Resumed(run.progress.step, dict(run.timings.seconds)))
    # This process made no commit. The id names where the living run stands, after its newest commit.
    run.hooks.run(HookName.RESUMED, CommitRef(header.commit.seq if header.commit else 0, header.position.step))
    if newcomer.old_world != run.world:
        run.hooks.run(HookName.RANKS)
    return newcomer


def wait_in_place(run: Run, why_not: str) -> None:
    """Wait until the newer run begins in place. `why_not` says why this newcomer cannot join a living run.

    Raises HandoverFailed if the older run can change its members live.
    """
    with run.timings.part("rendezvous"):
        Newcomer(run).receive(why_not)


def _begin(run: Run, opening: Opening, saves: Carried | None = None) -> None:
    settings, run.opening = run.settings, opening
    if settings.trace:
        run.trace = StoreTrace(run.store, uid=settings.uid, run=opening.run, rank=run.rank, world=run.world)
        run.reporter.add(TraceLines(run.trace))
    run.opened_checkpointer = _checkpointer(run, opening)
    run.background.begin(saves)


def _with_merged(run: Run, state: RankState, parts: Sequence[Mapping[str, Any]]) -> RankState:
    """Adds this rank's share of the states that were each rank's own. Collective, if there are any."""
    if not any(parts):
        return state
    held = [*state.objects, *state.shared, *state.replicated]
    own, _ = on_all(
        run.peers,
        "merges per-rank state",
        lambda: (run.registry.merged(parts, rank=run.rank, world=run.world, held=held), None),
    )
    return replace(state, rank=with_own(state.rank, own))


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
        keep_every=run.settings.keep_every,
        trace=run.trace,
        timings=run.timings,
        read=run.state_to_save,
        beside=run.beside,
        compare_beside=run.compare_beside,
        member=run.settings.member,
        limit=run.max_save_failures,
    )


def _go_on_from(run: Run, state: RankState, step: int, world: int, seed: int, *, ranks: Sequence[Any] = ()) -> None:
    """`step` and `world`, the number of ranks, are those that the state is from. `ranks`: each rank's own state in a
    commit of as many ranks, encoded."""
    run.registry.load(state)
    if run.registry.kept and run.rank == 0:
        say(f"not in the checkpoint, so as the script has made it: {', '.join(run.registry.kept)}")
    tell_overruled(run, run.registry.names)
    run.tell_result()
    same_world = world == run.world
    if same_world and state.rank:
        run.stopping.resume_requested(state.rank["asked"])
    run.resume_share(state.rank if same_world else None)

    def go_on() -> None:  # only the first batch tells which ranks share one
        share = run.batch_share
        own = in_mesh(state.rank, ranks, [share.rank, share.world]) if ranks and state.rank and share else state.rank
        go_on_from(own, seed=seed, step=step, place=run.drawing_place)

    run.progress.generators.resume(go_on)


def tell_overruled(run: Run, names: Collection[str]) -> None:
    """Says what a changed script sets otherwise in its optimizers, and the restored state keeps."""
    for line in run.registry.overruled(names) if run.rank == 0 else ():
        say(f"{line}: to change it, set it in the optimizer's param_groups after perdure.restore(session)")
