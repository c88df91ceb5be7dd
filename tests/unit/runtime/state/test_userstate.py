"""`session.state`: a mapping of values that a checkpoint can hold, checked where they are set."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from perdure.errors import UserError
from perdure.state.userstate import UserState


def test_it_is_a_mapping_of_typed_values() -> None:
    state = UserState()
    state["best"] = 0.93
    state["seen"] = {(1, 2): {3}, "history": [math.nan]}
    state["vector"] = np.arange(3)
    state["weights"] = torch.ones(2)
    assert state["best"] == 0.93
    assert state.get("worst", 7) == 7
    assert list(state) == ["best", "seen", "vector", "weights"]
    del state["seen"]
    assert len(state) == 3
    assert "best" in repr(state)


@pytest.mark.parametrize(
    "value",
    [object(), open, {"inner": object()}, [torch.ones(2, requires_grad=True)], torch.ones(2).to_sparse()],
    ids=["object", "function", "nested", "with a gradient", "sparse"],
)
def test_a_value_that_a_checkpoint_cannot_hold_is_refused_by_name_where_it_is_set(value: object) -> None:
    state = UserState()
    state["best"] = 1
    with pytest.raises(UserError, match=r"session\.state\['best'\]"):
        state["best"] = value
    assert state["best"] == 1


def test_a_name_is_a_string() -> None:
    with pytest.raises(UserError, match=r"session\.state\[3\]: a int is no name"):
        UserState()[3] = 1  # type: ignore[index]


def test_a_value_that_was_changed_into_something_else_is_refused_by_name_at_the_save() -> None:
    state = UserState()
    state["history"] = history = [1.0]
    history.append(2.0)
    assert state.state_dict() == {"history": [1.0, 2.0]}
    history.append(object())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"session\.state\['history'\]\[2\]"):
        state.state_dict()


def test_what_is_saved_counts_and_what_the_script_has_set_beside_it_stays() -> None:
    state = UserState()
    state["best"], state["new"] = 0.0, "default"
    state.load_state_dict({"best": 0.93})
    assert dict(state) == {"best": 0.93, "new": "default"}


@pytest.mark.parametrize("kept", [dict, lambda values: [values["weight"][0]]], ids=["a state_dict", "a view"])
def test_weights_that_training_goes_on_changing_are_refused_and_copies_of_them_are_kept(
    kept: Callable[[dict[str, torch.Tensor]], object],
) -> None:
    net = torch.nn.Linear(2, 2)
    state = UserState(net.parameters)
    with pytest.raises(UserError, match=r"session\.state\['best'\].* is a live tensor that training .* clone\(\) it"):
        state["best"] = kept(net.state_dict())
    state["best"] = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert torch.equal(state["best"]["weight"], net.weight)
