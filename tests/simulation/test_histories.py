"""Seeded histories of the whole operator: no invariant breaks, every job settles, and a seed is a history."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.harness.shared_run import SharedRun
from tests.simulation import kubelet, scene
from tests.simulation.faults import FAULTS
from tests.simulation.history import History, Request, planned
from tests.simulation.operator_process import OperatorProcess

SEEDS = (
    *(2, 5, 6, 11, 16, 17, 19, 20, 21, 26, 27, 28, 32, 33, 35, 36, 41, 53, 55, 56, 66, 68, 70, 72, 75, 76, 80, 81, 84),
    *(85, 87, 88, 90, 94, 95),
)
"""So few that draw every kind of fault, most of them twice, and count all that the first 96 count."""
PART = 48
"""Histories of one case, on one core: a test run plays several side by side."""
MORE = [tuple(range(first, first + PART)) for first in range(0, 1008, PART)]
"""Left to `make chaos`, which continues with new seeds; `make simulate` plays them, too."""
ROOT = Path(__file__).parents[2]


def simulation(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    """A process of its own; `hash_seed` decides the order of its sets."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environ = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def named(seeds: tuple[int, ...]) -> str:
    return f"{seeds[0]}-{seeds[-1]}"


def played(seeds: tuple[int, ...]) -> tuple[int, str]:
    """These histories: the exit status and the output, with a digest of each; played once in a test run."""

    def play() -> tuple[int, str]:
        done = simulation("run", "--cores=1", "--shrink=1", "--digests", "--seeds", *map(str, seeds))
        return done.returncode, done.stdout + done.stderr

    status, output = SharedRun.current().once(f"histories-{named(seeds)}", play)
    return status, output


@pytest.mark.parametrize("seeds", [SEEDS, *(pytest.param(part, marks=pytest.mark.chaos) for part in MORE)], ids=named)
def test_no_invariant_breaks_in_any_history_of_these_seeds(seeds: tuple[int, ...]) -> None:
    status, output = played(seeds)
    assert status == 0, output


def test_these_histories_draw_every_kind_of_fault() -> None:
    drawn = {fault.name for seed in SEEDS for _, fault, _ in planned(Request(seed))}
    assert drawn == {name for name, fault in FAULTS.items() if not (fault.alone or fault.waits_for)}


def test_a_traceback_in_the_operators_log_fails_the_history() -> None:
    history = History(Request(0, only=("scale",)))

    def mistake() -> None:
        try:
            [].pop()
        except IndexError:
            logging.getLogger("perdure_operator.loop.worker").exception("team/job0: round failed")

    history.world.after(1.0, mistake)
    violation = history.play().violation
    assert violation is not None
    assert (violation.check, violation.words) == ("raised", "IndexError('pop from empty list')")


def test_a_leaders_picture_is_judged_even_while_no_status_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(Request(0, only=("scale",)))

    def mistake() -> None:
        history.world.server.policy.refuse_status = "forbidden"
        monkeypatch.setattr(OperatorProcess, "picture", lambda _: {})

    history.world.after(40.0, mistake)
    violation = history.play().violation
    assert violation is not None
    assert violation.words.endswith("(0: not there)")
    assert history.world.server.policy.refuse_status, "it was seen only after the faults had stopped"


def test_a_pod_that_a_completed_job_leaves_over_is_found_though_an_agent_was_stopped_in_that_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubelet.Kubelet, "hangs", lambda *_: False)  # so the stopped one is like any other
    played = (History(Request(seed, only=("hung-at-the-end",))).play().violation for seed in range(6))
    violation = next((one for one in played if one is not None), None)
    assert violation is not None
    assert violation.check == "leftover"


def test_a_job_whose_script_cannot_change_members_live_grows_with_the_newcomers_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scripts find their obstacle when they are asked. Each growth stops its run once, and ends no newcomer."""
    monkeypatch.setattr(scene, "LIVE_SHARE", 1.0)
    monkeypatch.setattr(scene, "BALKS_SHARE", 1.0)
    results = [History(Request(seed, only=("scale",))).play() for seed in range(6)]
    assert [str(result.violation) for result in results if result.violation] == []
    facts = [fact for result in results for fact in result.facts]
    assert sum("is offered to the trainer" in str(fact.facts.get("line")) for fact in facts) > 6
    ends = {fact.facts["how"] for fact in facts if fact.what == "trainer-ended"}
    assert "handover-failed" not in ends, ends


def test_what_a_kubelet_misses_right_after_readiness_is_shown_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changed file then waits for its pod's next sync, which comes 60 s later and more."""
    monkeypatch.setattr(kubelet, "MISSED_SHARE", 1.0)
    results = [History(Request(seed, only=("drain",))).play() for seed in range(8)]
    assert [str(result.violation) for result in results if result.violation] == []
    assert sum(result.fired["file-missed"] for result in results) > 8
    shown = [fact.facts["seconds"] for result in results for fact in result.facts if fact.what == "file-shown"]
    assert len(shown) > 20
    assert max(shown) < 10


@pytest.mark.parametrize("seed", [SEEDS[-1], *(pytest.param(seed, marks=pytest.mark.chaos) for seed in (5, 16))])
def test_a_seed_gives_the_same_history_each_time_alone_and_after_others_and_whatever_the_order_of_sets(
    seed: int,
) -> None:
    """Addresses of objects and seeds of hashes differ from process to process, and decide nothing."""
    _, output = played(SEEDS)
    together = dict(re.findall(r"^seed (\d+) digest: (\w+)$", output, re.MULTILINE))
    assert len(together) == len(SEEDS), output
    first, second = (simulation("replay", str(seed), "--steps", hash_seed=hash_seed).stdout for hash_seed in (0, 7))
    assert first == second
    assert "every invariant held" in first
    assert f"digest: {together[str(seed)]}" in first, first[-300:]
