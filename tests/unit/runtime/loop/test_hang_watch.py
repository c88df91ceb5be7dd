"""Real scripts that hang, of one rank and of two: what they write, and who is said to wait for whom."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from e2e.harness.local_run import free_port
from perdure.wire.channel import Hangs, Watched, read_report
from perdure.wire.phase_limits import UNKNOWN_SECONDS
from perdure.wire.report import Standing
from tests.support.forked import Forked

SCRIPT = """
import faulthandler, os, random, sys, threading, time
from pathlib import Path
import numpy, torch, perdure
from perdure.loop import hanging
from perdure.wire import phase_limits

if "TRAINING_SECONDS" in os.environ:  # and looks that see each of its steps
    phase_limits.PHASE_SECONDS["training"] = float(os.environ["TRAINING_SECONDS"])
    hanging.LOOK_SECONDS = 0.1
how, who, go = sys.argv[1], int(sys.argv[2]), Path("go")
faulthandler.dump_traceback_later(3600, file=sys.__stdout__)  # the script's own stays its own

def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()

def sleep():
    time.sleep(3600)

def loop():
    while True:
        pass

def waits_for_go():
    before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    while not go.exists():
        time.sleep(0.01)
    after = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    print("nothing was drawn" if before == after else "something was drawn", flush=True)
    if os.fork() == 0:
        print("threads of a child:", [thread.name for thread in threading.enumerate()], flush=True)
        os._exit(0)
    os.wait()

def waits_longer():
    while not go.exists():  # its steps before were seen, one by one
        time.sleep(0.01)

def takes_its_time():
    for number in range(100):
        if number == 75:  # by now the watch has seen that the step before is done
            print("begins", flush=True)
        time.sleep(0.01)

def evaluates():
    for number, _ in enumerate(session.loader(list(range(4)), 1, name="scored", train=False)):
        if number == 1:
            waits_longer()
        if number == 2:
            while not Path("seen").exists():
                time.sleep(0.01)
            ledger = session._core.run.figures.ledger
            hung = ledger.accounts[-1].hang
            time.sleep(0.01)
            print("hung, and no longer" if 0 < hung == ledger.accounts[-1].hang else "hangs on", flush=True)

def gathers():
    while not go.exists():
        time.sleep(0.3 * int(os.environ["RANK"]))
        torch.distributed.all_reduce(torch.ones(1))

def waits_for_a_device():
    before, torch.cuda.is_initialized = torch.cuda.is_initialized, lambda: True
    reader, writer = os.pipe()
    threading.Thread(target=lambda: (waits_longer(), os.close(writer))).start()
    os.read(reader, 1)
    torch.cuda.is_initialized = before

session = perdure.Session.from_env()
net = session.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
session.register(net=net, optimizer=optimizer)
with session:
    for _ in session.epochs(1):
        for number in session.steps(8):
            optimizer.zero_grad()
            net(torch.ones(1, 1)).sum().backward()
            if how in ("waits_longer", "waits_for_a_device") and number < 4:
                time.sleep(0.5)
            if number == 4 and who in (-1, int(os.environ.get("RANK", 0))):
                globals()[how]()
            optimizer.step()
            session.step()
            while number == 4 and go.exists() and not Path("seen").exists():
                time.sleep(0.01)
