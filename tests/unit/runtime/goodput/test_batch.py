"""The batch of the largest goodput, beside one that tries every way to compute every batch."""

from __future__ import annotations

from math import inf, isclose, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.goodput.batch import BatchChoice, BatchRange, batches, best_batch, choice_of, efficiency, is_worth
from perdure.goodput.speed import Speed

FREE = Speed(0.125, 0.0, 0.0, 0.0, 0.0, 0.0, 64)
"""A part takes an eighth of a second, whatever its size."""

seconds = st.sampled_from([0.0, 1e-4, 0.003, 0.02, 0.5])
speeds = st.builds(
    Speed, st.sampled_from([1e-4, 0.01, 0.3]), seconds, seconds, seconds, seconds, seconds, st.integers(1, 16)
)
ranges = st.builds(
    lambda initial, times, low, more, accumulates: BatchRange(initial, initial * times, (low, low + more), accumulates),
    st.integers(1, 64), st.integers(1, 20), st.integers(1, 16), st.integers(16, 48), st.booleans(),
)  # fmt: skip
noises = st.sampled_from([0.0, 3.0, 100.0, 1e4, 1e9])


def enumerated(
    speed: Speed, noise: float, allowed: BatchRange, nodes: int, ranks: int, *, multiple: int
) -> dict[int, float]:
    """The largest goodput of each batch that is a candidate, by trying every number of parts."""
    candidates = {allowed.initial}
    exponent = 1
    while allowed.initial * sqrt(2) ** exponent < 2 * allowed.most * multiple:
        nearest = round(allowed.initial * sqrt(2) ** exponent / multiple) * multiple
        candidates.add(min(nearest, allowed.most - allowed.most % multiple))
        exponent += 1
    found: dict[int, float] = {}
    shares = {batch: -(-batch // ranks) for batch in candidates if batch >= allowed.initial}
    for batch, parts in ((batch, parts) for batch, share in shares.items() for parts in range(1, min(share, 80) + 1)):
        whole, rest = divmod(shares[batch], parts)
        sizes = [whole + 1] * rest + [whole] * (parts - rest)
        fits = allowed.per_rank[0] <= max(sizes) <= allowed.per_rank[1]
        may = parts == 1 or allowed.accumulates
        measured = ranks > 1 or parts > 1 or batch == allowed.initial
        if fits and may and measured and ranks <= 2 * speed.profiled:
            network = speed.network_seconds(nodes, ranks)
            took = sum(speed.alpha + speed.beta * size for size in sizes) + network
            won = batch / took * (noise + allowed.initial) / (noise + batch)
            found[batch] = max(found.get(batch, 0.0), won)
    return found


@given(speeds, noises, ranges, st.tuples(st.integers(1, 4), st.integers(1, 32)), st.sampled_from([1, 2, 6, 12]))
def test_the_best_batch_is_that_of_a_full_enumeration(
    speed: Speed, noise: float, allowed: BatchRange, size: tuple[int, int], multiple: int
) -> None:
    goodputs = enumerated(speed, noise, allowed, *size, multiple=multiple)
    best = best_batch(speed, noise, allowed, *size, multiple=multiple)
    assert (best is None) == (not goodputs)
    if best is not None:
        assert isclose(best.goodput, max(goodputs.values()), rel_tol=1e-9)
        assert isclose(best.goodput, goodputs[best.batch], rel_tol=1e-9)


@given(speeds, noises, ranges, st.integers(1, 32), st.sampled_from([1, 2, 6, 12]))
def test_a_choice_is_one_that_the_script_allows(
    speed: Speed, noise: float, allowed: BatchRange, ranks: int, multiple: int
) -> None:
    best = best_batch(speed, noise, allowed, 1, ranks, multiple=multiple)
    if best is not None:
        assert allowed.initial <= best.batch <= allowed.most
        assert allowed.per_rank[0] <= best.micro <= allowed.per_rank[1]
        assert best.batch == allowed.initial or best.batch % multiple == 0
        assert (best.accumulation + 1) * best.micro * ranks >= best.batch
        assert allowed.accumulates or best.accumulation == 0


@pytest.mark.parametrize(
    ("initial", "most", "multiple", "expected"),
    [
        (256, 1024, 1, [256, 362, 512, 724, 1024]),
        (256, 1024, 12, [256, 360, 516, 720, 1020]),  # the last one is the largest multiple that is allowed
        (256, 300, 1, [256, 300]),
        (256, 256, 12, [256]),
        (1, 4, 1, [1, 2, 3, 4]),
        (10, 1000, 1000, [10, 1000]),
    ],
)
def test_batches_rise_by_the_root_of_two(initial: int, most: int, multiple: int, expected: list[int]) -> None:
    assert list(batches(BatchRange(initial, most, (1, 9999), True), multiple)) == expected


def test_without_noise_the_initial_batch_is_best_and_with_much_the_largest() -> None:
    allowed = BatchRange(64, 1024, (1, 1024), accumulates=False)
    assert best_batch(FREE, 0.0, allowed, 1, 4) == BatchChoice(64, 16, 0, 512.0)
    assert best_batch(FREE, inf, allowed, 1, 4) == BatchChoice(1024, 256, 0, 8192.0)


def test_one_rank_computes_a_larger_batch_in_two_parts_or_not_at_all() -> None:
    parts = BatchRange(64, 128, (1, 1024), accumulates=True)
    whole = BatchRange(64, 128, (1, 1024), accumulates=False)
    assert choice_of(FREE, 0.0, parts, 1, 1, batch=64) == BatchChoice(64, 64, 0, 512.0)
    assert choice_of(FREE, 0.0, parts, 1, 1, batch=128) == BatchChoice(128, 64, 1, 256.0)
    assert choice_of(FREE, 0.0, whole, 1, 1, batch=128) is None
    assert choice_of(FREE, 0.0, whole, 1, 2, batch=128) == BatchChoice(128, 64, 0, 512.0)


def test_ranks_that_can_compute_no_batch_have_no_choice() -> None:
    assert (
        best_batch(FREE, 0.0, BatchRange(64, 128, (1, 16), accumulates=False), 1, 2) is None
    )  # the share is too large
    assert best_batch(FREE, 0.0, BatchRange(64, 128, (100, 200), accumulates=False), 1, 2) is None  # and too small
    assert best_batch(FREE, 0.0, BatchRange(64, 128, (1, 99), accumulates=False), 1, 129) is None  # nothing is believed


@pytest.mark.parametrize("noise", [nan, -1.0, -inf])
def test_a_noise_that_is_no_number_is_none(noise: float) -> None:
    assert efficiency(noise, 64, 128) == 0.5 == efficiency(0.0, 64, 128)


def test_a_larger_batch_wins_less_of_each_sample_and_less_so_with_much_noise() -> None:
    assert [efficiency(1000.0, 1000, batch) for batch in (1000, 3000, 7000)] == [1.0, 0.5, 0.25]
    assert efficiency(inf, 64, 2**31) == 1.0


def test_a_step_that_takes_no_time_promises_nothing() -> None:
    assert best_batch(Speed(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1), 0.0, BatchRange(8, 8, (1, 8), True), 1, 1) is None
    assert best_batch(Speed(5e-324, 0.0, 0.0, 0.0, 0.0, 0.0, 1), 0.0, BatchRange(8, 8, (1, 8), True), 1, 1) is None


def test_a_change_is_worth_it_from_five_percent() -> None:
    now = BatchChoice(64, 64, 0, 100.0)
    assert not is_worth(now, BatchChoice(128, 64, 1, 104.9))
    assert is_worth(now, BatchChoice(128, 64, 1, 105.0))
    assert not is_worth(BatchChoice(64, 64, 0, 0.0), BatchChoice(64, 64, 0, 0.0))


@pytest.mark.parametrize(
    ("initial", "most", "per_rank"), [(0, 8, (1, 8)), (9, 8, (1, 8)), (8, 8, (0, 8)), (8, 8, (9, 8))]
)
def test_a_range_without_a_batch_is_refused(initial: int, most: int, per_rank: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be 1 <="):
        BatchRange(initial, most, per_rank, accumulates=True)
