"""What was measured, and what lies between."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.bench.pollux.measurements import Noise, StepTime, read, read_all

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,0.2,0.0
1,4,0.1,0.0
12,4,0.4,0.2
12,8,0.6,0.3
1555,4,2.0,0.5
1555,8,3.0,0.5
4444,4,4.0,0.5
4444,8,5.0,0.5
"""
SCALED = """num_nodes,num_replicas,local_bsz,step_time,sync_time
4,4,4,1.0,0.5
4,4,8,2.0,0.5
8,8,4,2.0,0.5
"""


def training(*rows: str) -> str:
    return "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows, ""])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "traces" / "digits"
    folder.mkdir(parents=True)
    (folder / "placements.csv").write_text(PLACEMENTS)
    (folder / "scalability.csv").write_text(SCALED)
    (folder / "validation-16.csv").write_text(training("10,10,0,1,2", "20,20,0,3,4", "30,30,0,5,6"))
    (folder / "validation-8.csv").write_text(training("11,11,0,5,10", "19,19,0,7,8"))
    return tmp_path


def test_limits_are_those_of_what_was_measured(data: Path) -> None:
    digits = read_all(data)["digits"]
    assert (digits.initial_batch, digits.most_batch, digits.micro) == (8, 16, (4, 8))
    assert digits.epochs == 2, "of the shortest training"
    assert digits.most_ranks == 4
    assert [digits.end(epoch) for epoch in range(2)] == [10.0, 19.0], "the earliest of all trainings"


def test_a_step_is_interpolated_between_micro_batches_of_the_same_placement(data: Path) -> None:
    digits = read(data / "traces" / "digits")
    assert digits.time((1,), 4) == StepTime(0.1, 0.0)
    assert digits.time((1, 2), 6) == pytest.approx((0.5, 0.25))
    assert digits.time((2, 1), 6) == digits.time((1, 2), 6), "a ring has no first node"


def test_a_placement_that_was_not_measured_lies_between_those_of_its_nodes_and_ranks(data: Path) -> None:
    digits = read(data / "traces" / "digits")
    assert digits.time((1, 3, 3, 3), 4) == pytest.approx((2.0, 0.5)), "10 ranks, half way from 4 to the mean of 16's"
    with pytest.raises(ValueError, match="nothing was measured around 4 samples a rank"):
        digits.time((4, 4, 4, 4, 4), 4)


def test_more_samples_than_were_measured_are_no_guess(data: Path) -> None:
    with pytest.raises(ValueError, match="no step was measured with 9 samples a rank"):
        read(data / "traces" / "digits").time((1,), 9)


def test_noise_lies_between_that_of_the_two_batches_around(data: Path) -> None:
    digits = read(data / "traces" / "digits")
    assert digits.noise(8, 0) == Noise(5.0, 10.0)
    assert digits.noise(16, 1) == Noise(3.0, 4.0)
    assert digits.noise(10, 0) == Noise(4.0, 8.0)


def test_gain_is_the_scale_where_all_is_noise_and_one_where_nothing_is() -> None:
    assert Noise(0.0, 1.0).gain(4) == 4.0
    assert Noise(1.0, 0.0).gain(4) == 1.0
    assert Noise(1.0, 3.0).gain(3) == 2.0
