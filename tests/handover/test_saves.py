"""A real agent is killed or stands still while its trainer has a save under way in the background."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.harness.local_members import LocalMembers
from perdure.cli.main import main
from perdure.wire import ExitKind
from tests.handover import forking
from tests.support.uploaders import uploaders
from tests.unit.runtime.session import killed_saves
from tests.unit.runtime.session.test_killed_saves import EPOCH_STEPS, Ranks, is_stopped

EPOCHS = 3
SAVES = {"PERDURE_BACKGROUND_BYTES": "0", "PERDURE_EVERY_STEPS": "", "PERDURE_EVERY_EPOCHS": "1"}
"""An epoch's save begins where the one before is settled: the second one always comes to its upload."""
SECOND_STANDS = ["after StartUpload", "uploader", str(int(signal.SIGSTOP)), "2"]


def saving(folder: Path, *disturbance: str) -> LocalMembers:
    argv = [sys.executable, str(killed_saves.__file__), str(folder / "root"), str(EPOCHS), *disturbance]
    return forking.members(argv, folder, SAVES)


def commits(job: LocalMembers) -> list[int]:
    return [entry.body["step"] for entry in job.root.entries() if entry.kind == "Committed"]


def parent_of(pid: int) -> int:
    """0 where there is no such process."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def of_agent(agent: int) -> dict[int, int]:
    """What uploads for the trainers of an agent, and for whom."""
    return {pid: trainer for pid, trainer in uploaders().items() if parent_of(trainer) == agent}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_an_agent_that_is_killed_or_stopped_leaves_no_uploader_and_costs_no_commit(
    tmp_path: Path, number: signal.Signals
) -> None:
    (undisturbed,) = Ranks(tmp_path / "undisturbed", 1, EPOCHS, environ=SAVES).result()
    with saving(tmp_path, *SECOND_STANDS) as job:
        job.first_run("a")
        agent = job.members["a"].process.pid
        job.waits("the second save stands still", lambda: any(map(is_stopped, of_agent(agent))))
        ((uploader, trainer),) = of_agent(agent).items()
        job.kill("a", number)
        if number is signal.SIGSTOP:
            os.kill(uploader, signal.SIGCONT)
            job.waits("the save is committed without the agent", lambda: len(commits(job)) > 1)
            job.kill("a", signal.SIGCONT)
            assert job.members["a"].outcome().outcome is ExitKind.COMPLETED
        left = {uploader, trainer}
        job.waits("nobody is left", lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
        said = job.members["a"].said
    if number is signal.SIGKILL:
        assert commits(job) == [EPOCH_STEPS]
        with saving(tmp_path) as job:
            member = job.standby("b")
            job.waits("it is warm", lambda: member.warm)
            job.begins(2, "b", lost=[1])
            assert member.outcome().outcome is ExitKind.COMPLETED
            said = member.said
        assert f"resumed from commit 2, step {EPOCH_STEPS}" in said
    assert main(["verify", str(job.folder / "root")]) == 0
    assert undisturbed in said.split()
