"""What a script could change of a dataset: numbers, tensors and arrays that it holds in this process.

Reading samples again tells whether they have changed, but may take a worker. So this says when to read them: if nothing
here has changed since, no sample has. Used by perdure.loop.data.loader.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from perdure.state.parts import parts_of
from perdure.state.write_detection import elements_of

_OBJECTS: Final = 200
"""How many objects are looked at."""
_BYTES: Final = 1 << 20
"""How much of each array is compared."""
_NUMBERS: Final = frozenset({int, float, bool, str})


def changeable(dataset: Any) -> Mapping[str, Any]:
    """Something that is equal as long as the script has changed nothing of the dataset."""
    return {path: _form(one) for path, one in parts_of(dataset, "", set(), most=_OBJECTS)}


def _form(value: Any) -> Any:
    if type(value) in _NUMBERS:
        return value
    if type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu":
        return tuple(value.shape), value._version, elements_of(value)  # noqa: SLF001 - there is no public name for it
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.shape, zlib.crc32(value.reshape(-1)[: _BYTES // max(value.itemsize, 1)].tobytes())
    if isinstance(value, list | tuple) and set(map(type, value)) <= _NUMBERS:
        return hash(tuple(value))
    return id(value)
