"""What one of two ranks hears in the meeting before its optimizers step."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from perdure.errors import PeerLost
from perdure.group.agreement import Agreement
from perdure.group.world import Group, connect_group
from perdure.loop.last_step import StepEvent
from perdure.loop.optimizer_meeting import OptimizerMeeting
from perdure.loop.run import Run
from perdure.wire.settings import Settings

SECONDS = 60


@pytest.fixture
def others() -> Iterator[list[Group]]:
    """This rank's group, and behind it the other one's."""
    store, limit = dist.HashStore(), timedelta(seconds=SECONDS)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as ranks:
        made = [ranks.submit(connect_group, store, "g", rank=rank, size=2, timeout=limit) for rank in range(2)]
        groups = [one.result() for one in made]
        del made  # a group closes its connections with its last reference
        yield groups


@pytest.fixture
def run(tmp_path: Path, others: list[Group]) -> Run:
    run = Run(Settings(tmp_path.as_uri(), uid="u", run=3, rank=0, world=2))
    run.agreement = Agreement(others.pop(0))
    run.progress.step = 6
    return run


def test_all_have_come(run: Run, others: list[Group]) -> None:
    other = Agreement(others[0]).meet(7)
    meeting = OptimizerMeeting(run)
    assert meeting.attend(lambda: True, finishes=True) is StepEvent.MET
    assert other.is_over(SECONDS)
    assert (meeting.lost, meeting.alone, run.agreement.waits) == (None, 0, "")


def test_a_rank_that_finishes_its_step_alone_counts_it_so(run: Run, others: list[Group]) -> None:
    others.clear()
    meeting = OptimizerMeeting(run)
    assert meeting.attend(lambda: True, finishes=True) is StepEvent.SILENCE
    first = meeting.lost
    meeting.lose(PeerLost("again"))
    run.progress.step += 1
    assert first
    assert (meeting.lost, meeting.alone, run.agreement.waits) == (first, 1, "")


def test_a_rank_that_cannot_finish_it_raises(run: Run, others: list[Group]) -> None:
    others.clear()
    meeting = OptimizerMeeting(run)
    with pytest.raises(PeerLost, match="all ranks were to meet"):
        meeting.attend(lambda: True, finishes=False)
    assert (meeting.lost, run.agreement.waits) == (None, "")


@pytest.mark.usefixtures("others")
def test_a_rank_waits_as_long_as_it_is_to(run: Run) -> None:
    assert OptimizerMeeting(run).attend(lambda: False, finishes=True) is StepEvent.ASKED
    assert run.agreement.waits == ""
