"""Detects writes to parameters or optimizer state, also those that torch does not see: through `.data` or a NumPy
array.

torch counts most writes to a tensor, but not these. So this keeps a few elements of the parameters, spread over all of
them. Weight noise, weight decay by hand or a perturbation for a second backward pass changes them. A write to single
rows that torch does not count may be missed. It takes a fraction of a millisecond. Called by
perdure.loop.survivor_snapshots at each place where the run may stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import is_lazy

from perdure.checkpoint.boxes import local

ELEMENTS: Final = 16
"""Elements of one parameter that are compared."""
PARAMETERS: Final = 128
"""Parameters that are compared, if there are more."""
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type by an element's size. NumPy knows integers of every size, and they are compared bit for bit, even
NaNs."""
_VERSION: Final = attrgetter("_version")
"""How often torch has seen it written to; there is no public name for it."""


@dataclass(frozen=True)
class Fingerprint:
    """Some tensors as they were at one moment."""

    versions: list[int]
    elements: list[bytes]


class Fingerprints:
    """Compares tensors that are mostly the same ones each time."""

    def __init__(self) -> None:
        self._some: Sequence[Tensor] = ()
        """The parameters whose elements were last compared."""
        self._at: list[int] = []
        """Their addresses."""
        self._reads: list[Callable[[], bytes]] = []
        """Functions that return the elements of those that can be read."""

    def look(self, parameters: Sequence[Tensor], others: Iterable[Tensor] = ()) -> Fingerprint:
        """The present state; of `others` only what torch counts."""
        versions = [*map(_VERSION, parameters), *map(_VERSION, others)]
        apart = -(-len(parameters) // PARAMETERS) or 1
        self._find(parameters[::apart])
        return Fingerprint(versions, [read() for read in self._reads])

    def _find(self, some: Sequence[Tensor]) -> None:
        """Makes new views only if a parameter was replaced or has moved."""
        at = [0 if is_lazy(one) else local(one).data_ptr() for one in some]
        if at != self._at or not all(map(is_, some, self._some)):
            views = [view for view in map(_spread, some) if view is not None]
            self._some, self._at, self._reads = some, at, [_read_of(view) for view in views]

    def forget(self) -> None:
        """Drops all references to tensors."""
        self._some, self._at, self._reads = (), [], []


def elements_of(tensor: Tensor) -> bytes | None:
    """Some of its present elements; None if they cannot be read."""
    view = _spread(tensor)
    return None if view is None else _read_of(view)()


def numbers_of(tensor: Tensor) -> NDArray[np.float64] | None:
    """Some elements of a tensor of floating-point numbers as float64; None if they cannot be read."""
    view = _spread(tensor)
    return None if view is None else view.view(tensor.dtype).to("cpu", torch.float64, copy=True).numpy()


def some_of(tensor: Tensor) -> Tensor | None:
    """A copy of some elements of a tensor of floating-point numbers, on its device; None if they cannot be read."""
    view = _spread(tensor) if tensor.is_floating_point() else None
    return None if view is None else view.view(tensor.dtype).clone()


def _read_of(view: Tensor) -> Callable[[], bytes]:
    """Reads with NumPy, which is faster than torch's operators. `Tensor.numpy` would forbid any later resize."""
    if view.device.type == "cpu" and type(view) is Tensor:
        read: Callable[[], bytes] = np.from_dlpack(view).tobytes
        return read
    return lambda: repr(view.tolist()).encode()


def _spread(tensor: Tensor) -> Tensor | None:
    """Some elements of this rank's as a view, in the memory order of a dense tensor; None if there are none."""
    tensor = local(tensor)
    if is_lazy(tensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return None
    if not tensor.numel() or tensor.is_quantized:
        return None
    plain = tensor.detach()
    if plain.element_size() not in _INTEGERS:
        plain = torch.view_as_real(plain)
    number = plain.numel()
    count = min(number, ELEMENTS)
    apart = number // count
    apart -= apart > 1 and not apart % 2  # an even one may stay within one column of a matrix
    return plain.as_strided((count,), (apart,), plain.storage_offset()).view(_INTEGERS[plain.element_size()])