print("done", flush=True)
"""
SECONDS = 120.0
"""A script that takes longer is killed, and has then not said what it should."""
LIMIT = 3.0
"""Short, and longer than a rank of a busy machine is kept from its work."""
HANGS = re.compile(r"rank (\d): no progress for \d+ s at step (\d+), in phase training, where \d+ s are usual: (.*)")
OWN = {"lock": "its script stands still", "sleep": "its script stands still", "loop": "its script computes"}


@contextmanager
def started(
    folder: Path,
    how: str,
    *,
    who: int = 0,
    world: int = 1,
    environ: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[list[subprocess.Popen[str]]]:
    """The script's ranks, of which `who` does `how` in its fifth step; their files are the output."""
    (folder / "train.py").write_text(SCRIPT)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    given = inherited | {"OMP_NUM_THREADS": "1", "PERDURE_HANG_SECONDS": f"{LIMIT:g}"} | dict(environ or {})
    if world > 1:
        given |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        ranks = list[subprocess.Popen[str]]()
        for rank in range(world):
            own = given | ({"RANK": str(rank)} if world > 1 else {})
            process = Forked(
                ["train.py", how, str(who)],
                cwd=folder,
                env=own,
                pass_fds=pass_fds,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            late = threading.Timer(SECONDS, process.kill)
            late.start()
            stack.callback(late.cancel)
            ranks.append(process)
        yield ranks


def output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def line(process: subprocess.Popen[str], pattern: str | re.Pattern[str]) -> re.Match[str]:
    """The next line with this pattern; fails if the script ends without one."""
    said = []
    for text in output(process):
        said.append(text)
        if found := re.search(pattern, text):
            return found
    raise AssertionError("".join(said))


def stack(process: subprocess.Popen[str], function: str) -> None:
    """The next lines are the stack of its main thread, with this function as the innermost or the one around it."""
    assert output(process).readline() == "thread MainThread, innermost call first:\n"
    innermost = [output(process).readline() for _ in range(2)]
    assert any(f" in {function}" in text for text in innermost), innermost


@pytest.mark.parametrize("how", OWN)
def test_a_rank_alone_that_hangs_writes_where_it_stands(tmp_path: Path, how: str) -> None:
    with started(tmp_path, how) as (process,):
        _, step, words = line(process, HANGS).groups()
        assert step == "4"
        assert words.startswith(OWN[how])
        stack(process, how)


@pytest.mark.parametrize("how", OWN)
def test_of_two_ranks_one_waits_for_the_other_and_the_other_does_not(tmp_path: Path, how: str) -> None:
    with started(tmp_path, how, who=1, world=2) as (waiting, hanging):
        assert line(waiting, HANGS)[3].startswith("its script waits for other ranks")
        assert line(hanging, HANGS)[3].startswith(OWN[how])
        stack(hanging, how)


def test_ranks_that_meet_at_each_batch_of_their_own_evaluation_wait_for_none(tmp_path: Path) -> None:
    """One is in a collective whenever it is looked at, and each time in another one."""
    with started(tmp_path, "gathers", who=-1, world=2) as ranks:
        for rank in ranks:
            assert not line(rank, HANGS)[3].startswith("its script waits for other ranks")


def test_a_rank_that_goes_on_says_so_has_drawn_no_random_number_and_its_children_are_not_watched(
    tmp_path: Path,
) -> None:
    with started(tmp_path, "waits_for_go") as (process,):
        line(process, HANGS)
        (tmp_path / "go").touch()
        assert "nothing" in line(process, "(nothing|something) was drawn")[0]
        assert "perdure-hang-watch" not in line(process, "threads of a child: .*")[0]
        line(process, "progress again, after")
        (tmp_path / "seen").touch()
        assert not HANGS.search(output(process).read())
        assert process.wait() == 0


@pytest.mark.parametrize("world", [1, 2])
def test_a_rank_that_was_stopped_for_longer_than_the_limit_does_not_hang(tmp_path: Path, world: int) -> None:
    with started(tmp_path, "takes_its_time", who=world - 1, world=world) as ranks:
        line(ranks[-1], "begins")
        for rank in ranks:
            rank.send_signal(signal.SIGSTOP)
        time.sleep(2 * LIMIT)  # what is tested: nothing is waited for
        for rank in ranks:
            rank.send_signal(signal.SIGCONT)
        said = [output(rank).read() for rank in ranks]
        assert not any(HANGS.search(text) for text in said), said
        assert all("done" in text for text in said)


def test_the_agent_is_told_of_a_hang_with_its_place_and_of_its_end(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with (
        started(tmp_path, "waits_for_go", environ={"PERDURE_REPORT_FD": str(writer)}, pass_fds=[writer]) as (process,),
        os.fdopen(reader) as reports,
    ):
        os.close(writer)
        line(process, HANGS)
        (tmp_path / "go").touch()
        line(process, "progress again, after")
        (tmp_path / "seen").touch()
        output(process).read()
        told = [read_report(text) for text in reports]
    assert Watched(None) in told, "the operator judges by what it says as long as it looks at itself"
    hangs = [one for one in told if isinstance(one, Hangs)]
    assert not any(one.may_be_work for one in hangs), "the limit is given"
    assert [one.place for one in hangs] == [Standing.STANDS, None]
    assert [one.seconds is None for one in hangs] == [False, True]


def test_a_hang_in_an_evaluation_ends_in_the_account_once_the_evaluation_goes_on(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with (
        started(tmp_path, "evaluates", environ={"PERDURE_REPORT_FD": str(writer)}, pass_fds=[writer]) as (process,),
        os.fdopen(reader),
    ):
        os.close(writer)
        line(process, "no progress for .* in phase evaluating")
        (tmp_path / "go").touch()
        line(process, "progress again, after")
        (tmp_path / "seen").touch()
        line(process, "hung, and no longer")


def test_a_script_that_may_be_at_work_between_two_steps_writes_its_stacks_and_says_so(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    environ = {"PERDURE_REPORT_FD": str(writer), "PERDURE_HANG_SECONDS": "", "TRAINING_SECONDS": f"{LIMIT:g}"}
    with (
        started(tmp_path, "waits_longer", environ=environ, pass_fds=[writer]) as (process,),
        os.fdopen(reader) as reports,
    ):
        os.close(writer)
        line(process, HANGS)
        (tmp_path / "go").touch()
        line(process, "progress again, after")
        (tmp_path / "seen").touch()
        output(process).read()
        hangs = [one for one in map(read_report, reports) if isinstance(one, Hangs)]
    assert [one.may_be_work for one in hangs] == [True, False]


@pytest.mark.parametrize(("how", "may"), [("waits_longer", True), ("waits_for_a_device", False)])
def test_of_several_ranks_one_with_a_device_is_not_at_work_where_it_stays_in_one_call(
    tmp_path: Path, how: str, *, may: bool
) -> None:
    """It may wait there for a kernel that waits for another rank. No device is needed: it says that it has one."""
    reader, writer = os.pipe()
    environ = {"PERDURE_REPORT_FD": str(writer), "PERDURE_HANG_SECONDS": "", "TRAINING_SECONDS": f"{LIMIT:g}"}
    with started(tmp_path, how, who=1, world=2, environ=environ, pass_fds=[writer]) as ranks, os.fdopen(reader) as told:
        os.close(writer)
        line(ranks[1], HANGS)
        (tmp_path / "go").touch()
        line(ranks[1], "progress again, after")
        (tmp_path / "seen").touch()
        for rank in ranks:
            output(rank).read()
        hangs = [one for one in map(read_report, told) if isinstance(one, Hangs) and one.place is Standing.STANDS]
    assert [one.may_be_work for one in hangs] == [may]


def test_a_script_that_wants_no_watch_has_none(tmp_path: Path) -> None:
    with started(tmp_path, "waits_for_go", environ={"PERDURE_HANG_SECONDS": "0"}) as (process,):
        time.sleep(LIMIT)  # what is tested: nothing is waited for
        (tmp_path / "seen").touch()
        (tmp_path / "go").touch()
        said = output(process).read()
        assert "no progress" not in said
        assert "done" in said


def test_a_jobs_limit_for_training_is_told_to_the_agent_beside_that_of_the_log(tmp_path: Path) -> None:
    """The log's is longer here: at the job's, the stacks are written too."""
    reader, writer = os.pipe()
    environ = {"PERDURE_REPORT_FD": str(writer), "PERDURE_HANG_SECONDS": "3600"}
    environ |= {"PERDURE_PROGRESS_TIMEOUT_SECONDS": f"{LIMIT:g}"}
    with (
        started(tmp_path, "waits_longer", environ=environ, pass_fds=[writer]) as (process,),
        os.fdopen(reader) as reports,
    ):
        os.close(writer)
        line(process, HANGS)
        (tmp_path / "go").touch()
        line(process, "progress again, after")
        (tmp_path / "seen").touch()
        output(process).read()
        told = [read_report(text) for text in reports]
    assert [(one.seconds is None, one.ends) for one in told if isinstance(one, Hangs)] == [(False, True), (True, False)]
    allowed = [one.allowed for one in told if isinstance(one, Watched)]
    assert allowed[-1] is None, "behind its session a script has no limit"
    limits = [one for one in allowed if one is not None]
    assert LIMIT <= min(limits) < max(limits) == UNKNOWN_SECONDS
