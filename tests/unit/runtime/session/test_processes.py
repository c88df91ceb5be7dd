"""Scripts as users start them: a laptop's Ctrl-C, a request before the first step, a mistake, a session's own exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from e2e.harness.local_run import free_port
from perdure.agent.exit_cause import judge
from perdure.agent.machine import _after
from perdure.agent.state import Process, ProcessEnded, TrainerProcesses
from perdure.wire import CommitRef, Env, ErrorName, ExitKind, Outcome
from perdure.wire.channel import Attached, Exiting, SessionOpened, StepDone, TrainerReport, read_report
from tests.support.forked import Executed, Forked
from tests.unit.runtime.records import kinds

REPOSITORY = Path(__file__).parents[4]
DIGITS = REPOSITORY / "examples" / "digits" / "train.py"
PACED = REPOSITORY / "e2e" / "scenarios" / "trainers" / "paced.py"
STILL_THERE = {"PACE_SECONDS": "0.2", "PACE_HOLDS": "1", "PACE_HOLD_SECONDS": "1"}
"""When Ctrl-C comes: all 48 steps are done within a moment else."""
SECONDS = 120

STUCK = """
import threading, perdure
session = perdure.Session.from_env()
perdure.restore(session)
threading.Event().wait()
"""

OWN_HOOK = """
import sys, perdure
session = perdure.Session.from_env()
sys.excepthook = lambda *_: print("the script's own hook")
raise ValueError("sample 17")
"""

MISTAKE = """
import perdure
session = perdure.Session.from_env()
session.register(model=3)
"""


@dataclass
class Script:
    """A running script, and what it reports to its agent."""

    process: subprocess.Popen[str]
    reports: IO[str]

    def until(self, kind: type[TrainerReport]) -> TrainerReport:
        """The next report of this kind; fails when the script ends without one."""
        for line in self.reports:
            report = read_report(line)
            if isinstance(report, kind):
                return report
        raise AssertionError(f"no {kind.__name__}; the script said: {self.process.communicate()[0][-3000:]}")

    def end(self) -> str:
        """What it printed, once it has ended."""
        return self.process.communicate(timeout=SECONDS)[0]


@contextmanager
def script(
    folder: Path, *command: str, environ: Mapping[str, str] | None = None, executed: bool = False
) -> Iterator[Script]:
    """Forked, where the test is not about an interpreter's whole life."""
    reader, writer = os.pipe()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    given = inherited | {Env.REPORT_FD: str(writer), "OMP_NUM_THREADS": "1"} | dict(environ or {})
    start = partial(Executed if executed else Forked, command, cwd=folder, env=given, pass_fds=[writer])
    process = start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    os.close(writer)
    with os.fdopen(reader) as reports, process:
        try:
            yield Script(process, reports)
        finally:
            process.kill()


def log(folder: Path) -> list[str]:
    """The kinds of its entries, oldest first."""
    return kinds(folder / "checkpoints")


