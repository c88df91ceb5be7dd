"""A Session whose loop a framework drives: what an adapter needs in addition to what a script uses.

Adapters reach the rooms below the session through this module alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.checkpoint.codec import decode, encode
from perdure.checkpoint.state import NewCommit
from perdure.group.collectives import on_all
from perdure.live.liveness import tell_attached
from perdure.loop.data.loader import Loader
from perdure.loop.position.stopping import Limit, StopCondition
from perdure.loop.reports import ReportFunction
from perdure.session.session import Session, core_of
from perdure.state.registry import Stateful
from perdure.state.rng import apply as set_generators
from perdure.state.rng import capture as get_generators
from perdure.state.wrapping import WORLD_WITH_ONE_ORDER, mean_in_rank_order
from perdure.wire import Env, read_resume_from

__all__ = [
    "Env",
    "Limit",
    "Loader",
    "NewCommit",
    "ReportFunction",
    "Session",
    "StopCondition",
    "drive",
    "get_generators",
    "keep",
    "mean_in_rank_order",
    "of_all_ranks",
    "offers_hand_over",
    "read_resume_from",
    "root",
    "set_generators",
    "sums_in_rank_order",
]


def drive(session: Session, framework: str) -> None:
    """`framework` drives the loop: its ranks change in place, by a save and a restart, never between two batches."""
    run = core_of(session).run
    run.driven_by = framework
    tell_attached(run)


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


def root(session: Session) -> str:
    """Where its checkpoints are."""
    return core_of(session).run.settings.root


def sums_in_rank_order(session: Session) -> bool:
    """Whether gradients have to be added in rank order. With more than two ranks, a restart changes the order
    otherwise."""
    return core_of(session).deterministic and session.world > WORLD_WITH_ONE_ORDER


def offers_hand_over(session: Session) -> bool:
    """Whether a process may be started to join this run while it trains, by an operator that does not know better."""
    settings = core_of(session).run.settings
    return settings.live and settings.run is not None
