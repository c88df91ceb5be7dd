"""Averages of each rank's own terms, whose sums are the same as of one that had all of them."""

from __future__ import annotations

import json
import math

import pytest
import torch

from perdure.loop.measuring.noise_meter import LEAST_STEPS, THETA, NoiseMeter
from perdure.loop.measuring.two_equations import Solution

SAME = Solution(noise_own=1.0, noise_mean=0.0, signal_own=0.0, signal_mean=1.0)
"""What is added as `own` is the noise, and as `mean` the signal."""


def add(meter: NoiseMeter, noise: list[float], signal: list[float], *, batch: int = 8, ranks: int = 1) -> None:
    own, mean = torch.tensor(noise, dtype=torch.float64), torch.tensor(signal, dtype=torch.float64)
    meter.add(own, mean, SAME, batch=batch, ranks=ranks)


def meet(*meters: NoiseMeter) -> None:
    rows = [meter.words() for meter in meters]
    for meter in meters:
        meter.heard(rows)


def trained(steps: int = LEAST_STEPS) -> NoiseMeter:
    meter = NoiseMeter(8)
    for _ in range(steps):
        add(meter, [6.0, 0.0], [2.0, 1.0])
    meet(meter)
    return meter


def test_the_scale_is_noise_over_signal_of_all_groups_and_unknown_before_some_steps() -> None:
    assert trained(LEAST_STEPS - 1).scale is None
    assert trained().scale == pytest.approx(2.0)


def test_a_step_counts_by_its_samples() -> None:
    one, other = NoiseMeter(8), NoiseMeter(8)
    add(one, [1.0], [1.0], batch=16)
    meet(one)
    assert one.noise_by_group == pytest.approx([1 - THETA**2])
    add(other, [1.0], [1.0])
    add(other, [1.0], [1.0])
    meet(other)
    assert other.noise_by_group == pytest.approx(one.noise_by_group)


def test_what_ranks_measure_adds_up() -> None:
    ranks = [NoiseMeter(8) for _ in range(3)]
    for _ in range(LEAST_STEPS):
        for number, meter in enumerate(ranks):
            add(meter, [float(number)], [6.0], ranks=3)
    meet(*ranks)
    assert [meter.scale for meter in ranks] == [pytest.approx(0.5)] * 3
    assert len({meter.scale for meter in ranks}) == 1


def test_a_step_with_an_infinite_gradient_is_left_out() -> None:
    meter = trained()
    before = meter.noise_by_group
    for value in (math.inf, math.nan):
        add(meter, [value, 0.0], [2.0, 1.0])
        meet(meter)
        assert meter.noise_by_group == before
    add(meter, [6.0, 0.0], [2.0, 1.0])
    meet(meter)
    assert meter.noise_by_group[0] > before[0]


def test_averages_that_one_rank_alone_found_infinite_are_not_heard() -> None:
    ranks = [trained(), trained()]
    rows = [meter.words() for meter in ranks]
    ranks[0]._own[0, 0] = math.inf
    ranks[0].heard([ranks[0].words(), rows[1]])
    assert ranks[0].scale == pytest.approx(2.0)


def test_without_signal_there_is_no_scale_and_noise_is_never_less_than_none() -> None:
    meter = NoiseMeter(8)
    for _ in range(LEAST_STEPS):
        add(meter, [1.0], [-1.0])
    meet(meter)
    assert meter.scale is None
    for _ in range(200):
        add(meter, [-10.0], [10.0])
    meet(meter)
    assert meter.scale == 0.0


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_number_of_ranks_goes_on_from_what_was_saved(world: int) -> None:
    whole, saved = trained(), json.loads(json.dumps(trained().write()))
    ranks = [NoiseMeter(8) for _ in range(world)]
    for rank, meter in enumerate(ranks):
        meter.read(saved)
        assert meter.scale == whole.scale
        meter.begin(rank)
    add(whole, [5.0, 5.0], [1.0, 1.0])
    for meter in ranks:
        add(meter, [5.0 / world, 5.0 / world], [1.0, 1.0], ranks=world)
    meet(whole)
    meet(*ranks)
    for meter in ranks:
        assert meter.scale == pytest.approx(whole.scale)
        assert meter.steps == whole.steps == LEAST_STEPS + 1


def test_ranks_that_begin_together_say_equally_much_first_also_of_a_device() -> None:
    survivor, newcomer = trained(), NoiseMeter(8)
    newcomer.read(survivor.write())
    for rank, meter in enumerate((newcomer, survivor)):
        meter.begin(rank)
    first = [newcomer._words, survivor._words]
    """What is said of a device before there is a copy from it."""
    assert [len(words) for words in first] == [5, 5]
    newcomer.heard(first)
    assert newcomer.write() == survivor.write()


def test_groups_may_come_and_go() -> None:
    meter = trained()
    add(meter, [1.0, 1.0, 7.0], [1.0, 1.0, 1.0])
    meet(meter)
    assert meter.noise_by_group[2] == pytest.approx(7.0 * (1 - THETA))
    add(meter, [1.0], [1.0])
    meet(meter)
    assert len(meter.noise_by_group) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="what is said of a device lags by one call")
def test_what_is_said_of_a_device_is_what_it_was_at_the_call_before() -> None:
    meter = NoiseMeter(8)
    one = torch.ones(1, dtype=torch.float64, device="cuda")
    assert meter.words() == [0]
    meter.add(one, one, SAME, batch=8, ranks=1)
    assert meter.words() == [0]
    meter.add(one, one, SAME, batch=8, ranks=1)
    meter.heard([meter.words()])
    assert meter.steps == 1
    assert meter.noise_by_group == pytest.approx([1 - THETA])
