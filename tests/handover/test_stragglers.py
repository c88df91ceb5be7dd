"""Of real ranks, the one with more work in each step tells the largest own time, and all take as long for a step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e.harness.local_run import LocalRun
from perdure.wire.channel import Figures, read_report
from tests.handover.forking import ENVIRON
from tests.support.forked import ForkedRank

SCRIPT = Path(__file__).parent / "uneven_work.py"
SECONDS = 120.0
WORLD = 3


class Told:
    """What each rank reports to its agent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, command: Sequence[str], **options: Any) -> ForkedRank:
        with self._file(int(options["env"]["RANK"])).open("wb") as reports:
            environ = {**ENVIRON, **options["env"], "PERDURE_REPORT_FD": str(reports.fileno())}
            return ForkedRank.start(command, **{**options, "env": environ, "pass_fds": [reports.fileno()]})

    def shares(self, rank: int) -> tuple[float, float]:
        """Its own one of all its steps, and that of data."""
        told = [read_report(line) for line in self._file(rank).read_bytes().splitlines()]
        ((own, data),) = {(one.own_share, one.data_share) for one in told if isinstance(one, Figures) and one.own_share}
        assert own is not None
        assert data is not None
        return own, data

    def _file(self, rank: int) -> Path:
        return self._folder / f"reports-{rank}"


@pytest.mark.parametrize("where", ["script", "worker"])
def test_the_rank_with_more_work_tells_the_largest_own_time(tmp_path: Path, where: str) -> None:
    told = Told(tmp_path)
    with LocalRun([sys.executable, str(SCRIPT), f"--where={where}"], tmp_path, world=WORLD, start=told.start) as run:
        ended = run.ends(seconds=SECONDS)
    assert [one.status for one in ended] == [0] * WORLD, [one.said for one in ended]
    shares, data = zip(*(told.shares(rank) for rank in range(WORLD)), strict=True)
    assert max(shares) == shares[1] > sorted(shares)[1], shares
    if where == "worker":
        assert max(data) == data[1] > sorted(data)[1], data
