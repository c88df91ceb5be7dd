"""A container's CPU limit, from the files of cgroup v1 and v2."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent.linux import cpu_limit


@pytest.mark.parametrize(
    ("text", "cpus"), [("150000 100000\n", 1), ("400000 100000\n", 4), ("50000 100000", 1), ("max 100000", None)]
)
def test_cgroup_v2(tmp_path: Path, text: str, cpus: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_limit(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("200000\n", 2), ("-1\n", None)])
def test_cgroup_v1(tmp_path: Path, quota: str, cpus: int | None) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_limit(tmp_path) == cpus


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path) is None
