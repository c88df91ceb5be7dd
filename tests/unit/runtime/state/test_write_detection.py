"""A glance at parameters differs after a write to them, for every kind of number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from perdure.state.write_detection import ELEMENTS, Fingerprints

KINDS = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def _tensor(kind: torch.dtype) -> Tensor:
    return torch.arange(6 * ELEMENTS).remainder(2).reshape(6, ELEMENTS).to(kind)


def _halve(tensor: Tensor) -> None:
    """Behind torch's back: it does not count writes through another view of the memory."""
    tensor.data.view(torch.uint8).add_(1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_torch_does_not_count_is_seen_in_each_kind_of_number(kind: torch.dtype) -> None:
    tensor, eye = _tensor(kind), Fingerprints()
    before = eye.look([tensor])
    assert eye.look([tensor]) == before
    _halve(tensor)
    after = eye.look([tensor])
    assert after.versions == before.versions
    assert after != before


def test_one_of_many_is_seen_and_so_is_one_that_lies_elsewhere() -> None:
    tensors = [torch.zeros(3, 5).t(), torch.zeros(()), torch.zeros(0), torch.zeros(2).bfloat16()]
    eye = Fingerprints()
    before = eye.look(tensors)
    tensors[0].data = torch.ones(3, 5).t()
    after = eye.look(tensors)
    assert after.elements[0] != before.elements[0]
    assert after.elements[1:] == before.elements[1:]


def test_what_was_looked_at_may_still_be_resized() -> None:
    tensor, eye = torch.zeros(4), Fingerprints()
    eye.look([tensor])
    tensor.resize_(4096)
    assert eye.look([tensor]).elements


def test_what_has_no_numbers_to_be_seen_is_known_by_what_torch_counts() -> None:
    sparse = torch.eye(3).to_sparse_coo()
    assert Fingerprints().look([torch.zeros(0)], [sparse]).elements == []


def test_a_nan_is_what_it_was() -> None:
    tensor, eye = torch.full((3,), torch.nan), Fingerprints()
    assert eye.look([tensor]) == eye.look([tensor])
