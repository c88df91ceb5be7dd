"""A framework adapter's statements about a Session, and the saved state of the framework itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

import perdure
from perdure.session.driven import Framework, drive, keep, own_collectives
from perdure.session.session import core_of
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


def test_a_framework_that_keeps_its_ranks_says_why_and_the_agent_is_told_so(join: Join, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    session = join(REPORT_FD=str(writer), RUN="1", UID="uid", LIVE="yes")
    drive(session, Framework("Lightning", lambda: "a callback keeps a rank"))
    reports = [read_report(line) for line in os.read(reader, 1 << 16).splitlines()]
    told = [report for report in reports if isinstance(report, Attached)]
    assert [report.live for report in told] == [True, False]
    assert told[-1].live_why == "a callback keeps a rank"


def test_own_collectives_of_a_framework_do_not_count_as_the_scripts_also_in_blocks_within_blocks(join: Join) -> None:
    session = join()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        run = core_of(session).run
        drive(session, Framework("Lightning", str))
        with own_collectives(session):
            dist.barrier()
            with own_collectives(session):
                dist.barrier()
            dist.barrier()
        run.first_batch()
        assert run.collectives_before == 0
        run.collectives_before = None
        dist.barrier()
        run.first_batch()
        assert run.collectives_before == 1
    finally:
        dist.destroy_process_group()


def test_what_a_framework_keeps_is_put_together_right_before_each_save(join: Join, tmp_path: Path) -> None:
    kept, training = Kept(), Training(join(EVERY_STEPS="4"))
    keep(training.session, "framework", kept, kept.put_together)
    training.run(epochs=1)
    rehearsed, saves = 1, len(perdure.history(tmp_path))
    assert saves == 2
    assert kept.together == rehearsed + saves
    assert perdure.load(tmp_path, ["framework"])["framework"] == {"value": 10 * kept.together}
