"""Identifies a dataset by hashes of a few samples, so that another one under the same name is noticed.

An unseeded `random_split`, or a list of files in the file system's order, gives each rank and each run another dataset
of the same length, in which a position means other samples. Only a sample that reads the same twice, with the
generators in the same state, tells anything. Samples with new random draws, and unreadable ones, are left out.

Pure except for the reading, which the loader does where it reads its samples. Used by perdure.loop.data.loader.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from perdure.checkpoint.tensors import memory
from perdure.errors import UserError

PROBES: Final = 4
SECONDS: Final = 0.5
"""After this time no further sample is read."""
_BYTES: Final = 1 << 20
"""How much of each part of a sample is hashed."""
_DIGEST_BYTES: Final = 8

ANOTHER: Final = (
    "positions then mean other samples: seed a random_split (generator=torch.Generator().manual_seed(0)), sort a list "
    "of files; if it is meant, pass session.loader(fingerprint=False)"
)
"""The advice where samples differ."""

CHANGED: Final = (
    "the script changes this dataset while it trains, and here it is not as it was then: set what "
    "changes by session.steps_done and the epoch above the batch loop, or keep it in session.state and set it from "
    "there; where that is so already, pass session.loader(fingerprint=False)"
)
"""The advice for a dataset that the script changes between epochs."""

SampleDigests = Mapping[str, str]
"""Digests by sample number. The number is text, because JSON has no other keys."""


class Probes(list[int]):
    """Sample numbers that are read only to be hashed. A list, like the sampler's."""


def probes(samples: int) -> Probes:
    """The numbers of the samples to hash, spread over the dataset."""
    return Probes(sorted({number * (samples - 1) // (PROBES - 1) for number in range(PROBES)}))


def take(read: Callable[[int], Any], numbers: Sequence[int]) -> SampleDigests:
    """Digests of the samples that `read` returns. Calls it twice for each."""
    begun, found = time.monotonic(), {}
    for number in numbers:
        digest = _try_to_hash(read, number)
        if digest and digest == _try_to_hash(read, number):
            found[str(number)] = digest
        if time.monotonic() - begun > SECONDS:
            break
    return found


def different(one: SampleDigests, other: SampleDigests) -> str:
    """The number of the first sample whose digests differ; "" if there is none."""
    common = sorted(one.keys() & other.keys(), key=int)
    return next((number for number in common if one[number] != other[number]), "")


def between_ranks(by_rank: Sequence[Mapping[str, tuple[int, SampleDigests]]]) -> Mapping[str, str]:
    """What to report of each loader whose dataset differs between ranks, if all ranks have one.

    UserError if lengths differ, because the ranks would come apart at the end of the epoch.
    """
    found: dict[str, str] = {}
    for rank, loaders in enumerate(by_rank):
        for name in by_rank[0].keys() & loaders.keys() - found.keys():
            (samples, first), (others, own) = by_rank[0][name], loaders[name]
            if samples != others:
                raise UserError(
                    f"loader {name!r}: the dataset has {samples} samples on rank 0 and {others} on rank {rank}: give "
                    f"the whole dataset on every rank, the loader shares it out"
                )
            if number := different(first, own):
                found[name] = f"sample {number} is another one on rank {rank} than on rank 0"
    return found


def _try_to_hash(read: Callable[[int], Any], number: int) -> str:
    try:
        found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for part in _parts(read(number)):
            found.update(part)
    except Exception:  # noqa: BLE001 - a dataset's error: training raises it if it ever reads this sample
        return ""
    return found.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Bytes of everything known about a sample; of other objects only the type."""
    size = f" {len(value)}" if isinstance(value, Mapping | list | tuple) else ""
    yield f"{type(value).__name__}{size}".encode()
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        yield repr((value.dtype, tuple(value.shape))).encode()
        first = value.reshape(-1)[: _BYTES // value.element_size()].contiguous()
        yield bytes(memory(first.view(torch.uint8)))
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype, value.shape)).encode()
        yield value.reshape(-1)[: _BYTES // max(value.itemsize, 1)].tobytes() if not value.dtype.hasobject else b""
    elif isinstance(value, str | int | float | bool | complex | np.generic | None):
        yield repr(value)[:_BYTES].encode(errors="surrogatepass")
    elif isinstance(value, bytes | bytearray):
        yield bytes(value[:_BYTES])
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield repr(key).encode()
            yield from _parts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part)
    elif hasattr(value, "tobytes") and hasattr(value, "size"):  # an image
        yield repr(value.size).encode()
        yield value.tobytes()[:_BYTES]
