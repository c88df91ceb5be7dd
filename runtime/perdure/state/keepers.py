"""What keeps the ranks that it was made with, noted when it is made.

It could be looked for among all objects there are (`gc.get_objects()`), and was, in a thread: while that list lives, a
tuple that the main thread is filling has a second holder, and CPython ends the filling with `SystemError: bad argument
to internal function`. That is the script's `tuple(...)`, and every sample of a TensorDataset is one. So nothing here
takes hold of objects of the script that it has not been given.

It is `__new__` that notes: a copy, what is unpickled, and an object whose class does not call `__init__` keep their
ranks as well. What was made before this module was imported is found by its class.

Called by perdure.live.liveness, and by perdure.state.wrapping for what it makes itself.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

OWN_DDP: Final = "a DistributedDataParallel that the script has made itself: wrap the model with session.wrap"
KEEPERS: Final[dict[type, str]] = {}
"""Types whose objects keep the ranks they were made with, those of their subclasses too."""
_MADE: Final[dict[int, weakref.ref[Any]]] = {}
"""From any thread; none walks it while another could change it."""


def watch(kind: type, why: str) -> None:
    """Notes each object of this kind from now on; `why` is what is to be said of it."""
    KEEPERS[kind] = why
    kind.__new__ = _noting(kind)  # type: ignore[method-assign]


def disregard(thing: Any) -> None:
    """This one goes over to other ranks: the session has made it."""
    _MADE.pop(id(thing), None)


def made() -> list[tuple[Any, str]]:
    """All that are alive, each with what is to be said of it. From any thread."""
    alive = (reference() for reference in list(_MADE.values()))
    return [(thing, why) for thing in alive for kind, why in KEEPERS.items() if isinstance(thing, kind)]


def _note(thing: Any) -> None:
    number = id(thing)
    _MADE[number] = weakref.ref(thing, lambda _: _MADE.pop(number, None))


def _noting(kind: Any) -> Callable[..., Any]:
    def __new__(cls: Any, *args: Any, **named: Any) -> Any:  # noqa: N807 - it becomes the class's
        make = super(kind, cls).__new__
        thing = make(cls) if make is object.__new__ else make(cls, *args, **named)
        _note(thing)
        return thing

    __new__.__signature__ = inspect.signature(kind.__init__)  # type: ignore[attr-defined]
    return __new__


def _made_before() -> Iterator[Any]:
    """Each object refers to its class; nothing else is held while they are looked for."""
    kinds: list[Any] = list(KEEPERS)
    for kind in kinds:
        kinds.extend(below for below in kind.__subclasses__() if below not in kinds)
    return (found for found in gc.get_referrers(*kinds) if isinstance(found, tuple(KEEPERS)))


watch(DistributedDataParallel, OWN_DDP)
watch(DeviceMesh, "a DeviceMesh of the script's own")
watch(DistributedSampler, "a DistributedSampler: use session.loader")
for _thing in _made_before():
    _note(_thing)
