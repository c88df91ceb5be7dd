"""Whether anything has written to parameters or optimizer state, also past torch: through `.data` or a NumPy array.

torch counts most writes to a tensor, and those not. So a few elements of the parameters are kept, spread over all of
them: weight noise, weight decay by hand or a perturbation for a second backward pass changes them. What writes to some
rows alone, past torch's count, may be missed. It costs a fraction of a millisecond. Called by
perdure.loop.survivor_snapshots at each place where the run may stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_, methodcaller
from typing import Final

import numpy as np
import torch
from torch import Tensor

ELEMENTS: Final = 16
"""Of one parameter."""
PARAMETERS: Final = 128
"""Of more, so many are looked at."""
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By an element's size: as such numpy knows each kind of number, and it is compared bit for bit, a NaN too."""
_VERSION: Final = attrgetter("_version")
"""How often torch has seen it written to: there is no public word for that."""
_ADDRESS: Final = methodcaller("data_ptr")


@dataclass(frozen=True)
class Fingerprint:
    """Some tensors as they were at one moment."""

    versions: list[int]
    elements: list[bytes]


class Fingerprints:
    """Looks at tensors that are mostly the same ones each time."""

    def __init__(self) -> None:
        self._some: Sequence[Tensor] = ()
        """The parameters of which elements were looked at last."""
        self._at: list[int] = []
        """Where each of them lies."""
        self._reads: list[Callable[[], bytes]] = []
        """What gives the elements of those of which any can be seen."""

    def look(self, parameters: Sequence[Tensor], others: Iterable[Tensor] = ()) -> Fingerprint:
        """What they are now; of `others` only what torch counts."""
        versions = [*map(_VERSION, parameters), *map(_VERSION, others)]
        apart = -(-len(parameters) // PARAMETERS) or 1
        self._find(parameters[::apart])
        return Fingerprint(versions, [read() for read in self._reads])

    def _find(self, some: Sequence[Tensor]) -> None:
        """Views are made anew only where a parameter is another one, or lies elsewhere."""
        at = list(map(_ADDRESS, some))
        if at != self._at or not all(map(is_, some, self._some)):
            views = [view for view in map(_spread, some) if view is not None]
            self._some, self._at, self._reads = some, at, [_read_of(view) for view in views]

    def forget(self) -> None:
        """Keeps none of them alive any more."""
        self._some, self._at, self._reads = (), [], []


def elements_of(tensor: Tensor) -> bytes | None:
    """Some of its elements, as they are now; None where there are none to be seen."""
    view = _spread(tensor)
    return None if view is None else _read_of(view)()


def _read_of(view: Tensor) -> Callable[[], bytes]:
    """By numpy, which takes less of a step than torch's operators; `Tensor.numpy` would forbid a resize for ever."""
    if view.device.type == "cpu" and type(view) is Tensor:
        read: Callable[[], bytes] = np.from_dlpack(view).tobytes
        return read
    return lambda: repr(view.tolist()).encode()


def _spread(tensor: Tensor) -> Tensor | None:
    """Some elements as a view, in the order in which a dense tensor lies in memory; None where there are none."""
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_quantized:
        return None
    plain = tensor.detach()
    if plain.element_size() not in _INTEGERS:
        plain = torch.view_as_real(plain)
    number = plain.numel()
    count = min(number, ELEMENTS)
    apart = number // count
    apart -= apart > 1 and not apart % 2  # an even one may keep to one column of a matrix
    return plain.as_strided((count,), (apart,), plain.storage_offset()).view(_INTEGERS[plain.element_size()])
