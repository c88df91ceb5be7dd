"""How much memory is left, as a container's cgroup and its node tell it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.host.memory import MemoryPeak, free_memory, missing_together

STAT = "anon 600\nfile 300\nshmem 100\ninactive_file 150\nactive_file 50\n"
V2 = {"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": STAT}
V1 = {"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "900", "memory/memory.stat": STAT}


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


def free(root: Path, files: dict[str, str], available: int | None = 4) -> int | None:
    meminfo = root / "meminfo"
    if available is not None:
        meminfo.write_text(f"MemTotal:       9000 kB\nMemAvailable:   {available} kB\n")
    return free_memory(written(root, files), meminfo)


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_cached_files_can_be_given_up_and_memory_that_is_shared_cannot(tmp_path: Path, files: dict[str, str]) -> None:
    assert free(tmp_path, files) == 300


def test_a_node_may_have_less_than_the_limit_leaves(tmp_path: Path) -> None:
    assert free(tmp_path, V2 | {"memory.max": "100000000"}, available=4) == 4096


def test_without_a_limit_the_node_counts(tmp_path: Path) -> None:
    assert free(tmp_path, V2 | {"memory.max": "max\n"}) == 4096


def test_without_a_source_nothing_is_known(tmp_path: Path) -> None:
    assert free(tmp_path, {}, available=None) is None


def test_ranks_of_a_pod_that_take_memory_at_once_need_it_together() -> None:
    assert missing_together([(60, 100), (60, 110)]) == 20
    assert missing_together([(60, None), (60, 120)]) == 0
    assert missing_together([(60, None), (60, None)]) == 0


SIZE = 128 * 2**20
"""A tenth of it is more than the whole process has without it."""
GROWS = f"""
from perdure.host.memory import MemoryPeak

peak = MemoryPeak()
print(peak.growth())
peak.begin()
bytearray({SIZE})
print(peak.growth())
peak.begin()
print(peak.growth())
"""


def test_a_peak_counts_from_a_moment_on() -> None:
    """In a process of its own: here, memory of earlier tests may go back to the kernel between two looks."""
    done = subprocess.run([sys.executable, "-c", GROWS], capture_output=True, text=True, check=True)
    unknown, most, anew = map(int, done.stdout.split())
    assert unknown == 0
    assert SIZE * 0.9 < most < SIZE * 1.1
    assert anew < SIZE * 0.1


def test_a_kernel_that_forgets_no_peak_counts_all(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t 9 kB\nVmRSS:\t 4 kB\n")
    (tmp_path / "clear_refs").mkdir()
    peak = MemoryPeak(tmp_path)
    peak.begin()
    assert peak.growth() == 5 * 1024


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    """The kernel cuts it after 15 bytes, also within a character."""
    (tmp_path / "status").write_bytes(b"Name:\ttrainiere-mit-\xc3\nVmHWM:\t 9 kB\nVmRSS:\t 4 kB\n")
    peak = MemoryPeak(tmp_path)
    peak.begin()
    assert peak.growth() == 5 * 1024


def test_a_kernel_that_counts_no_peak_tells_none(tmp_path: Path) -> None:
    peak = MemoryPeak(tmp_path)
    peak.begin()
    assert peak.growth() == 0
