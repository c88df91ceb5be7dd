"""Notes objects that keep the ranks they were made with, when they are made.

They could also be found among all objects (`gc.get_objects()`), as was done before, in a thread. But while that list
exists, a tuple that the main thread is filling has a second holder, and CPython ends the filling with `SystemError: bad
argument to internal function`. That can be the script's `tuple(...)`, and every sample of a TensorDataset is one. So
this module holds no object of the script that it was not given.

`__new__` notes them, because copies, unpickled objects, and objects of a class that does not call `__init__` keep their
ranks as well. Objects that were made before the import of this module are found through their class.

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
"""Types whose objects, also of subclasses, keep the ranks they were made with; with the words for a message."""
_MADE: Final[dict[int, weakref.ref[Any]]] = {}
"""Any thread may change it, so none iterates over it directly."""


def watch(kind: type, why: str) -> None:
    """Notes each object of this kind from now on; `why` is the text for messages."""
    KEEPERS[kind] = why
    kind.__new__ = _noting(kind)  # type: ignore[method-assign]


def disregard(thing: Any) -> None:
    """Forgets this object: the session has made it, and takes it to other ranks."""
    _MADE.pop(id(thing), None)


def made() -> list[tuple[Any, str]]:
    """All that are alive, each with its text for messages. From any thread."""
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
    """Each object refers to its class. Nothing else is held meanwhile."""
    kinds: list[Any] = list(KEEPERS)
    for kind in kinds:
        kinds.extend(below for below in kind.__subclasses__() if below not in kinds)
    return (found for found in gc.get_referrers(*kinds) if isinstance(found, tuple(KEEPERS)))


watch(DistributedDataParallel, OWN_DDP)
watch(DeviceMesh, "a DeviceMesh of the script's own")
watch(DistributedSampler, "a DistributedSampler: use session.loader")
for _thing in _made_before():
    _note(_thing)
