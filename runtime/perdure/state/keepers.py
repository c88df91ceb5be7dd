"""Notes objects that keep the ranks they were made with, when they are made.

They could also be found among all objects (`gc.get_objects()`), as was done before, in a thread. But while that list
exists, a tuple that the main thread is filling has a second holder, and CPython ends the filling with `SystemError: bad
argument to internal function`. That can be the script's `tuple(...)`, and every sample of a TensorDataset is one. So
this module holds no object of the script that it was not given.

`__new__` notes them, because copies, unpickled objects, and objects of a class that does not call `__init__` keep their
ranks as well. Objects that were made before the import of this module are found through their class.

Called by perdure.live.liveness, by perdure.state.wrapping for what it makes itself, and by perdure.state.fully_sharded
for what a compiler makes, and for FSDP's notes of meshes.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

OWN_DDP: Final = "a DistributedDataParallel that the script has made itself: wrap the model with session.wrap"
KEEPERS: Final[dict[type, str]] = {}
"""Types whose objects, also of subclasses, keep the ranks they were made with; with the words for a message."""
_MADE: Final[dict[int, weakref.ref[Any]]] = {}
"""Any thread may change it, so none iterates over it directly."""
_COPIES: Final[dict[type, tuple[Callable[[], bool], str]]] = {}
"""For a type, whether something else than the script makes copies now, and the words for a message about them."""
_COPIED: Final[dict[int, str]] = {}
"""The words for each such copy, by its id."""
_ALIVE: Final[dict[type, dict[int, weakref.ref[Any]]]] = {}
"""For each kind that `alive` was asked for, its objects by their ids."""


def watch(kind: type, why: str) -> None:
    """Notes each object of this kind from now on; `why` is the text for messages."""
    KEEPERS[kind] = why
    kind.__new__ = _noting(kind)  # type: ignore[method-assign]


def watch_copies(kind: type, when: Callable[[], bool], why: str) -> None:
    """Copies of objects of this kind that are made while `when()` is true have this text for messages."""
    _COPIES[kind] = when, why


def disregard(thing: Any) -> None:
    """Forgets this object: the session has made it, and takes it to other ranks."""
    _MADE.pop(id(thing), None)


def made() -> list[tuple[Any, str]]:
    """All that are alive, each with its text for messages. From any thread."""
    return [
        (thing, _COPIED.get(id(thing), why))
        for thing in _living(_MADE)
        for kind, why in KEEPERS.items()
        if isinstance(thing, kind)
    ]


def alive(kind: type) -> list[Any]:
    """All objects of this kind. The first call looks at all objects of the process, and is for the main thread; later
    ones know what was made since."""
    if kind not in _ALIVE:
        found = _ALIVE[kind] = {}
        note = partial(_remember, found)
        kind.__new__ = _noting(kind, note)  # type: ignore[method-assign]
        for thing in _made_before([kind]):
            note(thing)
    return list(_living(_ALIVE[kind]))


def _living(noted: Mapping[int, weakref.ref[Any]]) -> Iterator[Any]:
    """Those that are alive. Any thread may note more meanwhile."""
    return (thing for reference in list(noted.values()) if (thing := reference()) is not None)


def _remember(noted: dict[int, weakref.ref[Any]], thing: Any, **_: Any) -> None:
    """Notes it for as long as it is alive."""
    number = id(thing)
    noted[number] = weakref.ref(thing, lambda _: noted.pop(number, None))


def _note(thing: Any, *, copied: bool = False) -> None:
    number = id(thing)
    _COPIED.pop(number, None)  # of an earlier object
    for kind, (when, why) in _COPIES.items() if copied else ():
        if isinstance(thing, kind) and when():
            _COPIED[number] = why
    _remember(_MADE, thing)


def _noting(kind: Any, note: Callable[..., None] = _note) -> Callable[..., Any]:
    def __new__(cls: Any, *args: Any, **named: Any) -> Any:  # noqa: N807 - it becomes the class's
        make = super(kind, cls).__new__
        thing = make(cls) if make is object.__new__ else make(cls, *args, **named)
        note(thing, copied=not args and not named)
        return thing

    __new__.__signature__ = inspect.signature(kind.__init__)  # type: ignore[attr-defined]
    return __new__


def _made_before(kinds: Sequence[type]) -> Iterator[Any]:
    """Each object refers to its class. Nothing else is held meanwhile."""
    every: list[Any] = list(kinds)
    for kind in every:
        every.extend(below for below in kind.__subclasses__() if below not in every)
    return (found for found in gc.get_referrers(*every) if isinstance(found, tuple(kinds)))


watch(DistributedDataParallel, OWN_DDP)
watch(DeviceMesh, "a DeviceMesh of the script's own")
watch(DistributedSampler, "a DistributedSampler: use session.loader")
for _thing in _made_before(list(KEEPERS)):
    _note(_thing)
