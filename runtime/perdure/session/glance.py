"""Whether anything has written to parameters or optimizer state, also past torch: through `.data` or a NumPy array.

torch counts most writes to a tensor, and those not. So a few elements of the parameters are kept, spread over all of
them: weight noise, weight decay by hand or a perturbation for a second backward pass changes them. What writes to some
rows alone, past torch's count, may be missed. It costs a fraction of a millisecond. Called by perdure.session.imaging
at each place where the run may stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import torch
from torch import Tensor

ELEMENTS: Final = 16
"""Of one parameter."""
PARAMETERS: Final = 128
"""Of more, so many are looked at."""
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By an element's size: as such each kind of number is compared bit for bit, a NaN too."""


@dataclass(frozen=True)
class Glance:
    """Some tensors as they were at one moment."""

    versions: list[int]
    elements: dict[torch.dtype, Tensor]

    def equals(self, other: Glance) -> bool:
        """Whether nothing is seen to differ."""
        return (
            self.versions == other.versions
            and self.elements.keys() == other.elements.keys()
            and all(torch.equal(elements, other.elements[kind]) for kind, elements in self.elements.items())
        )


class Eye:
    """Looks at tensors that are mostly the same ones each time."""

    def __init__(self) -> None:
        self._views: list[tuple[Tensor, int, Tensor | None]] = []
        """Of each parameter that was looked at last where it lies, and the elements of it, if any can be seen."""

    def look(self, parameters: Sequence[Tensor], others: Iterable[Tensor] = ()) -> Glance:
        """What they are now; of `others` only what torch counts."""
        versions = [tensor._version for tensor in chain(parameters, others)]  # noqa: SLF001 - torch has no other word
        apart = -(-len(parameters) // PARAMETERS) or 1
        by_kind: dict[torch.dtype, list[Tensor]] = {}
        for view in self._elements(parameters[::apart]):
            by_kind.setdefault(view.dtype, []).append(view)
        return Glance(versions, {kind: torch.cat(views) for kind, views in by_kind.items()})

    def _elements(self, parameters: Iterable[Tensor]) -> Iterator[Tensor]:
        """Views, which are made anew only where a parameter lies elsewhere."""
        known, self._views = iter(self._views), []
        for parameter in parameters:
            seen, at, view = next(known, (None, 0, None))
            now = parameter.data_ptr()
            if seen is not parameter or at != now:
                view = _spread(parameter)
            self._views.append((parameter, now, view))
            if view is not None:
                yield view

    def forget(self) -> None:
        """Keeps none of them alive any more."""
        self._views = []


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
