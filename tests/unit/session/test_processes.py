"""Scripts as users start them: a laptop's Ctrl-C, a request before the first step, a mistake, a session's own exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perdure.channel import Attached, Exiting, Opened, Report, Stepped, read_report
from perdure.contract import CommitRef, Env, ExitKind

REPOSITORY = Path(__file__).parents[3]
DIGITS = REPOSITORY / "examples" / "digits" / "train.py"
SECONDS = 120

STUCK = """
import threading, perdure
session = perdure.Session.from_env()
session.restore()
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

    def until(self, kind: type[Report]) -> Report:
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
def script(folder: Path, *command: str) -> Iterator[Script]:
    reader, writer = os.pipe()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ |= {Env.REPORT_FD: str(writer), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        pass_fds=[writer],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(writer)
    with os.fdopen(reader) as reports, process:
        try:
            yield Script(process, reports)
        finally:
            process.kill()


def log(folder: Path) -> list[str]:
    """The log's entries, oldest first."""
    paths = sorted((folder / "checkpoints" / "log").glob("*.json"), reverse=True)
    return [json.loads(path.read_text())["kind"] for path in paths]


def test_on_a_laptop_ctrl_c_saves_and_the_same_command_goes_on_to_the_end(tmp_path: Path) -> None:
    command = (str(DIGITS), "--epochs", "2")
    with script(tmp_path, *command) as first:
        first.until(Stepped)
        first.process.send_signal(signal.SIGINT)
        ending = first.until(Exiting)
        assert isinstance(ending, Exiting)
        assert "Ctrl-C again to give up" in first.end()
        assert (ending.outcome, first.process.returncode) == (ExitKind.CHECKPOINTED, 0)
        assert ending.commit == CommitRef(2, ending.step)
        assert {"start", "import", "rendezvous", "restore", "agree", "stage", "upload", "commit"} <= set(ending.seconds)
    with script(tmp_path, *command) as second:
        second.until(Attached)
        assert second.until(Opened) == Opened(2)
        assert second.until(Opened) == Opened(2, ending.commit)
        assert second.until(Stepped) == Stepped(ending.step + 1)
        end = second.until(Exiting)
        assert isinstance(end, Exiting)
        assert (end.outcome, end.step) == (ExitKind.COMPLETED, 48)
        assert "accuracy 0." in second.end()
    assert log(tmp_path) == ["Opened", "Committed", "Opened", "Committed", "Completed"]


def test_a_request_before_the_first_step_closes_the_log_although_the_script_hangs(tmp_path: Path) -> None:
    with script(tmp_path, "-c", STUCK) as stuck:
        stuck.until(Opened)
        stuck.process.send_signal(signal.SIGTERM)
        ending = stuck.until(Exiting)
        assert isinstance(ending, Exiting)
        assert "before the first step" in stuck.end()
        assert (ending.outcome, stuck.process.returncode) == (ExitKind.STOPPED, 0)
    assert log(tmp_path) == ["Opened", "Closed"]


def test_a_script_with_a_hook_of_its_own_has_its_error_told_at_the_end(tmp_path: Path) -> None:
    with script(tmp_path, "-c", OWN_HOOK) as wrong:
        ending = wrong.until(Exiting)
        assert isinstance(ending, Exiting)
        assert ending.error is not None
        assert (ending.outcome, ending.error.name) == (ExitKind.FAILED, "ValueError")
        assert "the script's own hook" in wrong.end()


def test_a_users_mistake_is_one_message_and_no_traceback(tmp_path: Path) -> None:
    with script(tmp_path, "-c", MISTAKE) as wrong:
        ending = wrong.until(Exiting)
        assert isinstance(ending, Exiting)
        assert ending.error is not None
        assert (ending.outcome, ending.error.name) == (ExitKind.FAILED, "UserError")
        said = wrong.end()
        assert wrong.process.returncode == 1
    assert "register(model=...)" in said
    assert "Traceback" not in said
