"""Groups of gloo that are connected by hand, and how one of them becomes torch's WORLD.

A group made here is in no registry of torch's, so another can be connected in a thread while training uses the
first: that is how the ranks of a living training change. Installing one takes what is connected already, so it costs
less than a millisecond. torch has no public word for that: the names it needs of torch are used here and nowhere else.

Called by perdure.group.rendezvous at the start, by the session at a hand-over, and by perdure.group.found.
"""

from __future__ import annotations

import sys
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore

from perdure.errors import UserError
from perdure.group import backoff

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Group(Protocol):
    """What collectives are called on: a group of torch's own, or one connected here. Each gives something to wait for.

    A failed one raises RuntimeError.
    """

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Any: ...

    def allreduce(self, tensors: list[Tensor], options: Any = ..., /) -> Any: ...

    def alltoall_base(
        self, output: Tensor, own: Tensor, output_sizes: list[int], own_sizes: list[int], options: Any, /
    ) -> Any: ...

    def broadcast(self, tensors: list[Tensor], options: Any, /) -> Any: ...

    def send(self, tensors: list[Tensor], to: int, tag: int, /) -> Any: ...

    def recv(self, tensors: list[Tensor], source: int, tag: int, /) -> Any: ...


GLOO: Final = "ProcessGroupGloo"
_REFERENCES: Final = [0]
"""To the group that is installed, from torch's own tables."""
_CLAIMED: Final[list[weakref.ref[Any]]] = []
"""The group that a session has made torch's WORLD last."""


def connect_group(store: Store, name: str, *, rank: int, size: int, timeout: timedelta) -> Group:
    """A group of `size` processes, connected: each calls this with the same name. RuntimeError if one does not come."""
    before = backoff.open_files()
    group = dist.ProcessGroupGloo(PrefixStore(name, store), rank, size, timeout=timeout)
    backoff.limit(backoff.open_files() - before)
    return cast("Group", group)


def install(group: Group, store: Store, *, rank: int, world: int, timeout: timedelta) -> None:
    """Makes a connected group what torch's collectives use where no group is given. None is there yet.

    `dist.get_backend()` says gloo, as ever; further groups of the script are made over `store`.
    """
    found = getattr(distributed_c10d, GLOO, None)
    if found is None:
        raise UserError("this torch has no gloo: install one with torch.distributed")

    setattr(distributed_c10d, GLOO, lambda *_, **__: group)
    try:
        dist.init_process_group("gloo", store=PrefixStore("world", store), rank=rank, world_size=world, timeout=timeout)
    finally:
        setattr(distributed_c10d, GLOO, found)
    _REFERENCES[0] = sys.getrefcount(dist.group.WORLD)
    claim()


def claim() -> None:
    """torch's WORLD is a session's own: whoever comes next has not found it."""
    _CLAIMED[:] = [weakref.ref(dist.group.WORLD)]


def made_by_others() -> bool:
    """Whether there is a WORLD, and no session has made it."""
    return dist.is_initialized() and all(claimed() is not dist.group.WORLD for claimed in _CLAIMED)


def store_of_world() -> Store:
    """What torch's WORLD was made over, as whoever made it gave it."""
    store = distributed_c10d._get_default_store()  # noqa: SLF001 - nothing else tells it
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def uninstall() -> list[Any]:
    """Takes torch's groups away. What is returned keeps them alive (perdure.group.old_groups)."""
    kept = list(distributed_c10d._world.pg_map)  # noqa: SLF001 - nothing else tells them all
    if dist.is_initialized():
        dist.destroy_process_group()
    return kept


def kept(known: int) -> bool:
    """Whether anybody holds on to the installed group beside torch and `known` others; a frame does, too."""
    return dist.is_initialized() and sys.getrefcount(dist.group.WORLD) > _REFERENCES[0] + known


def foreign() -> list[str]:
    """Groups of the script's own, which a change of ranks would leave behind."""
    own = dist.group.WORLD if dist.is_initialized() else None
    groups = distributed_c10d._world.pg_map  # noqa: SLF001 - see above
    return [str(group.group_name) for group in groups if group is not own]