def test_on_a_laptop_ctrl_c_saves_and_the_same_command_goes_on_to_the_end(tmp_path: Path) -> None:
    command = (str(PACED), str(DIGITS), "--epochs", "2")
    with script(tmp_path, *command, environ=STILL_THERE, executed=True) as first:
        first.until(StepDone)
        first.process.send_signal(signal.SIGINT)
        ending = first.until(Exiting)
        assert isinstance(ending, Exiting)
        assert "Ctrl-C again to give up" in first.end()
        assert (ending.outcome, first.process.returncode) == (ExitKind.CHECKPOINTED, 0)
        assert ending.commit == CommitRef(2, ending.step)
        assert {"start", "import", "rendezvous", "restore", "agree", "stage", "upload", "commit"} <= set(ending.seconds)
    with script(tmp_path, *command, environ={"PACED_RUNS": "-1"}) as second:
        second.until(Attached)
        assert second.until(SessionOpened) == SessionOpened(2)
        assert second.until(SessionOpened) == SessionOpened(2, ending.commit, step=ending.step)
        assert second.until(StepDone) == StepDone(ending.step + 1, epoch=0)
        end = second.until(Exiting)
        assert isinstance(end, Exiting)
        assert (end.outcome, end.step) == (ExitKind.COMPLETED, 48)
        assert "accuracy 0." in second.end()
    assert log(tmp_path) == ["Opened", "Committed", "Opened", "Committed", "Completed"]


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"PERDURE_EVERY_STEPS": "-1"}, "perdure: UserError: PERDURE_EVERY_STEPS is '-1'"),
        ({"PERDURE_ROOT": "ftp://here"}, "perdure: UserError: checkpoint root 'ftp://here'"),
        ({"PERDURE_FROM": "{"}, "perdure: UserError: PERDURE_FROM is '{'"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "perdure: UserError: WORLD_SIZE is above 1"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(tmp_path: Path, environ: dict[str, str], told: str) -> None:
    with script(tmp_path, "-c", "import perdure\nperdure.Session.from_env()", environ=environ) as wrong:
        (line,) = wrong.end().splitlines()
    assert line.startswith(told)
    assert wrong.process.returncode == 1


def test_a_variable_with_a_letter_too_few_is_reported(tmp_path: Path) -> None:
    with script(tmp_path, str(DIGITS), "--epochs", "1", environ={"PERDURE_EVERYSTEPS": "10"}) as trained:
        assert "PERDURE_EVERYSTEPS is set, which Perdure does not know: PERDURE_EVERY_STEPS is meant?" in trained.end()


def test_a_shell_does_not_take_a_training_that_was_interrupted_for_done(tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ = inherited | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "SCRIPT": str(DIGITS)}
    line = '"$PYTHON" "$SCRIPT" --epochs 1 && echo "it is done" || echo "status $?"'
    shell = subprocess.run(
        ["sh", "-c", line],
        cwd=tmp_path,
        env=environ | {"PERDURE_EXIT_AT_STEP": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "status 75" in shell.stdout
    with script(tmp_path, str(DIGITS), "--epochs", "1") as ended:
        ended.end()
        assert ended.process.returncode == 0


def test_a_request_before_the_first_step_closes_the_log_although_the_script_hangs(tmp_path: Path) -> None:
    with script(tmp_path, "-c", STUCK) as stuck:
        stuck.until(SessionOpened)
        stuck.process.send_signal(signal.SIGTERM)
        ending = stuck.until(Exiting)
        assert isinstance(ending, Exiting)
        assert "before the first step" in stuck.end()
        assert (ending.outcome, stuck.process.returncode) == (ExitKind.STOPPED, 0)
    assert log(tmp_path) == ["Opened", "Closed"]


def test_a_script_with_a_hook_of_its_own_has_its_error_reported_at_the_end(tmp_path: Path) -> None:
    with script(tmp_path, "-c", OWN_HOOK) as wrong:
        ending = wrong.until(Exiting)
        assert isinstance(ending, Exiting)
        assert ending.error is not None
        assert (ending.outcome, ending.error.name) == (ExitKind.FAILED, "ValueError")
        assert "the script's own hook" in wrong.end()


OWN_GROUP = """
import os, torch.distributed as dist, perdure
os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
perdure.Session.from_env()
"""


@pytest.mark.parametrize(
    ("mistake", "remedy"), [(MISTAKE, "register(model=...)"), (OWN_GROUP, "remove init_process_group")]
)
def test_a_users_mistake_is_one_message_and_no_traceback(tmp_path: Path, mistake: str, remedy: str) -> None:
    with script(tmp_path, "-c", mistake) as wrong:
        ending = wrong.until(Exiting)
        assert isinstance(ending, Exiting)
        assert ending.error is not None
        assert (ending.outcome, ending.error.name) == (ExitKind.FAILED, "UserError")
        said = wrong.end()
        assert wrong.process.returncode == 1
    assert remedy in said
    assert "Traceback" not in said


PAIR = """
import sys, threading, torch, perdure
from perdure.group import heartbeat
heartbeat.BEAT_SECONDS, heartbeat.SILENCE_SECONDS = 0.1, float(sys.argv[1])
session = perdure.Session.from_env()
model = session.wrap(torch.nn.Linear(4, 2))
session.register(model=model)
samples = torch.utils.data.TensorDataset(torch.randn(4096, 4))
for epoch in session.epochs(1000):
    for (inputs,) in session.loader(samples, batch_size=8):
        if session.rank == 0 and session.steps_done == int(sys.argv[2]):
            threading.Event().wait(float(sys.argv[3]))
        session.weighted(model(inputs).sum()).backward()
        session.step()
"""


@contextmanager
def together(folder: Path, *command: str) -> Iterator[list[Script]]:
    """The same script on two ranks."""
    master = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with (
        script(folder, *command, environ={**master, "RANK": "0"}) as one,
        script(folder, *command, environ={**master, "RANK": "1"}) as two,
    ):
        yield [one, two]


@contextmanager
def pair(folder: Path, silence: float, *, slow_step: int = -1, takes: float = 0.0) -> Iterator[list[Script]]:
    """Two ranks that train until they are stopped; rank 0 takes so many seconds for `slow_step`."""
    with together(folder, "-c", PAIR, str(silence), str(slow_step), str(takes)) as ranks:
        yield ranks


@pytest.mark.parametrize("asked", [0, 1])
def test_a_rank_whose_peer_has_fallen_silent_does_not_wait_for_it_when_it_is_asked_to_leave(
    tmp_path: Path, asked: int
) -> None:
    with pair(tmp_path, 1.0) as ranks:
        for rank in ranks:
            rank.until(StepDone)
        ranks[1 - asked].process.send_signal(signal.SIGSTOP)
        ranks[asked].process.send_signal(signal.SIGTERM)
        ending = ranks[asked].until(Exiting)
        assert isinstance(ending, Exiting)
        assert ending.outcome is ExitKind.PEER_LOST
        assert f"no heartbeat of rank {1 - asked} came" in ranks[asked].end()
        assert ranks[asked].process.returncode == 1


def test_a_request_before_the_first_step_is_one_line_on_every_rank(tmp_path: Path) -> None:
    with pair(tmp_path, 60.0, slow_step=0, takes=SECONDS) as ranks:
        for rank in ranks:
            rank.until(SessionOpened)
            rank.until(SessionOpened)
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
        for rank in ranks:
            ending = rank.until(Exiting)
            assert isinstance(ending, Exiting)
            assert (ending.outcome, ending.step) == (ExitKind.STOPPED, 0)
            said = rank.end()
            assert "asked to leave before the first step was done" in said
            assert "Traceback" not in said
    assert log(tmp_path) == ["Opened", "Closed"]


def test_a_peer_that_is_only_slow_is_waited_for(tmp_path: Path) -> None:
    with pair(tmp_path, 6.0, slow_step=3, takes=9.0) as ranks:
        for _ in range(3):
            ranks[1].until(StepDone)
        ranks[1].process.send_signal(signal.SIGTERM)  # it waits for rank 0 in its fourth step
        for rank in ranks:
            ending = rank.until(Exiting)
            assert isinstance(ending, Exiting)
            assert ending.outcome is ExitKind.CHECKPOINTED
            assert ending.step >= 4


def test_an_emptied_log_ends_the_script_before_anything_is_trained_or_written(tmp_path: Path) -> None:
    with script(tmp_path, str(DIGITS), environ={Env.FLOOR: '{"seq": 9, "step": 96}'}) as late:
        ending = late.until(Exiting)
        assert isinstance(ending, Exiting)
        assert ending.error is not None
        assert (ending.outcome, ending.error.name, ending.step) == (ExitKind.FAILED, ErrorName.LOG_LOST, 0)
        assert "commit 9 of step 96 was made, and now there is no log" in ending.error.tail
        said = late.end()
        assert late.process.returncode == 1
    assert "Traceback" not in said
    assert log(tmp_path) == []


LIFE = """
import os, sys, torch, perdure
after, kept = sys.argv[1], sys.argv[2] == "with"
session = perdure.Session.from_env()
session.register(model=torch.nn.Linear(1, 1))
samples = torch.utils.data.TensorDataset(torch.ones(8, 1))
def main():
    for epoch in session.epochs(2):
        for _ in session.loader(samples, batch_size=4):
            session.step()
    print("trained", session.steps_done, flush=True)
    exec(after)
if kept:
    with session:
        main()
else:
    main()
"""
TRAINED = ["Opened", "Committed"]


def lived(folder: Path, after: str, *, kept: str) -> tuple[Outcome, list[str]]:
    """What the agent makes of a script that does `after` once it has trained, and the log."""
    process = Process(0)
    with script(folder, "-c", LIFE, after, kept) as one:
        reports = [report for line in one.reports if (report := read_report(line))]
        assert "trained 4" in one.end()
        for report in reports:
            process = _after(process, process.highest, report, 0.0)
        return judge(
            TrainerProcesses(process.highest, (process,)), process, ProcessEnded(0, one.process.returncode)
        ), log(folder)


@pytest.mark.parametrize(
    ("kept", "after", "outcome", "recorded"),
    [
        ("without", "pass", ExitKind.COMPLETED, True),
        ("without", "os._exit(0)", ExitKind.COMPLETED, False),
        ("without", "sys.exit(0)", ExitKind.COMPLETED, True),
        ("without", "raise SystemExit(0)", ExitKind.COMPLETED, False),
        ("without", "raise SystemExit(3)", ExitKind.FAILED, False),
        ("without", "sys.exit('no room')", ExitKind.FAILED, False),
        ("with", "os._exit(3)", ExitKind.FAILED, False),
        ("with", "raise ValueError('no room')", ExitKind.FAILED, False),
    ],
    ids=[
        "its-end",
        "hard-exit-with-0",
        "exit-with-0",
        "bare-exit-with-0",
        "bare-exit-with-3",
        "exit-with-words",
        "hard-exit-with-3",
        "exception",
    ],
)
def test_a_job_is_completed_where_its_script_ends_well(
    tmp_path: Path, kept: str, after: str, outcome: ExitKind, recorded: bool
) -> None:
    told, entries = lived(tmp_path, after, kept=kept)
    assert (told.outcome, entries) == (outcome, [*TRAINED, *["Completed"][: int(recorded)]])


def test_a_bare_exit_with_3_has_failed_and_the_next_run_does_what_comes_after_the_training(tmp_path: Path) -> None:
    told, recorded = lived(tmp_path, "raise SystemExit(3)", kept="without")
    assert recorded == TRAINED
    assert (told.outcome, told.error.name if told.error else "") == (ExitKind.FAILED, "3")
    again, entries = lived(tmp_path, "pass", kept="with")
    assert (again.outcome, entries[-2:]) == (ExitKind.COMPLETED, ["Opened", "Completed"])


ENDING_PAIR = """
import sys, time, torch, perdure
with perdure.Session.from_env() as session:
    model = session.wrap(torch.nn.Linear(4, 2))
    session.register(model=model)
    samples = torch.utils.data.TensorDataset(torch.randn(8, 4))
    for epoch in session.epochs(1):
        for (inputs,) in session.loader(samples, batch_size=4):
            session.weighted(model(inputs).sum()).backward()
            session.step()
    if session.rank == int(sys.argv[1]):
        time.sleep(float(sys.argv[2]))
        exec(sys.argv[3])
"""


def ended_together(folder: Path, rank: int, seconds: float, act: str) -> list[ExitKind]:
    with together(folder, "-c", ENDING_PAIR, str(rank), str(seconds), act) as ranks:
        endings = [one.until(Exiting) for one in ranks]
        return [ending.outcome for ending in endings if isinstance(ending, Exiting)]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_job_is_complete_when_the_work_of_every_rank_is_done(tmp_path: Path, slow: int) -> None:
    assert ended_together(tmp_path, slow, 1.0, "") == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    assert log(tmp_path) == [*TRAINED, "Completed"]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_whose_export_fails_completes_nothing_for_anybody(tmp_path: Path, failing: int) -> None:
    found = ended_together(tmp_path, failing, 0.2, "raise ValueError('no room')")
    assert found == [ExitKind.FAILED if rank == failing else ExitKind.PEER_LOST for rank in range(2)]
    assert log(tmp_path) == TRAINED


WORKERS = """
import hashlib, multiprocessing, os, subprocess, sys
import torch, perdure
from torch.utils.data import DataLoader, TensorDataset

def train(method, persistent, asked_at, own):
    with perdure.Session.from_env() as session:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        session.register(model=model, optimizer=optimizer)
        data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96)
        options = dict(num_workers=2, multiprocessing_context=method, persistent_workers=persistent)
        batches = session.loader(data, batch_size=4, **(dict() if own else options))
        for epoch in session.epochs(2):
            evaluation = iter(DataLoader(data, 4, **options)) if own else None
            for (inputs,) in batches:
                optimizer.zero_grad()
                session.weighted(model(inputs).square().mean()).backward()
                optimizer.step()
                session.step()
                if session.steps_done == asked_at:
                    print("workers", len(multiprocessing.active_children()), flush=True)
                    subprocess.run(["kill", "-TERM", "--", f"-{os.getpgid(0)}"])
    print("weights", hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())

if __name__ == "__main__":
    os.setsid()
    train(sys.argv[1], sys.argv[2] == "True", int(sys.argv[3]), sys.argv[4] == "own")
"""


@pytest.mark.parametrize(
    ("method", "persistent", "whose"),
    [
        ("fork", False, "the session's"),
        ("fork", True, "the session's"),
        pytest.param("spawn", False, "the session's", marks=pytest.mark.chaos),
        ("fork", False, "own"),
    ],
)
def test_a_sigterm_to_the_whole_process_group_leaves_the_workers_of_loaders_to_the_save(
    tmp_path: Path, method: str, persistent: bool, whose: str
) -> None:
    """The script's output ends only with the last worker, which has it open."""
    (tmp_path / "workers.py").write_text(WORKERS)

    def run(folder: str, asked_at: int) -> tuple[Exiting, str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = (str(tmp_path / "workers.py"), method, str(persistent), str(asked_at), whose)
        environ = {"PERDURE_CHECK_SECONDS": "0"}
        with script(tmp_path / folder, *command, environ=environ, executed=method != "fork") as started:
            ending = started.until(Exiting)
            assert isinstance(ending, Exiting)
            return ending, started.end()

    asked, said = run("asked", 8)
    assert "workers 2" in said
    assert (asked.outcome, asked.step, "killed by signal" in said) == (ExitKind.CHECKPOINTED, 9, False)
    resumed, weights = run("asked", -1)
    undisturbed, expected = run("undisturbed", -1)
    assert (resumed.outcome, resumed.step, undisturbed.step) == (ExitKind.COMPLETED, 12, 12)
    assert weights.splitlines()[-1] == expected.splitlines()[-1]
