"""What all steps together are worth, and which of them do not count."""

from __future__ import annotations

import torch

from perdure.loop.adapting.statistical_progress import _UNSURE, StatisticalProgress

STEPPED, SKIPPED = torch.tensor([0.0]), torch.tensor([1.0])
"""What a fused optimizer has been told."""


def after(*steps: tuple[float, list[torch.Tensor | None]]) -> StatisticalProgress:
    found = StatisticalProgress()
    for worth, how in steps:
        found.add(worth, how)
    return found


def test_each_step_in_which_an_optimizer_has_stepped_counts() -> None:
    assert after((8.0, [None]), (4.5, [None, None])).samples == 12.5


def test_a_step_without_one_does_not_count() -> None:
    assert after((8.0, [None]), (4.5, [])).samples == 8.0


def test_a_fused_optimizer_that_has_changed_nothing_has_not_stepped() -> None:
    assert after((8.0, [STEPPED]), (4.0, [SKIPPED]), (2.0, [SKIPPED, STEPPED]), (1.0, [SKIPPED, None])).samples == 11.0


def test_what_only_a_device_knows_is_asked_when_the_number_is_needed() -> None:
    found = after((8.0, [None]), (4.0, [STEPPED]))
    assert found.known == 8.0
    assert (found.samples, found.known) == (12.0, 12.0)
    for _ in range(_UNSURE):
        found.add(1.0, [STEPPED])
    assert found.known == 12.0 + _UNSURE


def test_the_sum_is_the_same_whenever_it_is_asked_for() -> None:
    steps: list[tuple[float, list[torch.Tensor | None]]] = [
        (0.1, [STEPPED]),
        (0.2, [None]),
        (1e16, [STEPPED]),
        (0.7, [None]),
        (-1e16, [STEPPED]),
    ]
    often, once = StatisticalProgress(), after(*steps)
    for worth, how in steps:
        often.add(worth, how)
        _ = often.samples
    assert often.samples == once.samples


def test_a_checkpoint_has_all_of_it_and_nothing_where_nothing_counts() -> None:
    found = after((8.0, [None]), (4.0, [STEPPED]))
    saved = found.state_dict()
    assert saved == {"progress": 12.0}
    again = after((3.0, [STEPPED]))
    again.load_state_dict(saved)
    assert again.samples == 12.0
    again.load_state_dict({})
    assert (again.samples, again.state_dict()) == (0.0, {})
