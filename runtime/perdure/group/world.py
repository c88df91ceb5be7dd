"""Connects gloo groups by hand, and installs one of them as torch's WORLD.

A group made here is in none of torch's registries. So a thread can connect a new group while training uses the old one,
which is how the ranks of a running training change. Installing a connected group takes less than a millisecond. torch
has no public API for that; only this module uses the private names it needs.

Called by perdure.group.rendezvous at the start, by the session at a hand-over, and by perdure.group.found.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import CodeType, FunctionType, SimpleNamespace
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
ON_CPUS: Final = "gloo"
WITH_GPUS: Final = "cpu:gloo,cuda:nccl"
_FAKE: Final = "FakeProcessGroup"
"""torch's class of groups without connections."""
_OF_WORLD: Final = ("_backend", "_default_pg_init_method")
"""What torch notes of its WORLD beside it."""
_TABLES: Final = (
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "tags_to_pg",
    "pg_to_tag",
    "pg_coalesce_state",
    "pg_flight_recorder_hooks",
)
"""torch's tables of groups."""
_FIRST_NAME: Final = 1_000_000
_NUMBERING: Final = "_set_sequence_number_for_group"
"""What torch 2.13 calls on each of gloo's groups, and such a group refuses."""
_REFERENCES: Final = [0]
"""The number of torch's own references to the installed group."""
_CLAIMED: Final[list[weakref.ref[Any]]] = []
"""The last group that a session installed as torch's WORLD."""
_PLACEHOLDERS: Final[list[Any]] = []
"""What makes gloo's groups, while a placeholder is torch's WORLD."""
NO_MESSAGE: Final = "a message to another rank, or from one, before the first batch"
_GUARDED: Final[list[tuple[FunctionType, CodeType, dict[str, Any] | None]]] = []
"""torch's functions that have other code meanwhile, each with its own code and defaults."""


def connect_group(store: Store, name: str, *, rank: int, size: int, timeout: timedelta) -> Group:
    """Connect a group of `size` processes, which all call this with the same name. RuntimeError if one is missing."""
    before = backoff.open_files()
    group = dist.ProcessGroupGloo(PrefixStore(name, store), rank, size, timeout=timeout)
    backoff.limit(backoff.open_files() - before)
    return cast("Group", group)


def install(group: Group, store: Store, *, rank: int, world: int, timeout: timedelta, backend: str = ON_CPUS) -> None:
    """Make a connected group torch's default group; torch must not have one yet.

    `dist.get_backend()` returns gloo as usual. New groups of the script are made over `store`. With a `backend` for
    GPUs beside gloo, torch makes that part, which connects with its first collective.
    """
    lift_guard()
    found = getattr(distributed_c10d, GLOO, None)
    if found is None:
        raise UserError("this torch has no gloo: install one with torch.distributed")

    setattr(distributed_c10d, GLOO, _class_making(lambda *_, **__: group, found))
    try:
        dist.init_process_group(
            backend, store=PrefixStore("world", store), rank=rank, world_size=world, timeout=timeout
        )
    finally:
        setattr(distributed_c10d, GLOO, found)
    _REFERENCES[0] = sys.getrefcount(dist.group.WORLD)
    claim()


def _class_making(make: Callable[..., Any], found: Any) -> type:
    """What torch gets for a while in place of `found`, its class of gloo's groups: calling it returns what `make` does.

    A class, because torch 2.13 asks whether what it got is of this class.
    """

    class Making(type):
        def __call__(cls, *args: Any, **named: Any) -> Any:
            return make(*args, **named)

        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, found) or type(thing).__name__ == _FAKE

    return Making(GLOO, (), {})


def install_placeholder(*, rank: int, world: int) -> None:
    """Make a group without connections torch's default group, with the rank and size that this process will have.

    A model can be sharded over it and over a mesh of it, whose groups are such groups, too. Collectives and messages
    fail: no other rank is there yet.
    """
    lift_guard()
    store = dist.HashStore()  # type: ignore[attr-defined]
    install(_unconnected(None, rank, world), store, rank=rank, world=world, timeout=timedelta(seconds=1))
    found = getattr(distributed_c10d, GLOO)
    _PLACEHOLDERS.append(found)
    setattr(distributed_c10d, GLOO, _class_making(_unconnected, found))
    for message in (dist.isend, dist.irecv):  # all others call these; the group itself would drop a message in silence
        _replace(inspect.unwrap(message), _refuse_message)


def install_echo(rank: int, world: int) -> None:
    """Make a group without connections torch's default group, whose collectives answer as if each rank had what this
    one has. Only in `another_world`."""
    make = partial(_unconnected, answers=True)
    group = make(None, rank, world)
    install(group, dist.HashStore(), rank=rank, world=world, timeout=timedelta(seconds=1))  # type: ignore[attr-defined]
    setattr(distributed_c10d, GLOO, _class_making(make, getattr(distributed_c10d, GLOO)))


