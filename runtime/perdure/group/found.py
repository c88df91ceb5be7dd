"""A process group that was there before the session: made by a launcher, by a framework, or by the script itself.

It stays torch's WORLD, and whoever made it ends it. The session makes its own two groups beside it, for messages and
for the agreement, and meets the other ranks in the TCP store that the found one was made over: every rank has reached
it already, whatever the environment says. Called by the session, before it meets anybody.
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
    """The same in a group that was there before; its rank and world count where nobody else has said any."""
    if not made_by_others():
        return settings
    if settings.run is None and settings.world == 1:
        settings = replace(settings, rank=dist.get_rank(), world=dist.get_world_size())
    return replace(settings, joined=1)


def meet_in_its_store(settings: Settings) -> tuple[Settings, Store | None]:
    """Where the ranks of the found group meet, and the store that is to be kept: one rank's may be the server itself.

    UserError where the group is another than the environment says, or has no store to connect to.
    """
    found, told = (dist.get_rank(), dist.get_world_size()), (settings.rank, settings.world)
    if found != told:
        raise UserError(
            f"torch.distributed is initialised already, as rank {found[0]} of {found[1]}, and RANK and WORLD_SIZE say "
            f"{told[0]} of {told[1]}: initialise it with these, or remove init_process_group"
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
        count = store.add(COUNT_KEY, 1)  # nobody is counted twice before all are: a session begins with all ranks
    joined = -(-count // settings.world)
    return replace(settings, joined=joined, master=(store.host, store.port), master_is_elsewhere=True), store
