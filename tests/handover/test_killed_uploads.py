"""Between two parts of a large object on a real S3 server, whoever uploads is killed, or the server stands still: the
older commit stays, or the newer one appears whole. The parts that nobody completes are found and removed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness.local_members import UID, LocalMembers
from e2e.harness.local_s3 import S3Server
from perdure.cli.main import main
from perdure.log.entry import Committed
from perdure.log.reader import Log
from perdure.log.writer import Resume, Writer
from perdure.store import Store, open_store
from perdure.wire import Env, ExitKind
from tests.handover import forking, large_saves
from tests.handover.test_saves import SAVES, of_agent
from tests.support.forked import Forked
from tests.support.gate import Gate, gated
from tests.unit.runtime.session.test_killed_saves import EPOCH_STEPS
from tests.unit.runtime.store.s3 import require_versitygw

BUCKET = "checkpoints"
ROOT = f"s3://{BUCKET}/job"
PASSING = 1
"""Parts of the second save that are stored when somebody is killed; two more are missing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    require_versitygw()
    with S3Server(tmp_path / "s3") as server:
        server.create_bucket(BUCKET)
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    environ = {**forking.ENVIRON, **SAVES, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [str(large_saves.__file__), str(folder / "root")]
    with (folder / "said").open("w+b") as said:
        process = Forked(command, cwd=folder, env=environ, stdout=said.fileno())
        assert process.wait(300) == 0
    return (folder / "said").read_text().split()[-1]


def saving(folder: Path, environ: dict[str, str]) -> LocalMembers:
    argv = [sys.executable, str(large_saves.__file__), ROOT]
    return forking.members(argv, folder, {**SAVES, **environ, "PERDURE_ROOT": ROOT})


def committed(store: Store) -> list[int]:
    """Steps, in order; the last one may be there twice."""
    log = Log(store)
    head = log.head()
    slots = log.entries(head.seq if head else 0)
    return [slot.entry.event.step for slot in slots if slot.entry and isinstance(slot.entry.event, Committed)][::-1]


def unfinished(server: S3Server) -> list[str]:
    """The step of each object of which only parts are there."""
    found = server.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    return [one["Key"].removeprefix("job/data/1/").partition("-")[0] for one in found]


def collect(capfd: pytest.CaptureFixture[str]) -> str:
    """The last line of `perdure gc --delete`."""
    capfd.readouterr()
    assert main(["gc", ROOT, "--delete"]) == 0
    return capfd.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("victim", ["uploader", "trainer", pytest.param("agent", marks=pytest.mark.chaos)])
def test_a_kill_between_two_parts_of_a_save(
    tmp_path: Path, server: S3Server, undisturbed: str, victim: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What waited comes to the server late, as from a process that was frozen."""
    store, gate, second = open_store(ROOT, server.environ), Gate(upload=2, passing=PASSING), str(2 * EPOCH_STEPS)
    with gated(server, gate) as front, saving(tmp_path, {**server.environ, Env.S3_ENDPOINT: front}) as job:
        job.first_run("a")
        job.waits("some parts of the second save are stored", gate.between.is_set)
        assert unfinished(server) == [second]
        agent = job.members["a"].process.pid
        ((uploader, trainer),) = of_agent(agent).items()
        os.kill({"uploader": uploader, "trainer": trainer, "agent": agent}[victim], signal.SIGKILL)
        job.waits("it is gone", lambda: not Path(f"/proc/{uploader}").exists())
        gate.opened.set()
        ended = job.members["a"].process.wait(300)
        said = job.members["a"].said
    assert unfinished(server) == [second]
    if victim == "uploader":  # another one has uploaded the same copy
        assert ended == 0
        assert committed(store) == [EPOCH_STEPS * epoch for epoch in range(1, large_saves.EPOCHS + 1)]
        assert "and 0 unfinished uploads" in collect(capfd)  # of this very run: somebody may be uploading
        writer = Writer(Log(store), uid=UID, run=None)
        assert isinstance(writer.try_open(1, wait_over=True), Resume)
        assert "and 1 unfinished uploads" in collect(capfd)
    else:
        assert committed(store) == [EPOCH_STEPS]
        assert "and 0 unfinished uploads" in collect(capfd)
        with saving(tmp_path, server.environ) as job:
            member = job.standby("b")
            job.waits("it is warm", lambda: member.warm)
            job.begins(2, "b", lost=[1])
            assert member.outcome().outcome is ExitKind.COMPLETED
            said = member.said
        assert f"resumed from commit 2, step {EPOCH_STEPS}" in said
    assert unfinished(server) == []
    assert main(["verify", ROOT]) == 0
    assert undisturbed in said.split()


def test_a_server_that_stands_still_between_two_parts_stops_no_training_and_its_save_is_made(
    tmp_path: Path, server: S3Server, undisturbed: str
) -> None:
    """All of the third epoch is trained meanwhile."""
    gate = Gate(upload=2, passing=PASSING)
    with gated(server, gate) as front, saving(tmp_path, {**server.environ, Env.S3_ENDPOINT: front}) as job:
        job.first_run("a")
        job.waits("some parts of the second save are stored", gate.between.is_set)
        server.freeze()
        gate.opened.set()
        last = f"step {large_saves.EPOCHS * EPOCH_STEPS}"
        job.waits("the last step is trained", lambda: last in job.members["a"].said.splitlines())
        server.thaw()
        assert job.members["a"].process.wait(300) == 0
        said = job.members["a"].said
    store = open_store(ROOT, server.environ)
    assert committed(store) == [EPOCH_STEPS * epoch for epoch in range(1, large_saves.EPOCHS + 1)]
    assert unfinished(server) == []
    assert main(["verify", ROOT]) == 0
    assert undisturbed in said.split()
