"""When a batch that adapts is where the fixed one ends, and which trainings are not made again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from e2e.bench import adaptive
from e2e.bench.adaptive import TASKS, Epoch, Pair, Training


def trained(*losses: float, seconds: float) -> tuple[Epoch, ...]:
    """Epochs that take so many seconds each."""
    return tuple(Epoch(seconds * number, 1.0, loss, 1 - loss, 16, None) for number, loss in enumerate(losses, start=1))


def ends_as_well(epoch: Epoch, wanted: Epoch) -> bool:
    return epoch.loss <= wanted.loss


def test_each_way_counts_from_its_begin_to_where_it_first_is_what_the_fixed_one_is_at_its_end() -> None:
    fixed = trained(0.9, 0.4, 0.6, 0.5, seconds=10.0)
    assert Pair(fixed, trained(0.8, 0.6, 0.5, 0.1, seconds=4.0)).times(ends_as_well, "seconds") == 12.0 / 20.0
    assert Pair(fixed, trained(0.8, 0.6, 0.5, 0.1, seconds=8.0)).times(ends_as_well, "seconds") == 24.0 / 20.0


def test_what_is_never_reached_has_no_time() -> None:
    assert Pair(trained(0.5, seconds=1.0), trained(0.6, 0.51, seconds=1.0)).times(ends_as_well, "seconds") is None


def test_a_training_is_made_again_only_if_other_code_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "FOLDER", tmp_path)
    task, other = TASKS
    made = Training(task.name, 3, "fixed", (0.1, 0.2), adaptive.code_of_training(task), trained(0.9, 0.5, seconds=1.0))
    assert adaptive.stored(task, 3, "fixed") is None
    adaptive.store(made)
    assert adaptive.stored(task, 3, "fixed") == made
    assert [adaptive.stored(task, 3, "adapts"), adaptive.stored(task, 4, "fixed")] == [None, None]
    assert adaptive.stored(other, 3, "fixed") is None
    assert adaptive.stored(replace(task, rate=task.rate * 2), 3, "fixed") is None
