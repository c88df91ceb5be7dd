"""Saves and restores stay within the memory that a pod for training has: where there is room for the live state, for
this rank's part in its arena, and for 256 MiB, the kernel kills nobody. glibc gives back what is freed, and imports are
not counted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from e2e.harness.local_run import free_port
from perdure.cli.main import main
from tests.support.forked import Forked
from tests.support.memory_limit import memory_groups
from tests.unit.runtime.session.limited import LAYERS, STEPS

REPOSITORY = Path(__file__).parents[4]
SECONDS = 300
WHOLE_MIB, SHARDED_MIB = 320, 704
"""Another copy of a rank's part would be more than 256 MiB."""
IN_BACKGROUND = {"PERDURE_BACKGROUND_BYTES": "0", "PERDURE_EVERY_STEPS": "1"}
STANDING = {"PERDURE_BACKGROUND_BYTES": str(2**40), "PERDURE_EVERY_STEPS": ""}


def played(act: str, model: str, mib: int, root: Path, world: int, *, pod: int = 1) -> list[str]:
    """What each rank has printed; the end of its errors if it has failed. `pod` ranks are in one cgroup."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ |= {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), "PERDURE_KEEP": "1", "PERDURE_CHECK_SECONDS": "0"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environ |= {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)}  # what is freed is not kept
    environ |= {"LOCAL_WORLD_SIZE": str(pod)} | (STANDING if act in ("save", "restore") else IN_BACKGROUND)
    command = ["-m", "tests.unit.runtime.session.limited", act, model, str(mib), str(root)]
    with memory_groups(world // pod) as groups:
        ranks = [
            Forked(
                [*command, str(groups[rank // pod].folder)],
                cwd=REPOSITORY,
                env={**environ, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(world)
        ]
        told = [rank.communicate(timeout=SECONDS) for rank in ranks]
        assert [group.killed() for group in groups] == [0] * len(groups), told
    return [said.strip() or errors[-2000:] for said, errors in told]


@pytest.mark.parametrize(
    ("model", "mib", "world", "others"),
    [
        pytest.param("whole", WHOLE_MIB, 1, (1,), marks=pytest.mark.chaos),  # in checkpoint/test_memory.py, too
        ("sharded", SHARDED_MIB, 2, (2, 1)),
    ],
)
def test_a_save_and_a_restore_need_256_mib_beyond_the_live_state(
    tmp_path: Path, model: str, mib: int, world: int, others: tuple[int, ...]
) -> None:
    """The restore on as many ranks and on another number."""
    root = tmp_path / "root"
    assert played("save", model, mib, root, world) == ["saved"] * world
    for other in others:
        assert played("restore", model, mib, root, other) == [f"{3 * LAYERS} tensors []"] * other


@pytest.mark.parametrize(("model", "mib", "world"), [("whole", WHOLE_MIB, 1), ("sharded", SHARDED_MIB, 2)])
def test_a_save_beside_training_needs_this_ranks_part_and_256_mib_beyond_the_live_state(
    tmp_path: Path, model: str, mib: int, world: int
) -> None:
    root = tmp_path / "root"
    (told, *_) = found = played("background", model, mib, root, world)
    assert found == [told] * world
    assert told == f"{list(range(1, STEPS + 1))} True"
    assert main(["verify", str(root)]) == 0


def test_ranks_of_one_pod_that_have_no_memory_for_all_their_parts_save_at_once(tmp_path: Path) -> None:
    """Each sees memory for its own part."""
    root = tmp_path / "root"
    found = played("crowded", "sharded", SHARDED_MIB, root, 2, pod=2)
    assert found == [f"{list(range(1, STEPS + 1))} False"] * 2


def test_a_rank_that_has_memory_for_its_part_only_between_two_steps_saves_at_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert played("wide", "whole", WHOLE_MIB, root, 1) == [f"{list(range(1, STEPS + 1))} False"]
