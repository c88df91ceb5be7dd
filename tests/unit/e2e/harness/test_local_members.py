"""Members that are plain processes: none of them outlives the tests that have started it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[4]
SECONDS = 60
HOLDING = """
import sys, threading
from pathlib import Path
from e2e.harness.local_members import LocalMembers
with LocalMembers([sys.executable, "-c", "pass"], Path(sys.argv[1])) as job:
    member = job.standby("a")
    job.waits("the agent is there", lambda: bool(member.said))
    print(member.process.pid, flush=True)
    threading.Event().wait()
"""


def test_a_test_run_that_is_killed_leaves_no_agent_behind(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        agent = os.pidfd_open(int(holder.stdout.readline()))
        holder.kill()
    ended, _, _ = select.select([agent], [], [], SECONDS)
    os.close(agent)
    assert ended
