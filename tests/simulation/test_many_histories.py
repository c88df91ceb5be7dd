"""The long form of `test_histories`: thousands of histories that no run before has played."""

from __future__ import annotations

import pytest

from tests.simulation.test_histories import simulation

HISTORIES = 10_000


@pytest.mark.chaos
def test_no_invariant_breaks_in_random_histories(seed: int) -> None:
    done = simulation("run", f"--histories={HISTORIES}", f"--seed={seed * HISTORIES}", "--cores=1")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
