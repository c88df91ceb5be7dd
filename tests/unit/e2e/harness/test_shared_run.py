"""What the processes of one test run share, with real processes beside this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness.shared_run import VARIABLE, SharedRun

REPOSITORY = Path(__file__).parents[4]
HOLDING = """
import sys
from e2e.harness.shared_run import SharedRun
with SharedRun.current().{lock}:
    print("taken", flush=True)
    sys.stdin.read()
"""
BEGINNING = [sys.executable, "-c", "from e2e.harness.shared_run import SharedRun; SharedRun.begin()"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SharedRun]:
    monkeypatch.setenv(VARIABLE, "set, so that it is restored")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    begun = SharedRun.begin()
    yield begun
    begun.end()


def holder(lock: str) -> subprocess.Popen[str]:
    """Another process of the run that has that lock."""
    argv = [sys.executable, "-c", HOLDING.format(lock=lock)]
    process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "taken\n"
    return process


def test_a_result_is_made_once_and_is_the_same_for_all_callers(run: SharedRun) -> None:
    assert run.once("weights", lambda: {"hash": "1"}) == {"hash": "1"}
    assert SharedRun.current().once("weights", lambda: {"hash": "2"}) == {"hash": "1"}


def test_what_could_not_be_made_is_tried_again(run: SharedRun) -> None:
    with pytest.raises(ZeroDivisionError):
        run.once("ratio", lambda: 1 / 0)
    assert run.once("ratio", lambda: 2) == 2


def test_a_lane_that_another_process_has_is_left_to_it(run: SharedRun) -> None:
    with holder("locked('a')") as other:
        with run.one_of(["a", "b"]) as lane:
            assert lane == "b"
        other.communicate()
    with run.one_of(["a", "b"]) as lane:
        assert lane == "a"


def test_a_lock_ends_with_the_process_that_holds_it(run: SharedRun) -> None:
    with holder("locked('cluster')") as other:
        other.kill()
    with run.locked("cluster"):
        pass


def test_those_who_share_a_lock_do_not_wait_for_each_other(run: SharedRun) -> None:
    with holder("locked('cluster', shared=True)") as other:
        with run.locked("cluster", shared=True):
            pass
        other.communicate()


def test_tests_that_are_not_over_are_named(run: SharedRun) -> None:
    run.finished("tests/a.py::test_one")
    assert run.wait_for(["tests/a.py::test_one", "tests/a.py::test_two"], seconds=0) == ["tests/a.py::test_two"]
    run.finished("tests/a.py::test_two")
    assert run.wait_for(["tests/a.py::test_one", "tests/a.py::test_two"], seconds=0) == []


def test_what_a_killed_run_has_left_is_removed_by_the_next_one(run: SharedRun) -> None:
    with subprocess.Popen(BEGINNING, cwd=REPOSITORY) as killed:
        killed.wait()
    left = [path for path in run.folder.parent.glob("perdure-tests-*") if path != run.folder]
    again = SharedRun.begin()
    assert len(left) == 1
    assert not left[0].exists()
    assert run.folder.exists()
    again.end()


def test_nothing_of_a_run_stays(run: SharedRun) -> None:
    run.add_cluster("scenarios")
    assert run.clusters() == ["scenarios"]
    run.forget_cluster("scenarios")
    assert run.clusters() == []
    run.end()
    assert not run.folder.exists()
