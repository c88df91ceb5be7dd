"""A pod deleted in its first second: SIGTERM may come before a handler exists, and still nothing is waited for.

The kubelet runs the preStop hook, then sends SIGTERM. Real agents, as PID 1 of a namespace of their own: there the
kernel drops a signal that is neither handled nor blocked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.agent.stop import HOOK_SECONDS, StopMarker, stop_marker, write_stop
from perdure.host.process_age import born
from perdure.wire import ExitKind, Outcome, Standby, Train, read_outcome, write_assignment

SECONDS = 60
NAMESPACE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
NAMESPACE += ["--pid", "--fork", "--kill-child", "--mount-proc"]
PERDURE = [sys.executable, "-c", "import sys; from perdure.cli.start import main; sys.exit(main())"]
GATED = """
import sys
import perdure.cli.main
from perdure.cli import start

agent = perdure.cli.main.main

def gate():
    print("blocked", file=sys.stderr, flush=True)
    sys.stdin.readline()
    return agent()

perdure.cli.main.main = gate
sys.exit(start.main())
"""
"""The command, held up where its signals are blocked and the agent's handlers are not there yet."""


class Pod:
    """One container whose PID 1 is `perdure run`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = ["run", "--assignment", str(folder / "assignment"), "--state", str(folder / "state")]
        self._options += ["--termination-log", str(folder / "termination-log"), "--", sys.executable, "-c", "pass"]
        (folder / "assignment").write_text(write_assignment(Standby()))

    @contextmanager
    def container(self, *command: str, environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*NAMESPACE, *command, *self._options],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def prestop(self) -> None:
        subprocess.run([*PERDURE, "stop", "--state", str(self._folder / "state")], check=True, timeout=SECONDS)

    def assign(self, assignment: Train) -> None:
        (self._folder / "assignment").write_text(write_assignment(assignment))

    def outcome(self, process: subprocess.Popen[str]) -> Outcome:
        _, said = process.communicate(timeout=SECONDS)
        left = self._folder / "termination-log"
        assert left.exists(), said[-3000:]
        return read_outcome(left.read_text())


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def terminate(process: subprocess.Popen[str]) -> None:
    """SIGTERM for the namespace's PID 1, as the container runtime sends it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if children:  # else it has ended, and so would the kubelet find it
        os.kill(int(children[0]), signal.SIGTERM)


def imports(process: subprocess.Popen[str], number: int) -> None:
    """Returns when the process has printed so many lines, one per module it has imported, or is up."""
    assert process.stderr
    for _ in range(number):
        if "waiting as a standby" in process.stderr.readline():
            return


def test_a_signal_lost_before_the_agent_was_there_is_found_by_its_hook(pod: Pod) -> None:
    with pod.container("sh", "-c", 'echo here >&2; read go; exec "$0" "$@"', *PERDURE) as process:
        imports(process, 1)
        pod.prestop()
        terminate(process)
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        assert pod.outcome(process) == Outcome(ExitKind.STOPPED, 0, 0)
        assert process.returncode == 1


def test_a_signal_that_comes_while_the_agent_is_being_imported_waits_for_its_handler(pod: Pod) -> None:
    with pod.container(sys.executable, "-c", GATED) as process:
        imports(process, 1)
        terminate(process)
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        assert pod.outcome(process).outcome is ExitKind.STOPPED


@pytest.mark.parametrize("modules", [0, 10, 30, 60, 100, 1000])
def test_at_whatever_moment_of_its_start_a_pod_is_deleted_it_has_stopped_at_once(pod: Pod, modules: int) -> None:
    with pod.container(*PERDURE, environ={"PYTHONPROFILEIMPORTTIME": "1"}) as process:
        imports(process, modules)
        pod.prestop()
        terminate(process)
        assert pod.outcome(process).outcome is ExitKind.STOPPED


def test_a_deleted_pod_starts_nothing_although_it_is_assigned(pod: Pod) -> None:
    pod.assign(Train(1, 0, 1, "127.0.0.1:29500"))
    with pod.container("sh", "-c", 'echo here >&2; read go; exec "$0" "$@"', *PERDURE) as process:
        imports(process, 1)
        pod.prestop()
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        assert pod.outcome(process).run == 0


def test_the_grace_counts_from_the_hooks_start(tmp_path: Path) -> None:
    marker = StopMarker(tmp_path)
    assert marker.seen() is None
    before = time.monotonic()
    stop_marker(tmp_path).write_text(repr(born()))  # as if the hook had been started with this process
    began = marker.seen()
    assert began is not None
    assert began < before
    assert marker.seen() is None, "told once"


def test_no_more_is_taken_off_the_grace_than_a_hook_can_take(tmp_path: Path) -> None:
    stop_marker(tmp_path).write_text(repr(born()))
    before = time.monotonic()
    began = StopMarker(tmp_path).seen()
    assert began is not None
    assert began >= before - HOOK_SECONDS


def test_a_marker_that_cannot_be_read_stops_too(tmp_path: Path) -> None:
    stop_marker(tmp_path).write_text("half a num")
    assert StopMarker(tmp_path).seen() is not None


@pytest.mark.parametrize("off", [-1.0, 1e6])
def test_a_marker_left_for_an_agent_before_this_one_is_ignored(tmp_path: Path, off: float) -> None:
    stop_marker(tmp_path).write_text(repr((born() or 0.0) + off))
    assert StopMarker(tmp_path).seen() is None


def test_the_hook_makes_the_folder_that_the_agent_has_not_made_yet(tmp_path: Path) -> None:
    marker = StopMarker(tmp_path / "a" / "b")
    write_stop(tmp_path / "a" / "b")
    assert marker.seen() is not None
