"""A real agent whose operator takes reports, takes none, or is silent: training goes on in each case."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster.pki import Pki
from perdure.agent.pod_log import Outlet
from perdure.agent.reporter import ReportFeed
from perdure.agent.state import AgentSettings, AgentState, TrainerProcesses
from perdure.wire import CommitRef, ExitKind, Leave, Train
from perdure.wire.report import Channel, TrainerPhase, write_channel
from tests.unit.runtime.agent.member import TRAINER, Member
from tests.unit.runtime.agent.report_server import DEADLINE, EAGER, ReportServer, answer, issued, put_token, serving

RUN1 = Train(1, 0, 2, "10.0.0.1:29500")
RUN2 = Train(2, 1, 2, "10.0.0.1:29501", cause="node n1 is leaving", seconds=60, wait=75)
LEAVE3 = Leave(3, seconds=60)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return issued(tmp_path_factory.mktemp("pki"))


def senders(agent: int) -> list[int]:
    """The processes below this agent that send reports."""
    found = []
    for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            if b"perdure.agent.sender" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def awaits(server: ReportServer, run: int, phase: TrainerPhase, step: int) -> None:
    """Waits for a report of that run, phase and step."""
    while True:
        report = server.next().report
        if (report.run, report.phase, report.step) == (run, phase, step):
            return


def test_an_operator_hears_how_each_run_of_a_pod_goes_from_one_process(pki: Pki, tmp_path: Path) -> None:
    """Not even a trainer's leftover, which is killed with all else that the trainer has started, ends that process."""
    with serving(pki, answer(EAGER)) as server, Member(tmp_path, *TRAINER, "worker_left_behind") as member:
        server.put_into(tmp_path)
        member.assign(RUN1)
        member.told("training")
        awaits(server, 1, TrainerPhase.TRAINING, 5)
        (sender,) = senders(member.process.pid)
        member.assign(RUN2)
        assert member.told("training") == 2
        awaits(server, 2, TrainerPhase.TRAINING, 5)
        assert senders(member.process.pid) == [sender]
        member.assign(LEAVE3)
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.commit, status) == (ExitKind.CHECKPOINTED, CommitRef(4, 6), 0)


@pytest.mark.parametrize("present", ["", "report", "token"], ids=["nothing", "no token", "no channel"])
def test_without_a_channel_and_a_token_nothing_is_started_or_said(tmp_path: Path, present: str) -> None:
    if present:
        (tmp_path / present).write_text("anything")
        (tmp_path / ({"report", "token"} - {present}).pop()).touch()
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign(RUN1)
        member.told("training")
        assert senders(member.process.pid) == []
        member.assign(Leave(2, seconds=60))
        outcome, _ = member.outcome()
        assert outcome.outcome is ExitKind.CHECKPOINTED
        assert not [line for line in member.log if "report" in line or "operator" in line]


def test_a_silent_operator_delays_nothing(tmp_path: Path) -> None:
    """It takes the connection, and never a byte from it: the pod trains, saves and leaves while that is so."""
    with socket.create_server(("127.0.0.1", 0)) as hole, Member(tmp_path, *TRAINER, "drained") as member:
        hole.settimeout(DEADLINE)
        url = f"https://127.0.0.1:{hole.getsockname()[1]}"
        (tmp_path / "report").write_text(write_channel(Channel(url, issued(tmp_path / "pki").authority.read_text())))
        put_token(tmp_path, "a-token")
        with hole.accept()[0]:
            member.assign(RUN1)
            member.told("training")
            member.assign(replace(LEAVE3, run=2))
            outcome, status = member.outcome()
            assert (outcome.outcome, outcome.step, status) == (ExitKind.CHECKPOINTED, 6, 0)


def holders(port: int) -> set[int]:
    """The processes that hold a connection from this local port."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    links = {f"socket:[{row[9]}]" for row in rows if int(row[1].partition(":")[2], 16) == port}
    found = set()
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it is closed, or belongs to somebody else
            if str(file.readlink()) in links:
                found.add(int(file.parts[2]))
    return found


def test_no_process_but_the_sender_holds_a_connection_to_the_operator(tmp_path: Path) -> None:
    """So neither a step nor the agent can wait for the network: they only write to pipes that never block."""
    with socket.create_server(("127.0.0.1", 0)) as hole, Member(tmp_path, *TRAINER, "drained") as member:
        hole.settimeout(DEADLINE)
        url = f"https://127.0.0.1:{hole.getsockname()[1]}"
        (tmp_path / "report").write_text(write_channel(Channel(url, issued(tmp_path / "pki").authority.read_text())))
        put_token(tmp_path, "a-token")
        member.assign(RUN1)
        member.told("training")
        connection, (_, port) = hole.accept()
        with connection:
            (sender,) = senders(member.process.pid)
            assert holders(port) == {sender}


def test_a_dead_sender_is_one_line_and_training_goes_on(pki: Pki, tmp_path: Path) -> None:
    with serving(pki, answer(EAGER)) as server, Member(tmp_path, *TRAINER, "drained") as member:
        server.put_into(tmp_path)
        member.assign(RUN1)
        member.told("training")
        awaits(server, 1, TrainerPhase.TRAINING, 5)
        (sender,) = senders(member.process.pid)
        os.kill(sender, signal.SIGKILL)
        member.hears("perdure: nothing more is reported to the operator: the process that sends it has ended")
        member.assign(RUN2)
        assert member.told("training") == 2
        assert senders(member.process.pid) == []
        member.assign(LEAVE3)
        outcome, _ = member.outcome()
        assert outcome.outcome is ExitKind.CHECKPOINTED
        assert sum("nothing more is reported" in line for line in member.log) == 1


class Feed:
    """A feed in this process, with both files, and what it says."""

    def __init__(self, folder: Path, selector: selectors.BaseSelector, reader: int, writer: int) -> None:
        for name in ("report", "token"):
            (folder / name).write_text("anything")
        self._selector, self._reader, self._log = selector, reader, Outlet(writer)
        self.feed = ReportFeed(folder / "report", folder / "token", os.environ, self._log)

    def look(self, state: AgentState) -> None:
        self.feed.look(state, self._selector)
        self._log.flush()

    def said(self) -> str:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._reader, 1 << 16).decode()
        return ""


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with selectors.DefaultSelector() as selector:
        yield Feed(tmp_path, selector, reader, writer)
    os.close(reader)
    os.close(writer)


IDLE = AgentState(AgentSettings())


def files_of_this_process() -> set[str]:
    return {file.name for file in Path("/proc/self/fd").iterdir()}


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def test_an_agent_without_room_for_another_file_says_so_once_and_goes_on(feed: Feed) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = files_of_this_process()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        feed.look(IDLE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "nothing more is reported to the operator: OSError: [Errno 24]" in feed.said()
    feed.look(IDLE)
    assert (feed.feed.pid, feed.said()) == (None, "")
    assert files_of_this_process() <= opened


def test_a_state_that_cannot_be_reported_ends_the_reports_and_not_the_agent(feed: Feed) -> None:
    """Such a state is a bug of ours: a trainer without a process."""
    opened, before = files_of_this_process(), children()
    feed.look(replace(IDLE, trainer=TrainerProcesses(1, ())))
    assert feed.said().count("nothing more is reported to the operator: IndexError") == 1
    (sender,) = children() - before
    os.waitpid(sender, 0)  # it ends because its stdin is closed
    feed.look(IDLE)
    assert (feed.feed.pid, feed.said()) == (None, "")
    assert files_of_this_process() <= opened
