"""Real agents, real trainers, no cluster: a run that cannot use the newest commit says what that costs."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.harness import evidence
from e2e.harness.lab import DIGITS
from perdure.agent.linux import descendants
from perdure.wire import Beginning, Env, ExitKind
from tests.handover import forking
from tests.handover.judging import drawn

TRAINERS = Path(__file__).parents[2] / "e2e" / "scenarios" / "trainers"
PACE = {"PACE_SECONDS": "0.05", "PACED_RUNS": "1"}
EVERY_STEPS = 4


def test_the_members_tell_of_the_commit_and_where_their_run_has_begun_instead(tmp_path: Path) -> None:
    script = [sys.executable, str(TRAINERS / "paced.py"), str(DIGITS / "train.py"), "--epochs=1"]
    with forking.members(script, tmp_path, {**PACE, Env.EVERY_STEPS: str(EVERY_STEPS)}) as job:
        job.first_run("a", "b", beside="cd")
        job.trains(1, 3 * EVERY_STEPS + 1)
        trainers = [pid for name in "ab" for pid in descendants(job.members[name].process.pid)]
        for name in "ab":
            job.kill(name)
        # A trainer dies just after its agent, and may commit once more until then.
        job.waits("nobody is left", lambda: not any(Path(f"/proc/{pid}").exists() for pid in trainers))
        commits = [entry for entry in job.root.entries() if entry.kind == "Committed"]
        newest, older = commits[-1], commits[-2]
        harm(tmp_path, newest)
        job.begins(2, "cd", lost=(1,))
        ended = [job.members[name].outcome() for name in "cd"]
    entries, steps = job.root.entries(), job.root.trace().steps
    began = older.body["step"]
    reached = max(step.step for step in steps if step.run == 1)
    assert {one.outcome for one in ended} == {ExitKind.COMPLETED}
    assert {one.begun for one in ended} == {(Beginning(2, began),)}
    for skipped in (one.skipped_commit for one in ended):
        assert skipped is not None
        assert (skipped.run, skipped.steps) == (2, newest.body["step"] - began)
        assert skipped.why.startswith(f"commit {newest.seq} of step {newest.body['step']}: data/1/")
    assert evidence.steps_lost(entries, steps) == reached - began
    assert drawn((member.said for member in job.members.values()), lost=True) == set()


def harm(folder: Path, commit: evidence.Entry) -> None:
    """Changes a byte of each shard of this commit."""
    data = commit.body["manifest"]["key"].rpartition("/")[0]
    shards = [path for path in folder.rglob("shard-*") if data in str(path)]
    assert shards
    for path in shards:
        found = bytearray(path.read_bytes())
        found[-1] ^= 1
        path.write_bytes(found)
