"""A Session whose loop a framework drives: what an adapter needs in addition to what a script uses.

Adapters reach the rooms below the session through this module alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist

from perdure.checkpoint.codec import decode, encode
from perdure.checkpoint.state import NewCommit
from perdure.console import say
from perdure.group.collectives import on_all
from perdure.live.liveness import tell_attached
from perdure.loop.data.loader import Loader
from perdure.loop.framework import Framework
from perdure.loop.hooks import called
from perdure.loop.position.stopping import Limit, StopCondition
from perdure.loop.reports import ReportFunction, read_values
from perdure.session.session import Session, core_of
from perdure.state.keepers import disregard
from perdure.state.registry import Stateful
from perdure.state.rng import apply as set_generators
from perdure.state.rng import capture as get_generators
from perdure.state.wrapping import Replica
from perdure.wire import read_resume_from

__all__ = [
    "Framework",
    "Limit",
    "Loader",
    "NewCommit",
    "Replica",
    "ReportFunction",
    "Session",
    "StopCondition",
    "called",
    "disregard",
    "drive",
    "get_generators",
    "joins",
    "keep",
    "need_ranks",
    "of_all_ranks",
    "own_collectives",
    "read_resume_from",
    "read_values",
    "root",
    "say",
    "set_generators",
    "step_in_work",
]


def drive(session: Session, framework: Framework) -> None:
    """`framework` drives the loop."""
    run = core_of(session).run
    run.framework = framework
    tell_attached(run)


def joins(session: Session) -> bool:
    """Whether this process waits to join a living run, and has no other ranks yet."""
    return core_of(session).run.joining


def need_ranks(session: Session) -> None:
    """The framework asks for torch's process group now. A process that joins a living run waits here until it is known
    whether it joins live; then torch's WORLD is a placeholder, whose collectives fail. Otherwise the ranks have met."""
    core = core_of(session)
    if core.run.joining and core.run.world > 1 and not dist.is_initialized():
        core.need_world()


def own_collectives(session: Session) -> AbstractContextManager[None]:
    """Collectives in the block are the framework's own, which a process that joins a living run does without. Others,
    before the first batch, keep the ranks from changing live."""
    return core_of(session).run.own_collectives()


def keep(session: Session, name: str, state: Stateful, before_save: Callable[[], None]) -> None:
    """Saves the framework's own state under `name`. All ranks call `before_save` when a save, or its rehearsal, is
    about to read that state; there they may combine their parts.

    Rank 0's state_dict is saved; the others' are ignored.
    """
    run = core_of(session).run
    run.registry.add(name, state, loose=True)
    run.before_save = before_save


def of_all_ranks(session: Session, name: str, own: Callable[[], Any]) -> list[Any]:
    """Returns what `own` gives on each rank, by rank, with tensors on the CPU: anything that a checkpoint can hold.
    Collective.

    An error on one rank is raised on all; it refers to the value as `name`.
    """
    run = core_of(session).run
    _, values = on_all(run.peers, f"tells {name}", lambda: (None, encode(own(), name)))
    return [decode(found) for found in values]


def step_in_work(session: Session) -> int:
    """The step whose batches the script has, or else the last finished one."""
    return core_of(session).run.progress.step_in_work


def root(session: Session) -> str:
    """Where its checkpoints are."""
    return core_of(session).run.settings.root
