"""What rank 0 tells its agent that a death costs, by real ranks of whole, sharded and mirrored models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest

from e2e.harness.local_run import LocalRun
from perdure.wire.channel import Figures, read_report
from perdure.wire.report import DeathCost
from tests.handover import forking
from tests.support.forked import ForkedRank

SHARDED = Path(__file__).parent / "sharded_digits.py"
ARGUMENTS = ("--epochs=1", "--batch=192")
SECONDS = 120.0


class Told:
    """The reports of rank 0, which saves after each step and tells its figures with each save."""

    def __init__(self, folder: Path, mirror_every: int | None) -> None:
        self._folder, self._mirror_every = folder, mirror_every
        self._file = folder / "reports"

    def start(self, command: Sequence[str], **options: Any) -> ForkedRank:
        """A rank with the files that an agent gives it."""
        rank = int(options["env"]["RANK"])
        files = [self._folder / f"{name}-{rank}" for name in ("image", "own-0", "own-1", "kept-0", "kept-1")]
        for file in files:
            file.touch()
        image, *mirror = map(str, files)
        environ = {**forking.ENVIRON, **options["env"], "PERDURE_IMAGE": image, "PERDURE_EVERY_STEPS": "1"}
        if self._mirror_every:
            environ |= {"PERDURE_MIRROR_EVERY_STEPS": str(self._mirror_every), "PERDURE_MIRROR_FILES": ":".join(mirror)}
        if rank:
            return ForkedRank.start(command, **{**options, "env": environ})
        with self._file.open("wb") as reports:
            environ["PERDURE_REPORT_FD"] = str(reports.fileno())
            return ForkedRank.start(command, **{**options, "env": environ, "pass_fds": [reports.fileno()]})

    def costs(self) -> list[tuple[DeathCost | None, int | None]]:
        """In the order in which they were told, each once in a row, from the first that is known on."""
        told = [read_report(line) for line in self._file.read_bytes().splitlines()]
        every = [(one.death_cost, one.death_steps) for one in told if isinstance(one, Figures)]
        found = list(dropwhile(lambda one: one == (None, None), every))
        return [one for number, one in enumerate(found) if number == 0 or one != found[number - 1]]


def costs(
    folder: Path, script: Path, world: int, *arguments: str, mirror_every: int | None = None
) -> list[tuple[DeathCost | None, int | None]]:
    """What rank 0 tells from its first save to its end."""
    told = Told(folder, mirror_every)
    command = [sys.executable, str(script), *ARGUMENTS, *arguments]
    with LocalRun(command, folder, world=world, start=told.start) as run:
        ended = run.ends(seconds=SECONDS)
    assert [one.status for one in ended] == [0] * world, [one.said for one in ended]
    return told.costs()


@pytest.mark.parametrize(
    ("script", "world", "arguments", "cost"),
    [
        pytest.param(forking.SCRIPT, 1, (), DeathCost.SINCE_COMMIT, id="one rank"),
        pytest.param(forking.SCRIPT, 2, (), DeathCost.NO_STEP, id="DDP"),
        pytest.param(SHARDED, 2, (), DeathCost.SINCE_COMMIT, id="FSDP"),
        pytest.param(SHARDED, 4, ("--shards=2",), DeathCost.NO_STEP, id="HSDP"),
    ],
)
def test_without_a_mirror_it_depends_on_whether_others_hold_the_same(
    tmp_path: Path, script: Path, world: int, arguments: tuple[str, ...], cost: DeathCost
) -> None:
    assert costs(tmp_path, script, world, *arguments) == [(cost, None)]


def test_with_a_mirror_it_is_bounded_once_all_parts_are_in_two_pods(tmp_path: Path) -> None:
    assert costs(tmp_path, SHARDED, 2, mirror_every=3) == [(DeathCost.UNTIL_MIRRORED, None), (DeathCost.STEPS, 5)]
