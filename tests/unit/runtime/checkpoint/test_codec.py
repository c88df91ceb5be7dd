"""Non-tensor state comes back with its types, or is refused by its path."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint.codec import decode, encode
from perdure.errors import Corrupt, UserError


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize(
    "value",
    [
        None,
        {80: 0.1, 120: 0.01},
        {"1": "a", 1: "b", None: 0, (1, 2): 3},
        {"$": "tuple", "v": []},
        Counter({80: 1, 120: 2}),
        OrderedDict([("b", 1), ("a", 2)]),
        (1, (2.0, [3, ()])),
        {1, "x", (2, 3), None},
        frozenset({True}),
        b"\x00\xff",
        bytearray(b"ab"),
        [math.inf, -math.inf, -0.0, 5e-324, 1e308],
        2**200,
        3 + 4j,
        "\ud800 lone surrogate",
        torch.bfloat16,
        torch.Size([2, 3]),
        {"b": 1, "a": 2},
    ],
    ids=lambda value: type(value).__name__,  # two processes must give a set the same name
)
def test_a_value_of_the_set_comes_back_equal_in_type_and_order(value: Any) -> None:
    back = through_json(value)
    assert (type(back), repr(back)) == (type(value), repr(value)) or back == value
    assert type(back) is type(value)


def test_nan_comes_back_as_nan() -> None:
    back = through_json({"loss": math.nan, "seen": {math.nan}})
    assert math.isnan(back["loss"])
    assert math.isnan(next(iter(back["seen"])))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3), np.float16),
        np.array(7),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.arange(10)[::3],
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_a_numpy_array_comes_back_with_dtype_and_shape(array: Any) -> None:
    back = through_json(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("scalar", [np.float32(0.1), np.int64(-3), np.bool_(True), np.float64("nan")], ids=repr)
def test_a_numpy_scalar_comes_back_as_one(scalar: Any) -> None:
    back = through_json(scalar)
    assert (type(back), repr(back)) == (type(scalar), repr(scalar))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.empty(0, 2),
        torch.tensor([True, False]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t(),
        torch.tensor([1 + 2j]),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([float("nan"), float("inf")]),
    ],
    ids=str,
)
def test_a_small_tensor_comes_back_bit_for_bit(tensor: torch.Tensor) -> None:
    back = through_json(tensor)
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert encode(back) == encode(tensor)


def test_the_state_of_every_generator_comes_back() -> None:
    """Restored, each draws what it would have drawn."""
    of_torch = torch.Generator().manual_seed(3)
    states = through_json(
        {
            "torch": of_torch.get_state(),
            "legacy": np.random.get_state(),
            "numpy": np.random.default_rng(3).bit_generator.state,
        }
    )
    expected = torch.rand(4, generator=of_torch)
    of_torch.set_state(states["torch"])
    assert torch.equal(torch.rand(4, generator=of_torch), expected)
    generator = np.random.default_rng(9)
    generator.bit_generator.state = states["numpy"]
    assert generator.random() == np.random.default_rng(3).random()
    np.random.set_state(states["legacy"])


def test_a_restored_multi_step_scheduler_still_decays() -> None:
    def scheduler() -> torch.optim.lr_scheduler.MultiStepLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4], gamma=0.1)

    saved, restored = scheduler(), scheduler()
    restored.load_state_dict(through_json(saved.state_dict()))
    for _ in range(5):
        restored.optimizer.step()
        restored.step()
    assert restored.get_last_lr() == pytest.approx([0.01])


class Ordinary:
    pass


class Words(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": lambda: 0}]}, r"objects\['a'\]\[1\]\['b'\] is a builtins.function"),
        ({"x": Ordinary()}, r"objects\['x'\] is a .*Ordinary"),
        ({"x": (Words("s"),)}, r"objects\['x'\]\[0\] is a .*Words"),
        ({"x": defaultdict(int)}, r"objects\['x'\] is a collections.defaultdict"),
        ({Ordinary: 1}, r"objects key <class .*Ordinary'> is a builtins.type"),
        ({"w": torch.nn.Parameter(torch.zeros(1))}, r"objects\['w'\] is a torch.nn.parameter.Parameter"),
        ({"w": torch.zeros(2).to_sparse()}, r"objects\['w'\] is a torch.Tensor"),
        ({"n": np.array(["text"])}, r"objects\['n'\] is a numpy.ndarray"),
        ({"n": np.array([None], dtype=object)}, r"objects\['n'\] is a numpy.ndarray"),
        ({"n": np.ma.masked_array([1], [True])}, r"objects\['n'\] is a numpy.ma"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_value_outside_the_set_is_refused_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(UserError, match=path):
        encode(value, "objects")


def test_a_value_that_would_come_back_different_is_refused() -> None:
    with pytest.raises(UserError, match="objects would come back from the checkpoint as something else"):
        encode({"w": torch.zeros(1, requires_grad=True)}, "objects")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UserError, match="contains itself"):
        encode(loop)


@pytest.mark.parametrize(
    "encoded",
    [
        {"$": "pickle", "v": "x"},
        {"$": 3},
        {"$": "torch.dtype", "v": "load"},
        {"$": "tensor", "dtype": "float32", "shape": [2], "v": "AAAA"},
        {"$": "ndarray", "dtype": "O", "shape": [1], "v": "AAAAAAAAAAA="},
        {"$": "bytes", "v": "?"},
        {"$": "set", "v": [[]]},
        {"$": "float", "v": {}},
    ],
    ids=str,
)
def test_damaged_values_are_corrupt(encoded: Any) -> None:
    with pytest.raises(Corrupt):
        decode(encoded)


keys = st.one_of(
    st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=2))
)
leaves = st.one_of(keys, st.floats(), st.binary(max_size=8), st.complex_numbers(), st.frozensets(keys, max_size=3))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=150, deadline=None)
def test_whatever_is_accepted_comes_back_the_same(value: Any) -> None:
    text = json.dumps(encode(value))
    assert json.dumps(encode(decode(json.loads(text)))) == text
