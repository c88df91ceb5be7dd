"""Any state arrives whole, and no sender holds more than a few pieces of it twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from perdure.checkpoint import tensors
from perdure.checkpoint.state import RankState
from perdure.checkpoint.tensors import PIECE_BYTES, memory_order
from perdure.group.world import Group, connect_group
from perdure.live.protocol.parties import Attempt
from perdure.live.transfer import AT_ONCE, IN_FLIGHT, SMALL_BYTES, describe, parcels, receive, send

MANY = 20 * PIECE_BYTES // SMALL_BYTES


class Counted:
    """A group that counts the bytes of messages under way that are copies of the state, and those sent before any was
    waited for."""

    def __init__(self, group: Any, live: Mapping[str, Tensor]) -> None:
        self._group = group
        self._own = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in live.values()]
        self.now = self.most = self.unwaited = 0
        self.waited = False

    def send(self, sent: list[Tensor], to: int, tag: int, /) -> Any:
        (data,) = sent
        size = 0 if any(start <= data.data_ptr() < end for start, end in self._own) else data.nbytes
        self.unwaited += not self.waited
        self.now += size
        self.most = max(self.most, self.now)
        return Work(self, self._group.send(sent, to, tag), size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


class Work:
    def __init__(self, group: Counted, work: Any, size: int) -> None:
        self._group, self._work, self._size = group, work, size

    def wait(self) -> None:
        self._group.waited = True
        self._work.wait()
        self._group.now -= self._size


def states() -> Iterator[tuple[str, dict[str, Tensor]]]:
    yield "small", {f"p{number:04}": torch.full((SMALL_BYTES // 4,), float(number)) for number in range(MANY)}
    yield "flat", {"p": torch.arange(5 * PIECE_BYTES // 4 + 3, dtype=torch.int32), "none": torch.empty(0)}
    yield "turned", {f"p{number}": torch.randn(1500, 1400).t() for number in range(4)}
    kinds = (torch.randn(5), torch.randn(1500, 1400).t(), torch.randn(2 * PIECE_BYTES // 4 + 1), torch.empty(0, 3))
    yield "mixed", {f"p{number}": kinds[number % 4].clone() for number in range(16)}
    yield "every kind", dict(kinds_of_tensors())


def kinds_of_tensors() -> Iterator[tuple[str, Tensor]]:
    """Every width of elements, small and large, in every way to lie in memory."""
    for dtype in (torch.bool, torch.bfloat16, torch.float32, torch.complex64, torch.complex128):
        for size, shape in (("small", (3, 5, 7, 2)), ("large", (9, 20, 30, 40))):
            values = torch.arange(torch.Size(shape).numel()).reshape(shape) % 3
            tensor = values.to(dtype)
            yield f"{dtype} {size}", tensor
            yield f"{dtype} {size}, channels last", tensor.contiguous(memory_format=torch.channels_last)
            yield f"{dtype} {size}, transposed", tensor.transpose(0, 3)
            yield f"{dtype} {size}, every other", tensor[:, ::2]
        yield f"{dtype} scalar", torch.ones((), dtype=dtype)
        yield f"{dtype} empty", torch.ones(4, 0, 2, dtype=dtype)
    yield "conjugated", torch.randn(300, 400, dtype=torch.complex64).conj()
    yield "long rows", torch.arange(3 * 80_000, dtype=torch.int32).reshape(3, -1)


STATES = dict(states())


@pytest.mark.parametrize(
    ("name", "newcomers"),
    [
        ("small", 1),
        ("flat", 1),
        ("flat", AT_ONCE + 2),
        ("turned", 1),
        ("turned", 3),
        ("turned", AT_ONCE + 2),
        ("mixed", 1),
        ("mixed", 2),
        ("every kind", 1),
        ("every kind", 3),
    ],
)
def test_all_newcomers_get_everything_and_few_copies_are_made(
    monkeypatch: pytest.MonkeyPatch, name: str, newcomers: int
) -> None:
    if name == "every kind":
        monkeypatch.setattr(tensors, "PIECE_BYTES", 300_001)
    live = STATES[name]
    old = 2
    attempt = Attempt(1, 2, old, tuple(range(old, old + newcomers)), ())
    store, described = HashStore(), describe(RankState(live, {}, {}))
    met = threading.Barrier(len(attempt.parties))

    def party(number: int) -> int:
        group: Group = connect_group(
            store, "bridge", rank=number, size=len(attempt.parties), timeout=timedelta(seconds=60)
        )
        most, given = 0, parcels(attempt, described, number)
        if number < old:
            counted = Counted(group, live)
            send(counted, given, RankState(live, {}, {}))
            most = counted.most
        else:
            found = receive(group, given, {})
            assert sorted(key for _, key in found) == sorted(live)
            for key, tensor in live.items():
                assert torch.equal(found["shared", key], tensor), key
                assert memory_order(found["shared", key]) == memory_order(tensor), key
        met.wait(60)
        return most

    with ThreadPoolExecutor(len(attempt.parties)) as pool:
        most = max(pool.map(party, range(len(attempt.parties))))
    assert most <= (max(1, IN_FLIGHT // newcomers) + 1) * min(newcomers, AT_ONCE) * PIECE_BYTES


def test_what_lies_flat_is_all_under_way_before_any_of_it_is_waited_for() -> None:
    live = {"p": torch.arange((IN_FLIGHT + 4) * PIECE_BYTES // 4, dtype=torch.int32)}
    attempt, store = Attempt(1, 2, 1, (1,), ()), HashStore()
    given = parcels(attempt, describe(RankState(live, {}, {})), 0)

    def connected(number: int) -> Group:
        return connect_group(store, "bridge", rank=number, size=2, timeout=timedelta(seconds=60))

    def receives() -> dict[tuple[str, str], Tensor]:
        return receive(connected(1), given, {})

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(receives)
        counted = Counted(connected(0), live)
        send(counted, given, RankState(live, {}, {}))
        assert torch.equal(found.result(60)["shared", "p"], live["p"])
    assert counted.unwaited == IN_FLIGHT + 4