@contextmanager
def another_world() -> Iterator[None]:
    """Meanwhile torch has none of its groups, and what is made here ends with it. Only for the main thread, while no
    other one asks torch for its groups."""
    from torch._C._distributed_c10d import _unregister_process_group  # noqa: PLC0415 - not needed by each process

    there, gloo = distributed_c10d._world, getattr(distributed_c10d, GLOO)  # noqa: SLF001 - meant to be replaced
    kept = {name: getattr(distributed_c10d, name) for name in _OF_WORLD}
    lists = [(one, list(one)) for one in (_REFERENCES, _CLAIMED, _PLACEHOLDERS, _GUARDED)]
    replaced = [(plain, plain.__code__, plain.__kwdefaults__) for plain, _, _ in _GUARDED]
    hook = sys.excepthook
    lift_guard()
    if _PLACEHOLDERS:
        setattr(distributed_c10d, GLOO, _PLACEHOLDERS[0])
    _PLACEHOLDERS.clear()
    distributed_c10d._world = here = _empty_world(there)  # noqa: SLF001
    try:
        yield
    finally:
        for name in here.pg_names.values():
            _unregister_process_group(name)
        distributed_c10d._world = there  # noqa: SLF001
        distributed_c10d._update_default_pg(there.default_pg)  # noqa: SLF001 - it also tells C++ the rank
        sys.excepthook = hook
        lift_guard()
        for one, before in lists:
            one[:] = before
        for plain, code, defaults in replaced:
            plain.__code__, plain.__kwdefaults__ = code, defaults
        for name, value in {**kept, GLOO: gloo}.items():
            setattr(distributed_c10d, name, value)


def _empty_world(world: Any) -> Any:
    """One like this without groups. Their names are others than those of the living groups."""
    tables: dict[str, Any] = {name: {} for name in _TABLES if hasattr(world, name)}
    return SimpleNamespace(**tables, comms=[], default_pg=None, group_count=_FIRST_NAME)


def has_placeholder() -> bool:
    """Whether torch's WORLD is a placeholder."""
    return bool(_PLACEHOLDERS)


def _unconnected(_: Any, rank: int, size: int, *__: Any, answers: bool = False, **___: Any) -> Group:
    """What torch gets in place of a gloo group. Its collectives fail unless it `answers` them itself."""
    from torch._C._distributed_c10d import FakeProcessGroup  # noqa: PLC0415 - not every torch has it

    options = FakeProcessGroup.Options()
    options.error_on_collective = not answers
    setattr(FakeProcessGroup, _NUMBERING, lambda _: None)
    return cast("Group", FakeProcessGroup._create_internal(rank, size, options))  # noqa: SLF001 - there is no public way


@contextmanager
def handing_out(groups: Sequence[Group]) -> Iterator[None]:
    """Meanwhile torch gets these connected groups, in this order, where it would connect new ones."""
    found, left = getattr(distributed_c10d, GLOO), iter(groups)
    setattr(distributed_c10d, GLOO, _class_making(lambda *_, **__: next(left), found))
    try:
        yield
    finally:
        setattr(distributed_c10d, GLOO, found)


def _refuse_message(*_: Any, **__: Any) -> Any:
    raise RuntimeError(NO_MESSAGE)


def collectives_so_far() -> int:
    """How many collectives and messages torch's groups have carried on this rank; 0 without a WORLD."""
    if not dist.is_initialized() or has_placeholder():
        return 0
    groups: list[Any] = list(distributed_c10d._world.pg_map)  # noqa: SLF001 - there is no public list
    return sum(int(group._get_sequence_number_for_group()) for group in groups)  # noqa: SLF001


def guard_world(ask: Callable[[], None]) -> None:
    """Call `ask` before the script or its device mesh makes torch's WORLD, until `lift_guard` or `install` is called.

    If `ask` makes WORLD, the script gets that one. It is called in the main thread, and may raise. torch's function is
    given other code, because scripts import it by name, as torch's own modules do.
    """
    plain = inspect.unwrap(dist.init_process_group)
    make = FunctionType(plain.__code__, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
    make.__kwdefaults__ = plain.__kwdefaults__

    def made(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            ask()
        if not dist.is_initialized():
            make(*args, **kwargs)

    _replace(plain, made)


def _replace(plain: FunctionType, made: Callable[..., None]) -> None:
    """Have `made` called in place of a function of torch's."""
    _GUARDED.append((plain, plain.__code__, plain.__kwdefaults__))
    plain.__code__, plain.__kwdefaults__ = _instead.__code__, {"_made": made}


def _instead(*args: Any, _made: Callable[..., None], **kwargs: Any) -> None:
    """The code of torch's function while it is replaced. It refers to nothing of this module, whose names it would not
    find."""
    _made(*args, **kwargs)


def lift_guard() -> None:
    """Give torch's functions their own code back."""
    while _GUARDED:
        plain, code, defaults = _GUARDED.pop()
        plain.__code__, plain.__kwdefaults__ = code, defaults


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
    while _PLACEHOLDERS:
        setattr(distributed_c10d, GLOO, _PLACEHOLDERS.pop())
        lift_guard()
    kept = list(distributed_c10d._world.pg_map)  # noqa: SLF001 - there is no public list
    if dist.is_initialized():
        dist.destroy_process_group()
    return kept


def kept(known: int) -> bool:
    """Whether the installed group has more references than torch's and `known` others. Frames count."""
    return dist.is_initialized() and sys.getrefcount(dist.group.WORLD) > _REFERENCES[0] + known


def foreign(known: Collection[Any] = ()) -> list[str]:
    """Names of the script's own groups, which a change of ranks would not replace. `known`: groups that it would."""
    own = {id(group) for group in known} | ({id(dist.group.WORLD)} if dist.is_initialized() else set())
    groups = list(distributed_c10d._world.pg_map)  # noqa: SLF001 - see above
    return [str(group.group_name) for group in groups if id(group) not in own]
