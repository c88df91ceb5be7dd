"""Connects gloo groups by hand, and installs one of them as torch's WORLD.

A group made here is in none of torch's registries. So a thread can connect a new group while training uses the old one,
which is how the ranks of a running training change. Installing a connected group takes less than a millisecond. torch
has no public API for that; only this module uses the private names it needs.

Called by perdure.group.rendezvous at the start, by the session at a hand-over, and by perdure.group.found.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore

from perdure.errors import UserError
from perdure.group import backoff

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Group(Protocol):
    """A process group, of torch or connected here.

    Its collectives return a work to wait for, and raise RuntimeError if they fail.
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
"""The number of torch's own references to the installed group."""
_CLAIMED: Final[list[weakref.ref[Any]]] = []
"""The last group that a session installed as torch's WORLD."""
MAKES_WORLD: Final = "init_process_group"
FINDS_RANKS: Final = "rendezvous"
_GUARDED: Final[dict[tuple[Any, str], Any]] = {}
"""torch's own functions, by module and name, while others stand in for them."""


def connect_group(store: Store, name: str, *, rank: int, size: int, timeout: timedelta) -> Group:
    """Connect a group of `size` processes, which all call this with the same name. RuntimeError if one is missing."""
    before = backoff.open_files()
    group = dist.ProcessGroupGloo(PrefixStore(name, store), rank, size, timeout=timeout)
    backoff.limit(backoff.open_files() - before)
    return cast("Group", group)


def install(group: Group, store: Store, *, rank: int, world: int, timeout: timedelta) -> None:
    """Make a connected group torch's default group; torch must not have one yet.

    `dist.get_backend()` returns gloo as usual. New groups of the script are made over `store`.
    """
    lift_guard()
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


def guard_world(ask: Callable[[], None], refuse: Callable[[], None]) -> None:
    """Call `ask` before the script or its device mesh makes torch's WORLD, until `lift_guard` or `install` is called.

    If `ask` makes WORLD, the script gets that one. `refuse` raises: it is called for scripts that imported torch's
    function by name, which would wait for ranks that never come. Both are called in the main thread.
    """
    make, find = dist.init_process_group, getattr(distributed_c10d, FINDS_RANKS)

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            ask()
        if not dist.is_initialized():
            make(*args, **kwargs)

    @wraps(find)
    def found(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            refuse()
        return find(*args, **kwargs)

    for module in (dist, distributed_c10d, device_mesh):
        _GUARDED[module, MAKES_WORLD] = make
        setattr(module, MAKES_WORLD, made)
    _GUARDED[distributed_c10d, FINDS_RANKS] = find
    setattr(distributed_c10d, FINDS_RANKS, found)


def lift_guard() -> None:
    """Give torch its own functions back."""
    while _GUARDED:
        (module, name), own = _GUARDED.popitem()
        setattr(module, name, own)


def claim() -> None:
    """Record that a session made torch's WORLD, so that the next session does not take it for the script's."""
    _CLAIMED[:] = [weakref.ref(dist.group.WORLD)]


def made_by_others() -> bool:
    """Whether torch has a WORLD that no session made."""
    return dist.is_initialized() and all(claimed() is not dist.group.WORLD for claimed in _CLAIMED)


def store_of_world() -> Store:
    """The store that torch's WORLD was made over, without torch's prefixes."""
    store = distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def uninstall() -> list[Any]:
    """Remove torch's groups, and return them; they live as long as the list (perdure.group.old_groups)."""
    kept = list(distributed_c10d._world.pg_map)  # noqa: SLF001 - there is no public list
    if dist.is_initialized():
        dist.destroy_process_group()
    return kept


def kept(known: int) -> bool:
    """Whether the installed group has more references than torch's and `known` others. Frames count."""
    return dist.is_initialized() and sys.getrefcount(dist.group.WORLD) > _REFERENCES[0] + known


def foreign() -> list[str]:
    """Names of the script's own groups, which a change of ranks would not replace."""
    own = dist.group.WORLD if dist.is_initialized() else None
    groups = distributed_c10d._world.pg_map  # noqa: SLF001 - see above
    return [str(group.group_name) for group in groups if group is not own]
