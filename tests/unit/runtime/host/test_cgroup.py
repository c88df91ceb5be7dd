"""What a container's cgroup tells of its memory, in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.host.cgroup import memory_limit, memory_used
from tests.support.cgroups import cgroup

STAT = "anon 600\nfile 300\nshmem 100\ninactive_file 150\nactive_file 50\n"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "536870912\n"}, 536870912),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "536870912\n"}, 536870912),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
)
def test_a_limit_is_read_where_there_is_one(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(cgroup(tmp_path, files)) == limit


@pytest.mark.parametrize(
    "files",
    [
        {"memory.current": "900\n", "memory.stat": STAT},
        {"memory/memory.usage_in_bytes": "900", "memory/memory.stat": STAT},
    ],
    ids=["v2", "v1"],
)
def test_what_it_uses_is_reported_without_cached_files(tmp_path: Path, files: dict[str, str]) -> None:
    assert memory_used(cgroup(tmp_path, files)) == 700


@pytest.mark.parametrize(
    "files",
    [{}, {"memory.current": "900"}, {"memory.current": "900", "memory.stat": "torn"}],
    ids=["none", "half", "torn"],
)
def test_without_a_usage_file_nothing_is_known(tmp_path: Path, files: dict[str, str]) -> None:
    assert memory_used(cgroup(tmp_path, files)) is None
