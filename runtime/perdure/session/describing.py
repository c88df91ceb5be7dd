"""Describes what a session is about to do. Changes nothing, and talks to no other rank.

Called by `perdure.describe`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from perdure.checkpoint import tensors
from perdure.checkpoint.boxes import local
from perdure.checkpoint.outlook import StartOutlook, look_ahead
from perdure.checkpoint.tree import split
from perdure.loop.data.loader import Loader
from perdure.loop.data.source import Source
from perdure.loop.hooks import HookName, Hooks
from perdure.loop.position.stopping import Goal
from perdure.loop.run import OWN_STOPPING, OWN_VALUES, Run
from perdure.session.description import Description, Finding, LoaderDescription, Loop, Moment, Registered, StartPoint
from perdure.session.forgotten import forgotten
from perdure.session.validating import findings, live_optimizers


def describe(
    run: Run,
    *,
    loop: int,
    goal: Goal | None,
    start: StartPoint | None,
    device: torch.device,
    deterministic: bool,
    seed: int,
) -> Description:
    """What the session is about to do. `loop` is the number of the loop with this goal, from 1; `start` is where the
    training would begin, if that is known."""
    return Description(
        root=run.store.uri,
        rank=run.rank,
        world=run.world,
        device=str(device),
        deterministic=deterministic,
        seed=seed,
        every={name: value for name, value in vars(run.settings.cadence).items() if value is not None},
        keep=run.settings.keep,
        keep_every=run.settings.keep_every,
        exits=run.requests.sources,
        start=start or _start_of(run),
        loop=_loop_of(run, goal, loop),
        phases=_phases_of(run.hooks),
        loaders=tuple(_describe_loader(source, run.world) for source in run.progress.sources),
        registered=_registered_of(run),
        findings=tuple(_findings(run)),
    )


def _findings(run: Run) -> list[Finding]:
    registered = scripts_own(run)
    return [*findings(registered, run.replicas, live_optimizers(run.registry)), *forgotten(registered)]


def _start_of(run: Run) -> StartPoint:
    """The current position. If the run is not open, the position from the log where it would begin."""
    if run.opening is None and not run.joining:
        return would_start(look_ahead(run.settings, run.store), run.store.uri)
    commit = run.opened_checkpointer.commit if run.opened_checkpointer else None
    number = run.settings.run or (run.opening.run if run.opening else 0)
    return StartPoint(number, True, run.progress.step, run.progress.epochs_done, commit.seq if commit else None)


def would_start(outlook: StartOutlook, root: str) -> StartPoint:
    """Where a run that is not open would begin."""
    entry, event = outlook.entry, outlook.event
    if entry is None or event is None:
        return StartPoint(outlook.run, False, 0, 0, goal=outlook.goal)
    uri = outlook.store.uri if outlook.store.uri != root else ""
    return StartPoint(outlook.run, False, event.step, event.epoch, entry.seq, uri, entry.time, outlook.goal)


def _loop_of(run: Run, goal: Goal | None, number: int) -> Loop | None:
    if goal is None:
        return None
    done = run.progress.loop_epochs if number - 1 == run.progress.loop else 0
    return Loop(number, goal.limits(), tuple(run.stopping.names), done)


def _phases_of(hooks: Hooks) -> tuple[Moment, ...]:
    """The registered hooks, by moment."""
    named = [(name, tuple(hooks.names(name))) for name in HookName]
    return tuple(Moment(name.value, functions) for name, functions in named if functions)


def _describe_loader(source: Source[Any], world: int) -> LoaderDescription:
    if not isinstance(source, Loader):
        return LoaderDescription(source.name, len(source), None, source.unit, (), shuffle=False, drop_last=False)
    plan = source.plan
    least, more = divmod(plan.batch, world)
    shares = tuple(least + (rank < more) for rank in range(world))
    batches = len(range(0, source.end, source.unit))  # of the script's own size, although the loader may adapt
    return LoaderDescription(plan.name, batches, plan.samples, plan.batch, shares, plan.shuffle, plan.drop_last)


def _registered_of(run: Run) -> tuple[Registered, ...]:
    own = run.registry.by_rank
    return tuple(_registered(name, thing, by_rank=name in own) for name, thing in scripts_own(run).items())


def scripts_own(run: Run) -> dict[str, Any]:
    """Objects that the script has registered, without those of the session."""
    return {name: thing for name, thing in run.registry.named.items() if name not in (OWN_VALUES, OWN_STOPPING)}


def _registered(name: str, thing: Any, *, by_rank: bool) -> Registered:
    found = list(_once(thing.state_dict()))
    kind, size = type(thing).__name__, sum(tensors.size_of(tensor) for tensor in found)
    if not isinstance(thing, nn.Module):
        return Registered(name, kind, len(found), size, by_rank=by_rank)
    parameters = list(thing.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    inside = thing.module if isinstance(getattr(thing, "module", None), nn.Module) else thing
    return Registered(
        name, type(inside).__name__, len(found), size, sum(parameter.numel() for parameter in parameters), trained
    )


def _once(state: Mapping[str, Any]) -> Iterator[Tensor]:
    """Each tensor of a state_dict, once even if it has two names."""
    found: dict[str, Tensor] = {}
    split(dict(state), "", found)
    seen = {(local(tensor).data_ptr() or id(tensor), tensor.shape, tensor.dtype): tensor for tensor in found.values()}
    return iter(seen.values())
