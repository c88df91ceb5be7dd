"""Detects whether this script can swap members live, and if not, why.

An object of the script's own that keeps its ranks would silently go on among the old members, because gloo's groups do
not end with a leaver. So the check runs at the beginning, after `restore()`, and in every attempt. Called by joining,
resuming and driving.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from perdure.group.world import foreign, has_placeholder, kept
from perdure.live.trial import failure
from perdure.loop.run import Run
from perdure.state import keepers
from perdure.state.fully_sharded import groups, has_no_groups, keeps_others, meshes, references
from perdure.state.keepers import OWN_DDP
from perdure.wire import Env
from perdure.wire.channel import Attached

SHARDED_OPTIMIZER: Final = "ZeroRedundancyOptimizer"
ONE_RANK: Final = "the model is sharded, and one rank alone holds no shards"
UNREGISTERED: Final = "a model that fully_shard shards and that is not registered: register it, too"
ON_GPUS: Final = (
    f"on a machine with GPUs ranks change live only with {Env.LIVE}=yes, for jobs that train on its CPUs: "
    "NCCL is not proven"
)
EARLY_COLLECTIVES: Final = (
    "the script makes collectives before its first batch, for which a newcomer has no other ranks: make them after it"
)


def tell_attached(run: Run, why: str = "") -> None:
    """Tell the agent that this process has a session, and whether it accepts a live hand-over; `why` not, if known."""
    why = why or obstacle(run)
    run.tell(Attached(os.getpid(), not why, why, run.settings.image_file is not None))


def obstacle(run: Run) -> str:
    """Why this process cannot change its ranks while it trains, as far as cheap checks show; "" if it can."""
    if run.settings.live is False:
        return f"{Env.LIVE}=no"
    if run.settings.joined:
        return "the process group was made before the Session, which cannot recreate it for other ranks"
    if run.framework and (why := run.framework.obstacle()):
        return why
    if run.settings.run is None:
        return "this run has no number"
    if run.settings.master_is_elsewhere:
        return "torchrun has started the ranks, and keeps their store"
    if torch.cuda.is_available() and not run.settings.live:
        return ON_GPUS
    if run.joining and dist.is_initialized() and not has_placeholder():
        return "a process group that the script has made itself: the Session makes it with the first batch"
    if names := foreign(groups(run.registry.sharded_modules) if run.registry.sharded else ()):
        return f"process groups of the script's own: {', '.join(names[:3])}"
    return _registered(run) or next((why for replica in run.replicas if (why := replica.lasting)), "")


def has_placeholders(run: Run) -> bool:
    """Whether a newcomer's script needs ranks before its first batch: it gets a placeholder of them."""
    return bool(run.registry.sharded) or run.framework is not None


def _registered(run: Run) -> str:
    """Obstacles among the registered objects; "" for none."""
    if any(isinstance(thing, DistributedDataParallel) for thing in run.registry.things):
        return OWN_DDP
    if why := run.registry.shards_obstacle(run.world):
        return why
    if run.world == 1 and run.registry.sharded:
        return ONE_RANK
    if why := _torn_groups(run):
        return why
    if run.registry.sharded and (why := failure()):
        return why
    if run.collectives_before and has_placeholders(run):
        return EARLY_COLLECTIVES
    if SHARDED_OPTIMIZER in {kind.__name__ for thing in run.registry.things for kind in type(thing).__mro__}:
        return f"{SHARDED_OPTIMIZER}: its shards belong to the ranks that it was made with"
    return ""


def _torn_groups(run: Run) -> str:
    """What is wrong with the size of pods for tensor parallelism; "" for nothing. A pod of several ranks that leaves
    would take parts of groups along."""
    mesh = run.registry.mesh if run.registry.sharded and run.registry.tensor_parallel else None
    if mesh is None or not mesh.tears_rows(run.settings.pod):
        return ""
    return (
        f"groups of {mesh.row} ranks for tensor parallelism do not fit into pods of {run.settings.pod} ranks: "
        f"let processesPerReplica be a multiple of {mesh.row}"
    )


def kept_world(run: Run) -> str:
    """An error text if the script keeps groups that a change of ranks does not replace, dist.group.WORLD or those of a
    sharded model that is not registered; "" if it does not.

    Only for the main thread inside a call of the session: the script's own collectives hold the group meanwhile.
    """
    if run.registry.sharded and keeps_others(run.registry.sharded_modules):
        return UNREGISTERED
    inside = (vars(part) for replica in run.replicas for part in replica.inside)
    own = sum(value is dist.group.WORLD for values in inside for value in values.values())
    own += references(run.registry.sharded_modules) if run.registry.sharded else 0
    return "dist.group.WORLD is kept by the script: leave `group` out, or ask for it each time" if kept(own) else ""


def hidden_obstacle(run: Run) -> str:
    """The obstacle among objects that the session was not given; "" for none. From any thread."""
    return unknown_keeper(lambda: meshes(run.registry.sharded_modules) if run.registry.sharded else ())


def unknown_keeper(known: Callable[[], Iterable[Any]] = tuple) -> str:
    """The obstacle among the objects that keep their ranks, without the `known` ones; "" for none."""
    made = keepers.made()  # first: a part of a known mesh that another thread makes from now on is not among these
    own = {id(thing) for thing in known()}
    return next((why for thing, why in made if id(thing) not in own and not has_no_groups(thing)), "")
