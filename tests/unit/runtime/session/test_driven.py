"""A framework adapter's statements about a Session, and the saved state of the framework itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import perdure
from perdure.session.driven import drive, keep
from perdure.wire.channel import Attached, read_report
from tests.unit.runtime.session.training import Join, Training


class Kept:
    """Counts its requests."""

    def __init__(self) -> None:
        self.value = self.together = 0

    def put_together(self) -> None:
        self.together += 1
        self.value = 10 * self.together

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.value = saved["value"]


def test_a_framework_that_drives_the_loop_keeps_its_ranks_and_the_agent_is_told_so(
    join: Join, pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    session = join(REPORT_FD=str(writer), RUN="1", UID="uid", LIVE="yes")
    drive(session, "Lightning")
    reports = [read_report(line) for line in os.read(reader, 1 << 16).splitlines()]
    told = [report for report in reports if isinstance(report, Attached)]
    assert [report.live for report in told] == [True, False]
    assert told[-1].live_why == "Lightning drives the loop, and keeps the ranks that it began with"


def test_what_a_framework_keeps_is_put_together_right_before_each_save(join: Join, tmp_path: Path) -> None:
    kept, training = Kept(), Training(join(EVERY_STEPS="4"))
    keep(training.session, "framework", kept, kept.put_together)
    training.run(epochs=1)
    rehearsed, saves = 1, len(perdure.history(tmp_path))
    assert saves == 2
    assert kept.together == rehearsed + saves
    assert perdure.load(tmp_path, ["framework"])["framework"] == {"value": 10 * kept.together}
