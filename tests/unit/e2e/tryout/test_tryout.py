"""`make try` tells the truth in its last line, and its exit status follows it; once it is played."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from e2e.harness.local_run import LocalRun
from e2e.harness.promises import measure
from e2e.harness.watching import Late
from e2e.prepare import PrepareError
from e2e.tryout.__main__ import main
from e2e.tryout.story import Interruption, Result, check, drawn
from tests.support.forked import ForkedRank
from tests.unit.e2e.harness.builders import SIZE, Training, drained

REPORTS = """
import os, signal, sys
fd = os.environ.get("PERDURE_REPORT_FD")
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "reports" if fd else "is quiet", flush=True)
if fd:
    os.write(int(fd), b'{"report": "attached", "pid": 1}\\n{"report": "step", "step": 3}\\n{"report": "st')
    os.write(int(fd), b'ep", "step": 5}\\n')
if fd and not sys.argv[1:]:
    signal.pause()
"""


def result(training: Training, *, weights_equal: bool = True, killed: bool = False) -> Result:
    return Result(
        measure(training.entries, training.trace, samples=SIZE, epochs=2, weights_equal=weights_equal), killed
    )


def test_an_interruption_that_cost_nothing_is_reported_in_one_line_and_holds() -> None:
    clean = result(drained())
    assert clean.holds
    assert clean.line() == "RESULT steps_lost=0 samples_lost=0 samples_repeated=0 weights_equal=true pause_s=6.0"


@pytest.mark.parametrize("killed", [False, True])
def test_other_weights_and_a_lost_sample_never_hold(killed: bool) -> None:
    assert not result(drained(), weights_equal=False, killed=killed).holds
    assert not result(drained().with_ids(2, 1, 4, (0,)), killed=killed).holds


def test_a_lost_step_holds_only_where_a_process_was_killed() -> None:
    assert not result(drained().trained(1, 4, 4)).holds
    assert result(drained().trained(1, 4, 4), killed=True).holds
    assert not result(drained().trained(1, 4, 40), killed=True).holds


def test_the_step_is_drawn_from_the_middle_half_and_a_seed_repeats_it() -> None:
    steps = [drawn(seed, epochs=10, kill=False).step for seed in range(200)]
    assert min(steps) >= 60
    assert max(steps) < 180
    assert len(set(steps)) > 60
    assert drawn(7, epochs=10, kill=True) == Interruption(steps[7], kill=True)


def test_a_watched_run_tells_the_first_step_that_is_far_enough_and_ends_with_the_block(tmp_path: Path) -> None:
    with LocalRun([sys.executable, "-c", REPORTS], tmp_path, world=2, watched=True) as run:
        assert run.reaches(2) == 3
        assert run.reaches(4) == 5
        run.signal(signal.SIGKILL, [0])
        ended = run.ends()
    assert [rank.status for rank in ended] == [-signal.SIGKILL, 0]
    assert [rank.said for rank in ended] == ["rank 0 of 2 reports\n", "rank 1 of 2 is quiet\n"]
    with pytest.raises(PrepareError, match="rank 0 has ended with status -9:\nrank 0 of 2"):
        check(ended, done=False)


def test_a_run_that_ends_before_the_step_is_late_with_its_last_words(tmp_path: Path) -> None:
    with (
        LocalRun([sys.executable, "-c", REPORTS, "end"], tmp_path, world=1, watched=True) as run,
        pytest.raises(Late, match="ended before step 9:\nrank 0 of 1"),
    ):
        run.reaches(9)


def test_two_processes_are_interrupted_and_end_with_the_weights_of_an_undisturbed_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["--epochs", "2", "--seed", "1"], ForkedRank.start)
    said, complaints = capsys.readouterr()
    assert status == 0, said + complaints
    last = said.splitlines()[-1]
    assert last.startswith("RESULT steps_lost=0 samples_lost=0 samples_repeated=0 weights_equal=true pause_s=")
