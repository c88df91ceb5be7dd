"""A limit that clusters outgrow is raised, never lowered, and where it may not be a word says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.prepare import Progress
from e2e.prepare.limits import raise_limits


@pytest.mark.parametrize(("had", "has"), [(128, 1024), (1024, 1024), (8192, 8192)])
def test_there_are_enough_inotify_instances_and_no_fewer_than_before(tmp_path: Path, had: int, has: int) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text(f"{had}\n")

    raise_limits(Progress(), limit)

    assert int(limit.read_text()) == has


def test_a_limit_that_may_not_be_changed_stays_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    raise_limits(Progress(), Path("/proc/sys/kernel/cap_last_cap"))  # a small number that may not be changed

    assert "fs.inotify.max_user_instances stays" in capsys.readouterr().err
