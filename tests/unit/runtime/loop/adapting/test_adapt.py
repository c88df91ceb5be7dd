"""What a script may ask for."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import UserError
from perdure.loop.adapting.adapt import Adapt


def test_a_range_that_holds_the_batch_is_taken() -> None:
    assert perdure.Adapt is Adapt
    Adapt(up_to=256).check("loader 'train'", 256)
    Adapt(up_to=4096, per_rank=(32, 256)).check("loader 'train'", 256)


@pytest.mark.parametrize(
    ("adapt", "words"),
    [
        (Adapt(up_to=255), r"up_to=255\): give the largest global batch, 256 or more"),
        (Adapt(up_to=True), r"up_to=True\)"),
        (Adapt(up_to=512, per_rank=(4, 2)), r"per_rank=\(4, 2\)\): give two numbers of 1 or more"),
        (Adapt(up_to=512, per_rank=(0, 2)), r"per_rank=\(0, 2\)\)"),
        (Adapt(up_to=512, rule="square"), r"rule='square'\): give one of linear, sqrt, legw, adascale, adamscale"),
        (Adapt(up_to=512, warm_up=64), r"warm_up=64\): give samples, with rule='legw' alone"),
        (Adapt(up_to=512, rule="legw", warm_up=-1), r"warm_up=-1\)"),
    ],
)
def test_values_that_do_not_go_together_are_refused(adapt: Adapt, words: str) -> None:
    with pytest.raises(UserError, match=rf"^loader 'train': Adapt\({words}"):
        adapt.check("loader 'train'", 256)


@pytest.mark.parametrize("limits", [3, (1,), (1, 2.5), "12"])
def test_limits_are_two_whole_numbers(limits: Any) -> None:
    with pytest.raises(UserError, match="give the fewest and the most samples of one rank"):
        Adapt(up_to=512, per_rank=limits).check("loader 'train'", 256)
