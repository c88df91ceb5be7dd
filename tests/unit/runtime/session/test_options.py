"""A misspelt option is reported where it is given, with the right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from perdure import Session, UserError
from tests.unit.runtime.session.training import Join, samples

Call = Callable[[Session], Any]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda session: session.loader(samples(), batchsize=8), r"loader\(batchsize=.*write batch_size="),
        (lambda session: session.loader(samples(), 8, num_worker=2), r"loader\(num_worker=.*write num_workers="),
        (lambda session: session.loader(samples(), 8, shufle=False), r"loader\(shufle=.*write shuffle="),
        (lambda session: session.epochs(3, max_step=9), r"epochs\(max_step=.*write max_steps="),
        (lambda session: session.epochs(3, goal=9), r"epochs\(goal=.*there are count, stop, max_steps, max_seconds"),
        (
            lambda session: session.wrap(nn.Linear(1, 1), find_unused=True),
            r"wrap\(find_unused=.*write find_unused_parameters=",
        ),
    ],
    ids=["batchsize", "num_worker", "shufle", "max_step", "goal", "find_unused"],
)
def test_a_misspelt_option_is_reported_with_the_nearest_right_one(join: Join, call: Call, said: str) -> None:
    with pytest.raises(UserError, match=said):
        call(join())


def test_a_session_with_a_misspelt_option_is_not_joined() -> None:
    with pytest.raises(UserError, match=r"from_env\(detreministic=.*write deterministic="):
        Session.from_env(detreministic=True)  # type: ignore[call-arg]


def test_what_torch_takes_is_passed_on(join: Join) -> None:
    session = join()
    assert len(session.loader(samples(), 8, num_workers=0, pin_memory=False, prefetch_factor=None)) == 5
