"""A process group that existed before the session, made by a launcher, a framework or the script.

It stays torch's WORLD, and its maker destroys it. The session makes its own two groups beside it, for messages and for
the agreement. It meets the other ranks in the found group's TCP store, which every rank has reached already. Called by
the session before it meets other ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from perdure.errors import UserError
from perdure.group.gloo import peer_lost
from perdure.group.world import made_by_others, store_of_world
from perdure.wire.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

COUNT_KEY: Final = "perdure-sessions"


def with_found_group(settings: Settings) -> Settings:
    """The settings for a found group; its rank and world count if the environment gives none."""
    if not made_by_others():
        return settings
    if settings.run is None and settings.world == 1:
        settings = replace(settings, rank=dist.get_rank(), world=dist.get_world_size())
    return replace(settings, joined=1)


def meet_in_its_store(settings: Settings) -> tuple[Settings, Store | None]:
    """The settings with the found group's store as meeting place, and that store, which must be kept: one is the
    server.

    Raises UserError if the group does not match the environment, or has no store to connect to.
    """
    found, given = (dist.get_rank(), dist.get_world_size()), (settings.rank, settings.world)
    if found != given:
        raise UserError(
            f"torch.distributed is initialised already, as rank {found[0]} of {found[1]}, and RANK and WORLD_SIZE say "
            f"{given[0]} of {given[1]}: initialise it with these, or remove init_process_group"
        )
    if settings.world == 1:
        return settings, None
    store = store_of_world()
    if not isinstance(store, dist.TCPStore):  # type: ignore[attr-defined]
        raise UserError(
            f"torch.distributed is initialised over a {type(store).__name__}, in which a session cannot meet the other "
            f"ranks: initialise it with init_method='env://' or 'tcp://...', or remove init_process_group"
        )
    with peer_lost("the sessions of this process group were counted"):
        count = store.add(COUNT_KEY, 1)  # a session begins with all ranks, so all count once before one counts twice
    joined = -(-count // settings.world)
    return replace(settings, joined=joined, master=(store.host, store.port), master_is_elsewhere=True), store
