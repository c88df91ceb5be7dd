"""Tensors as bytes and back, bit for bit: every dtype and every way to lie in memory; what cannot is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from perdure.checkpoint import tensors
from perdure.checkpoint.cells import reads
from perdure.checkpoint.codec import encode
from perdure.checkpoint.manifest import SHARED
from perdure.checkpoint.stage import bytes_of, described
from perdure.checkpoint.state import RankState
from perdure.checkpoint.tensors import overlaps_itself, refuse_odd
from perdure.errors import UserError
from perdure.group.peers import Solo
from perdure.loop.data.fingerprint import _parts
from perdure.store import open_store
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import load_solo, opened, position, save

DENSE = sorted(
    {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and "q" not in str(dtype)}, key=str
)
"""All that torch can hold densely: qint8 and its kin are of quantized tensors."""
READABLE = [dtype for dtype in DENSE if dtype in tensors._CARRIERS]


def random(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random bytes; 0 and 1 for bool, whose other bytes are undefined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        width = torch.empty((), dtype=dtype).element_size()
        count = int(torch.Size(shape).numel()) * width
        maker = torch.Generator().manual_seed(7)
        values = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8, generator=maker)
        return values.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def bits(tensor: Tensor) -> bytes:
    return b"".join(bytes(piece) for piece in tensors.read(tensor))


def fill(target: Tensor, data: bytes, length: int) -> None:
    """From a shard whose blocks have this length."""
    (read,) = reads([described(SHARED, "odd", target)], target)
    assert (read.start, read.end) == (0, len(data))
    for start in range(0, len(data), length):
        read.write(memoryview(bytearray(data[start : start + length])))


def stored(**named: Tensor) -> dict[str, Tensor]:
    store = MemoryStore()
    log_writer = opened(store)
    save(store, Solo(), log_writer, RankState(named, {}, {}), position(1), run=1)
    loaded = load_solo(store, log_writer)
    assert loaded
    return dict(loaded.state.shared)


@pytest.mark.parametrize("dtype", DENSE, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7)], ids=str)
def test_every_dtype_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = random(dtype, *shape)
    back = stored(odd=tensor)["odd"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert bits(back) == bits(tensor)


@pytest.mark.parametrize("dtype", DENSE, ids=str)
def test_a_shard_is_read_by_the_safetensors_library(tmp_path: Path, dtype: torch.dtype) -> None:
    store = open_store(f"file://{tmp_path}/root", {})
    named = {"odd": random(dtype, 5, 7), "scalar": torch.tensor(3.0), "empty": torch.empty(0, 3)}
    save(store, Solo(), opened(store), RankState(named, {}, {}), position(1), run=1)
    file = next((tmp_path / "root").glob("data/*/*/*.safetensors"))
    found = safetensors.torch.load_file(file)
    assert set(found) == {"shared/odd", "shared/scalar", "shared/empty"}
    assert torch.equal(found["shared/scalar"], named["scalar"])
    assert found["shared/empty"].shape == (0, 3)
    assert bits(found["shared/odd"]) == bits(named["odd"])
    if dtype in READABLE:
        assert (found["shared/odd"].dtype, found["shared/odd"].shape) == (dtype, (5, 7))


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "channels last": lambda t: t.unsqueeze(0).contiguous(memory_format=torch.channels_last),
    "every other": lambda t: t[:, ::2],
    "a slice": lambda t: t[1:, 3:],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [1, 8, 100, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.float8_e5m2, torch.bool], ids=str)
def test_whatever_its_layout_a_tensor_is_read_and_filled_in_small_pieces(
    monkeypatch: pytest.MonkeyPatch, way: str, limit: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(tensors, "PIECE_BYTES", limit)
    source, target = (WAYS[way](random(dtype, 4, 6, 5).clone()) for _ in range(2))
    target.zero_()
    pieces = [bytes(piece) for piece in tensors.read(source)]
    assert max(map(len, pieces)) <= max(limit, source.element_size())
    data = b"".join(pieces)
    fill(target, data, 17)
    assert target.stride() == source.stride()
    assert bits(target) == data == bits(source.clone(memory_format=torch.contiguous_format))


def test_a_conjugated_target_gets_the_values_and_not_the_bytes() -> None:
    source = torch.randn(40, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    target = torch.zeros(40, dtype=torch.complex64).conj()
    fill(target, bits(source), 17)
    assert torch.equal(target, source)
    assert torch.equal(stored(odd=source.conj())["odd"], source.conj().resolve_conj())


def test_a_checksum_is_of_the_values_and_not_of_how_they_lie() -> None:
    whole = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    assert tensors.checksum(whole) == tensors.checksum(whole.t().contiguous().t())
    assert tensors.checksum(whole) != tensors.checksum(whole + 1e-6)


@pytest.mark.parametrize("sum_of", [tensors.checksum, tensors.weighted_sum])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float64, torch.complex128], ids=str)
def test_a_sum_that_ranks_compare_tells_any_changed_bit_and_any_exchange(
    monkeypatch: pytest.MonkeyPatch, sum_of: Callable[[Tensor], int], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(tensors, "PIECE_BYTES", 64)
    tensor = random(dtype, 5, 7)
    raw = tensor.reshape(-1).view(torch.uint8)
    before = sum_of(tensor)
    assert sum_of(tensor.t().contiguous().t()) == before
    for place in range(raw.numel()):
        raw[place] ^= 1
        assert sum_of(tensor) != before, place
        raw[place] ^= 1
    words = torch.arange(35, dtype=torch.int32).reshape(5, 7)
    assert sum_of(words) != sum_of(words.flip(0))


@pytest.mark.parametrize(
    ("tensor", "overlaps"),
    [
        (torch.ones(3).expand(2, 3), True),
        (torch.arange(10.0).as_strided((4, 3), (1, 1)), True),
        (torch.ones(2, 3), False),
        (torch.ones(2, 3).t(), False),
        (torch.ones(4, 4)[::2, ::2], False),
        (torch.ones(1).expand(1, 1), False),
        (torch.empty(0, 3).expand(5, 0, 3), False),
        (torch.tensor(1.0), False),
    ],
    ids=["expanded", "sliding", "plain", "transposed", "strided", "one", "empty", "scalar"],
)
def test_tensors_whose_elements_share_memory_are_known(tensor: Tensor, *, overlaps: bool) -> None:
    assert overlaps_itself(tensor) is overlaps


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.ones(2).to_sparse(), "is sparse_coo: only dense tensors can be saved: keep it dense"),
        (lambda: torch.ones(2, device="meta"), "is on the meta device and has no values: materialize the model"),
        (lambda: torch.nn.LazyLinear(3).weight, "has no shape yet: run the model once"),
        (
            lambda: torch.ones(2).as_subclass(type("Piece", (Tensor,), {})),
            "Piece: only plain tensors, and DTensors of them",
        ),
    ],
    ids=["sparse", "meta", "lazy", "subclass"],
)
def test_what_cannot_be_loaded_again_is_refused_by_name_with_a_remedy(make: Callable[[], Tensor], why: str) -> None:
    with pytest.raises(UserError, match=f"tensor net.odd .*{why}"):
        refuse_odd("net.odd", make())


def test_a_dtype_that_this_torch_does_not_know_is_the_users_to_solve() -> None:
    with pytest.raises(UserError, match=r"tensors of type float3, which torch .* does not know"):
        tensors.empty("float3", (2,))


@pytest.mark.parametrize(
    "use", [tensors.checksum, tensors.writable, encode, bytes_of, _parts], ids=lambda use: use.__name__
)
def test_a_tensor_that_was_read_or_written_may_still_grow(use: Callable[[Tensor], object]) -> None:
    observed = torch.zeros(3)
    found = use(observed)
    assert all(found) if isinstance(found, Iterator) else found
    assert observed.resize_(400).shape == (400,)
