"""The number of finished epochs is shown beside the step, as far as reported."""

from __future__ import annotations

from perdure.wire import ExitKind
from tests.support.jobs import job


def test_status_shows_the_epochs_that_were_finished_with_the_last_commit() -> None:
    now = job().running(world=2).all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20), epoch=5).settle().now
    assert (now.step, now.epoch) == (20, 5)


def test_an_older_agents_outcome_leaves_the_epoch_as_it_was_known() -> None:
    here = job().running(world=2).spec(suspend=True).settle()
    here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20), epoch=5).settle()
    here = here.spec(suspend=False).settle().ready().settle()
    here = here.all_ended(ExitKind.COMPLETED, step=30, commit=(6, 30)).settle()
    assert (here.now.step, here.now.epoch) == (30, 5)
