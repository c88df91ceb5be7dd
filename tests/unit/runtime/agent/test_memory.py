"""Out of memory, as a container's cgroup tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent.memory import OutOfMemory, oom_kills
from tests.support.cgroups import cgroup

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"


@pytest.mark.parametrize("files", [{"memory.events": V2}, {"memory/memory.oom_control": V1}], ids=["v2", "v1"])
def test_the_kernels_kills_are_counted(tmp_path: Path, files: dict[str, str]) -> None:
    assert oom_kills(cgroup(tmp_path, files)) == 3


@pytest.mark.parametrize(
    "files", [{}, {"memory.events": "oom"}, {"memory.events": "low 0\n"}, {"memory/memory.oom_control": "under_oom 0"}]
)
def test_without_a_counter_nothing_is_known(tmp_path: Path, files: dict[str, str]) -> None:
    assert oom_kills(cgroup(tmp_path, files)) is None


def test_the_words_name_what_to_raise() -> None:
    assert "memory limit of 512 MiB: raise resources.limits.memory" in OutOfMemory(512 * 2**20).words
    assert "set resources.requests.memory" in OutOfMemory(None).words
