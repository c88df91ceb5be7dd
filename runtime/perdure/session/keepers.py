"""What keeps the ranks that it was made with, noted when it is made.

It could be looked for among all objects there are (`gc.get_objects()`), and was, in a thread: while that list lives, a
tuple that the main thread is filling has a second holder, and CPython ends the filling with `SystemError: bad argument
to internal function`. That is the script's `tuple(...)`, and every sample of a TensorDataset is one. So nothing here
takes hold of objects of the script that it has not been given.

Called by perdure.session.liveness. What was made before this module was imported is not known.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

OWN_DDP: Final = "a DistributedDataParallel that the script has made itself: wrap the model with session.wrap"
KEEPERS: Final[dict[type, str]] = {
    DistributedDataParallel: OWN_DDP,
    DeviceMesh: "a DeviceMesh of the script's own",
    DistributedSampler: "a DistributedSampler: use session.loader",
}
"""Types whose objects keep the ranks they were made with, those of their subclasses too."""
_MADE: Final[dict[int, weakref.ref[Any]]] = {}


def made() -> list[tuple[Any, str]]:
    """All that are alive, each with what is to be said of it. From any thread."""
    alive = (reference() for reference in list(_MADE.values()))
    return [(thing, why) for thing in alive for kind, why in KEEPERS.items() if isinstance(thing, kind)]


def _noting(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def noting(self: Any, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        number = id(self)
        _MADE[number] = weakref.ref(self, lambda _: _MADE.pop(number, None))

    return noting


for _kind in KEEPERS:
    _kind.__init__ = _noting(_kind.__init__)  # type: ignore[misc]
