"""How the jobs of a pool share its devices."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations, product
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from e2e.bench.sharing import draw_jobs
from perdure_operator.decide import sharing
from perdure_operator.decide.packing import Pool, pack
from perdure_operator.decide.sharing import (
    PoolJob,
    Speedup,
    first_steps,
    mean_speedup,
    share,
    sizes_to_look_at,
    weighed,
    with_wish,
    without_spares,
)
from perdure_operator.loop.pools import sizes_in

FOUR = Pool(((1, 4),))
EIGHT = Pool(((4, 2),))


def _scales(falls: float, sizes: Sequence[int], *, ranks: int = 1, network: float = 1.0) -> dict[int, Speedup]:
    """Speedups that fall off with the size: 0 for none."""
    speeds = {size: size * ranks / (1 + falls * (size * ranks - 1)) for size in sizes}
    return {size: Speedup(speed, speed if size * ranks == 1 else speed / network) for size, speed in speeds.items()}


def _job(name: str, falls: float = 0.1, sizes: Sequence[int] = (1, 2, 3, 4), **others: Any) -> PoolJob:
    return PoolJob(name, **{"age_seconds": 100.0, "minimum": sizes[0], "speedups": _scales(falls, sizes), **others})


def test_the_job_that_scales_better_gets_more() -> None:
    assert share(FOUR, [_job("good", 0.0), _job("bad", 0.9)]) == {"good": 3, "bad": 1}
    assert share(FOUR, [_job("one", 0.1), _job("two", 0.1)]) == {"one": 2, "two": 2}


def test_beside_a_fair_share_a_job_that_scales_is_not_held_back() -> None:
    sizes = (1, 2, 3, 4, 5, 6)
    jobs = [_job("good", 0.0, sizes), _job("bad", 0.3, sizes)]
    pool = Pool(((8, 1),))
    assert share(pool, jobs) == {"good": 4, "bad": 4}, "each beside itself with one device"
    fair = weighed(pool, jobs)
    assert [job.weight for job in fair] == pytest.approx([4.0, 4 / (1 + 0.3 * 3)]), "the speed with 4 of 8 devices"
    assert share(pool, fair)["good"] > 4
    assert [job.weight for job in weighed(pool, [replace(jobs[0], speedups={})])] == [1.0], "nothing is known of it"
    late = weighed(EIGHT, [_job("late", 0.0, (2, 6), minimum=2, ranks=1), _job("other")])
    assert late[0].weight == 2.0, "no size of it is a fair share but the minimum"
    apart = weighed(EIGHT, [_job("apart", speedups=_scales(0.0, (1, 8), network=2.0))])
    assert apart[0].weight == 4.0, "eight devices are on two nodes"
    assert weighed(EIGHT, []) == []


def test_of_many_jobs_too_those_that_weigh_more_get_more() -> None:
    jobs = [_job(f"{index}", 0.1, (1, 2, 3, 4, 5, 6), weight=9.0 if index < 4 else 1.0) for index in range(8)]
    sizes = share(Pool(((24, 1),)), jobs)
    assert min(sizes[f"{index}"] for index in range(4)) > max(sizes[f"{index}"] for index in range(4, 8))


def test_devices_that_gain_nothing_stay_free() -> None:
    flat = {1: Speedup(1.0, 1.0), 2: Speedup(1.0, 1.0), 3: Speedup(0.9, 0.9)}
    assert share(FOUR, [_job("flat", speedups=flat)]) == {"flat": 1}


def test_each_gets_its_minimum_first_and_the_oldest_before_the_others() -> None:
    jobs = [_job(f"age-{age}", 0.0, (2, 3, 4), age_seconds=age) for age in (1.0, 3.0, 2.0)]
    assert share(FOUR, jobs) == {"age-3.0": 2, "age-2.0": 2, "age-1.0": 0}


def test_who_trains_keeps_the_minimum_though_an_older_one_waits() -> None:
    trains = _job("trains", sizes=(2, 3, 4), has=3, age_seconds=1.0)
    waits = _job("waits", sizes=(3, 4), age_seconds=9.0)
    assert share(FOUR, [waits, trains])["trains"] >= 2
    assert share(FOUR, [waits, trains])["waits"] == 0


def test_who_was_given_a_minimum_and_never_had_it_waits_as_before() -> None:
    trains = _job("trains", sizes=(2, 3, 4), has=3, age_seconds=1.0)
    waits = _job("waits", sizes=(3, 4), has=3, waits=True, age_seconds=9.0)
    assert share(FOUR, [waits, trains]) == {"waits": 0, "trains": 4}
    assert share(FOUR, [replace(waits, waits=False), trains]) == {"waits": 4, "trains": 0}


def test_who_waits_for_more_than_there_is_holds_nobody_back() -> None:
    hopeless = _job("hopeless", sizes=(16,), has=16, holds=1, waits=True)
    grows = _job("grows", has=1)
    assert first_steps(FOUR, [hopeless, grows], {"hopeless": 0, "grows": 3}) == {"grows": 3}
    assert first_steps(FOUR, [hopeless, grows], {"hopeless": 0, "grows": 4}) == {}, "one device is held"
    assert first_steps(FOUR, [replace(hopeless, waits=False), grows], {"hopeless": 0, "grows": 3}) == {}


def test_nobody_younger_takes_the_room_for_which_an_older_one_waits() -> None:
    trains = _job("trains", 0.0, (2, 3), has=2, age_seconds=1.0)
    waits, younger = _job("waits", sizes=(3,), age_seconds=9.0), _job("younger", sizes=(1,), age_seconds=5.0)
    assert share(FOUR, [trains, waits, younger]) == {"trains": 3, "waits": 0, "younger": 0}


def test_a_newcomer_gets_its_minimum_from_those_that_have_more() -> None:
    jobs = [_job("one", has=2), _job("two", has=2), _job("new", age_seconds=0.0)]
    assert sorted(share(FOUR, jobs).values()) == [1, 1, 2]


def test_a_change_has_to_be_earned_back() -> None:
    better = [_job("good", 0.05, has=2, change_seconds=1.0), _job("bad", 0.9, has=2, change_seconds=1.0)]
    assert share(FOUR, better) == {"good": 3, "bad": 1}
    dear = [replace(job, change_seconds=100.0) for job in better]
    assert share(FOUR, dear) == {"good": 2, "bad": 2}
    never = [_job("alone", 0.0, has=1, change_seconds=sharing.EARNED_SECONDS)]
    assert share(FOUR, never) == {"alone": 1}


def test_a_job_that_was_changed_a_moment_ago_rests_unless_another_has_less_than_its_minimum() -> None:
    moved = [_job("good", 0.0, has=2, changed_seconds=59.0), _job("bad", 0.9, has=2, changed_seconds=59.0)]
    assert share(FOUR, moved) == {"good": 2, "bad": 2}
    assert share(FOUR, [replace(job, changed_seconds=60.0) for job in moved]) == {"good": 3, "bad": 1}
    assert share(FOUR, [*moved, _job("new", age_seconds=0.0)])["new"] == 1


def test_one_node_is_told_from_two() -> None:
    """On nodes of four, three members for each of two jobs would leave the third job on two nodes."""
    near = {"sizes": (2, 3, 4), "network": 4.0}
    jobs = [_job(name, speedups=_scales(0.0, **near), minimum=2) for name in "abc"]  # type: ignore[arg-type]
    assert sorted(share(EIGHT, jobs).values()) == [2, 2, 4]
    far = [replace(job, speedups=_scales(0.0, (2, 3, 4))) for job in jobs]
    assert sorted(share(EIGHT, far).values()) == [2, 3, 3]


def test_a_job_that_is_spread_counts_with_the_speed_that_it_has() -> None:
    wide = Pool(((4, 1),))
    slow = {1: Speedup(1.0, 1.0), 2: Speedup(2.0, 1.1), 3: Speedup(2.2, 2.2)}
    other = {1: Speedup(1.0, 1.0), 2: Speedup(1.15, 1.15)}
    jobs = [_job("spread", speedups=slow, has=2), _job("other", speedups=other, has=2)]
    assert share(wide, jobs) == {"spread": 2, "other": 2}
    assert share(wide, [replace(jobs[0], spread_at=2), jobs[1]]) == {"spread": 3, "other": 1}


def test_a_job_of_unknown_speed_has_the_size_that_it_wants_as_far_as_there_is_room() -> None:
    unknown = _job("unknown", speedups={}, wants=3)
    assert share(FOUR, [unknown, _job("known", 0.0)]) == {"unknown": 3, "known": 1}
    assert share(FOUR, [unknown, _job("one", 0.0), _job("two", 0.0)]) == {"unknown": 2, "one": 1, "two": 1}
    assert share(FOUR, [replace(unknown, wants=0), _job("known", 0.0)]) == {"unknown": 1, "known": 3}


def test_a_mute_job_has_an_equal_share_before_others_grow_and_the_rest_of_what_they_leave() -> None:
    mute, known = _job("mute", speedups={}, wants=4, mute=True), _job("known", 0.0)
    assert share(FOUR, [mute, known]) == {"mute": 2, "known": 2}
    assert share(FOUR, [mute, _job("one", 0.0), _job("two", 0.0)]) == {"mute": 1, "one": 2, "two": 1}
    assert share(FOUR, [mute, _job("flat", sizes=(1,))]) == {"mute": 3, "flat": 1}
    assert share(FOUR, [mute, replace(mute, name="older", age_seconds=1e3), known])["known"] == 2
    assert share(FOUR, [replace(mute, wants=1), known]) == {"mute": 1, "known": 3}
    assert share(FOUR, [mute]) == {"mute": 4}
    rests = replace(mute, has=1, changed_seconds=5.0)
    assert share(FOUR, [rests, _job("flat", sizes=(1,))]) == {"mute": 1, "flat": 1}


def test_what_a_mute_job_gets_of_the_rest_pushes_nobody_to_other_nodes() -> None:
    """With another pair of ranks, on the node of five, it would have the four of the other job on two nodes."""
    mute = _job("mute", sizes=(1,), speedups={}, minimum=1, ranks=2, wants=4, mute=True)
    known = _job("known", speedups={1: Speedup(1.0, 1.0), 4: Speedup(4.0, 1.2)})
    jobs, pool = [mute, known, _job("small", sizes=(1,))], Pool(((5, 1), (3, 1), (1, 1)))
    assert share(pool, jobs) == {"mute": 1, "known": 4, "small": 1}
    jobs[1] = replace(known, speedups={1: Speedup(1.0, 1.0), 4: Speedup(4.0, 4.0)})
    assert share(pool, jobs) == {"mute": 2, "known": 4, "small": 1}


def test_who_rests_keeps_its_size_before_one_of_unknown_speed_gets_more() -> None:
    rests, unknown = _job("rests", has=3, changed_seconds=5.0), _job("unknown", speedups={}, wants=3, age_seconds=1e6)
    assert share(FOUR, [rests, unknown]) == {"rests": 3, "unknown": 1}


def test_no_job_is_believed_to_be_faster_than_by_its_devices() -> None:
    liar = {size: Speedup(1e9 * size**4, 1e9) for size in (1, 2, 3, 4)}
    assert share(FOUR, [_job("liar", speedups=liar), _job("true", 0.0)]) == {"liar": 2, "true": 2}
    for wrong in (float("nan"), float("inf"), 0.0, -1.0):
        jobs = [_job("wrong", speedups={1: Speedup(1.0, 1.0), 3: Speedup(wrong, wrong)}), _job("true", 0.0)]
        assert share(FOUR, jobs)["true"] >= 1


def test_members_of_several_ranks_are_on_one_node_each() -> None:
    pool = Pool(((3, 2),))
    job = _job("pairs", ranks=2, speedups=_scales(0.0, (1, 2, 3), ranks=2))
    assert share(pool, [job]) == {"pairs": 2}
    mixed = [job, _job("single", 0.0)]
    sizes = share(pool, mixed)
    assert not pack(pool, [(sizes[one.name], one.ranks) for one in mixed]).missing


def test_fewer_devices_than_before_are_no_reason_to_fail() -> None:
    jobs = [_job("one", has=4), _job("two", has=4, age_seconds=1.0)]
    assert share(Pool(((1, 3),)), jobs) == {"one": 2, "two": 1}
    assert share(Pool(((1, 1),)), jobs) == {"one": 1, "two": 0}
    assert share(Pool(()), jobs) == {"one": 0, "two": 0}
    assert share(FOUR, []) == {}


# what holds for every pool


SHAPES = (((8, 1),), ((4, 2),), ((2, 4),), ((1, 8),), ((4, 1), (2, 2)))


@st.composite
def _pools(draw: st.DrawFn, most: int = 3) -> tuple[Pool, list[PoolJob]]:
    """A pool of 8 devices, and its jobs; those that have a size have room for their minimum."""
    ranks = draw(st.sampled_from((1, 1, 2)))
    pool = Pool(draw(st.sampled_from(SHAPES[:3] if ranks == 2 else SHAPES)))
    jobs = []
    for index in range(draw(st.integers(1, most))):
        sizes = sorted(draw(st.sets(st.integers(1, 8 // ranks), min_size=1)))
        speedups = _scales(draw(st.floats(0, 1)), sizes, ranks=ranks, network=draw(st.floats(1, 3)))
        jobs.append(
            PoolJob(
                f"job-{index}",
                age_seconds=draw(st.floats(0, 1e4)),
                minimum=sizes[0],
                ranks=ranks,
                has=draw(st.sampled_from((0, *sizes))),
                changed_seconds=draw(st.sampled_from((10.0, 1e9))),
                change_seconds=draw(st.sampled_from((0.0, 1.0, 10.0, 100.0))),
                speedups=draw(st.sampled_from((speedups, speedups, {}))),
                wants=draw(st.sampled_from((0, *sizes))),
                weight=draw(st.sampled_from((1.0, 1.0, 3.0))),
            )
        )
    assume(sum(job.minimum * ranks for job in jobs if job.has) <= 8)
    return pool, jobs


def _sum(pool: Pool, jobs: Sequence[PoolJob], sizes: Mapping[str, int]) -> float:
    """What the jobs' sizes cost, as the head of the module says, on the best nodes; infinite if they have no room."""
    orders = permutations(jobs) if len(jobs) <= 3 else (jobs, sorted(jobs, key=lambda job: -sizes[job.name]))
    return min(_sum_in_order(pool, order, sizes) for order in orders)


def _sum_in_order(pool: Pool, jobs: Sequence[PoolJob], sizes: Mapping[str, int]) -> float:
    """The same, with jobs on nodes in this order."""
    packed = pack(pool, [(sizes[job.name], job.ranks) for job in jobs], range(len(jobs), 0, -1))
    total = 0.0
    for job, nodes in zip(jobs, packed.nodes, strict=True):
        if (size := sizes[job.name]) and job.speedups:
            speed = min(job.speedups[size].apart if nodes > 1 else job.speedups[size].together, size * job.ranks)
            changes = job.has not in (0, size)
            total += job.weight / (speed * (1 - job.change_seconds / 300 if changes else 1))
    return float("inf") if packed.missing else total


@given(_pools())
def test_never_above_capacity_nor_below_a_minimum_and_only_sizes_that_there_are(case: tuple[Pool, Any]) -> None:
    pool, jobs = case
    sizes = share(pool, jobs)
    assert not pack(pool, [(sizes[job.name], job.ranks) for job in jobs]).missing
    for job in jobs:
        assert sizes[job.name] == 0 or sizes[job.name] >= job.minimum
        assert not job.speedups or sizes[job.name] in (0, *job.speedups)
        assert not job.has or sizes[job.name], "who trains is never stopped"
    if all(sizes.values()):
        rest = [job for job in jobs if job.has and job.changed_seconds < 60 and sizes[job.name] > job.has]
        assert not rest, "it would change twice in a minute"
    waits = max((job.age_seconds for job in jobs if not sizes[job.name]), default=-1.0)
    assert all(job.age_seconds >= waits for job in jobs if sizes[job.name] and not job.has)


@given(_pools(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(case: tuple[Pool, Any], chance: random.Random) -> None:
    pool, jobs = case
    other = list(jobs)
    chance.shuffle(other)
    assert share(pool, jobs) == share(pool, other)


@given(_pools(most=5), st.floats(0, 1e9))
def test_nothing_moves_where_nothing_changed(case: tuple[Pool, Any], later: float) -> None:
    pool, jobs = case
    sizes = share(pool, jobs)
    after = [replace(job, has=sizes[job.name], changed_seconds=max(later, 60.0)) for job in jobs]
    if any(job.rests or not job.speedups for job in jobs):
        after = [replace(job, changed_seconds=old.changed_seconds) for job, old in zip(after, jobs, strict=True)]
    assert share(pool, after) == sizes


@given(_pools(), st.integers(1, 4))
def test_more_devices_never_cost_anything(case: tuple[Pool, Any], more: int) -> None:
    pool, jobs = case
    jobs = [replace(job, changed_seconds=1e9) for job in jobs if job.speedups]
    larger = Pool((*pool.shapes, (more, 1)))
    sizes = share(pool, jobs)
    assume(all(sizes.values()))
    assert _sum(larger, jobs, share(larger, jobs)) <= _sum(pool, jobs, sizes) + 1e-6


@given(_pools())
def test_a_small_pool_is_divided_as_well_as_by_trying_all_ways(case: tuple[Pool, Any]) -> None:
    pool, jobs = case
    jobs = [replace(job, changed_seconds=1e9) for job in jobs if job.speedups]
    sizes = share(pool, jobs)
    assume(all(sizes.values()))
    ways = (
        {job.name: size for job, size in zip(jobs, way, strict=True)}
        for way in product(*(one.speedups for one in jobs))
    )
    best = min((_sum(pool, jobs, way) for way in ways), default=0.0)
    assert _sum(pool, jobs, sizes) <= 1.02 * best + 1e-9


def test_a_job_that_loses_less_by_several_nodes_may_leave_its_node_to_another() -> None:
    large = _job("large", minimum=5, speedups={5: Speedup(5.0, 5 / 3)})
    small = _job("small", speedups={1: Speedup(1.0, 1.0), 2: Speedup(2.0, 1.0), 3: Speedup(3.0, 1.5)})
    assert share(Pool(((4, 1), (2, 2))), [large, small]) == {"large": 5, "small": 3}


def _five(seed: int, network: float) -> list[PoolJob]:
    """Too many jobs to try all ways in the product; here it can be done. Some of their sizes are far apart."""
    chance = random.Random(seed)  # noqa: S311
    sizes = [(1, *sorted(chance.sample(range(2, 9), 3))) for _ in range(5)]
    return [
        _job(f"{index}", speedups=_scales(chance.random(), some, network=network), has=chance.choice((0, *some[:2])))
        for index, some in enumerate(sizes)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_sizes_that_are_far_apart_are_divided_well(seed: int) -> None:
    jobs, pool = _five(seed, network=1.0), Pool(((16, 1),))
    ways = product(*(job.speedups for job in jobs))
    costs = [
        _sum_in_order(pool, jobs, {job.name: size for job, size in zip(jobs, way, strict=True)})
        for way in ways
        if sum(way) <= pool.devices
    ]
    assert _sum_in_order(pool, jobs, share(pool, jobs)) == pytest.approx(min(costs))


def test_where_jobs_turn_out_to_be_on_several_nodes_it_is_divided_again() -> None:
    """As if each job were on one node, two of six would get two devices on different nodes, and lose by them."""
    sizes = (1, 2, 3, 4)
    jobs = [_job(f"{index}", speedups=_scales(index / 40, sizes, network=4.0)) for index in range(6)]
    pool = Pool(((4, 4),))
    ways = ({job.name: size for job, size in zip(jobs, way, strict=True)} for way in product(sizes, repeat=6))
    best = min(_sum(pool, jobs, way) for way in ways if sum(way.values()) <= pool.devices)
    assert _sum(pool, jobs, share(pool, jobs)) <= 1.05 * best


@pytest.mark.parametrize("seed", range(6))
def test_a_way_that_is_no_better_than_the_one_that_jobs_have_moves_nothing(seed: int) -> None:
    jobs, pool = _five(seed, network=1.5), Pool(((4, 4),))
    for _ in range(3):
        sizes = share(pool, jobs)
        jobs = [replace(job, has=sizes[job.name]) for job in jobs]
    assert share(pool, jobs) == {job.name: job.has for job in jobs}


def test_many_jobs_are_divided_as_well_as_by_single_devices() -> None:
    """Where each job gains less by each device, the best way is to give each device to the job that gains most."""
    chance, sizes = random.Random(0), range(1, 9)  # noqa: S311
    jobs = [_job(f"{index}", speedups=_scales(chance.random(), sizes)) for index in range(160)]
    pool, best = Pool(((8, 60),)), {job.name: 1 for job in jobs}
    costs = {job.name: [1 / job.speedups[size].together for size in sizes] for job in jobs}
    for _ in range(pool.devices - len(jobs)):
        name = max((name for name in best if best[name] < 8), key=lambda name: _gain(costs[name], best[name]))
        best[name] += 1
    assert _sum_in_order(pool, jobs, share(pool, jobs)) <= 1.001 * _sum_in_order(pool, jobs, best)


def _gain(costs: Sequence[float], size: int) -> float:
    return costs[size - 1] - costs[size]


@contextmanager
def _lines_run(counted: list[int]) -> Iterator[None]:
    """Count the lines of the two modules that run: the same on every machine."""
    files = {sharing.__file__, pack.__code__.co_filename}

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        counted[0] += event == "line"
        return trace if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(("nodes", "most"), [(16, 40_000), (128, 600_000)])
def test_160_jobs_take_a_bounded_number_of_operations(nodes: int, most: int) -> None:
    counted = [0]
    with _lines_run(counted):
        share(Pool(((4, nodes),)), draw_jobs(0))
    assert 1_000 < counted[0] <= most


def test_a_look_at_160_jobs_takes_a_bounded_number_of_operations() -> None:
    counted = [0]
    with _lines_run(counted):
        sizes_in(Pool(((8, 64),)), draw_jobs(0), {})
    assert 1_000 < counted[0] <= 600_000


@pytest.mark.parametrize("seed", range(3))
def test_many_jobs_have_room_and_stay_where_they_are(seed: int) -> None:
    jobs, pool = draw_jobs(seed), Pool(((8, 64),))
    sizes = share(pool, jobs)
    assert sum(sizes.values()) == pool.devices
    assert min(sizes.values()) >= 1
    assert share(pool, [replace(job, has=sizes[job.name]) for job in jobs]) == sizes
    larger = Pool(((8, 65),))
    assert _sum(larger, jobs, share(larger, jobs)) <= _sum(pool, jobs, sizes)


# nodes


def test_another_node_is_asked_for_while_devices_are_worth_it() -> None:
    jobs = [_job("one", 0.0, (1, 2, 3, 4), has=2), _job("two", 0.0, (1, 2, 3, 4), has=2)]
    sizes = share(FOUR, jobs)
    assert mean_speedup(FOUR, jobs, sizes) == (1.0, 4)
    assert with_wish(FOUR, jobs).devices == 5
    slow = [replace(job, speedups=_scales(0.9, (1, 2, 3, 4))) for job in jobs]
    assert with_wish(FOUR, slow).devices == 4


def test_no_node_is_asked_for_while_a_job_waits_or_is_unknown() -> None:
    jobs = [_job("one", 0.0, has=1), _job("two", 0.0, has=2)]
    assert with_wish(FOUR, jobs).devices == 5
    assert with_wish(FOUR, [*jobs, _job("waits", sizes=(3, 4))]) == FOUR
    assert with_wish(FOUR, [*jobs, _job("unknown", speedups={}, has=1)]) == FOUR
    assert with_wish(FOUR, []) == FOUR


def test_no_node_is_asked_for_that_would_be_given_back() -> None:
    """Its next size is on two nodes, and far from as fast as its devices."""
    jobs = [_job("steps", speedups={1: Speedup(1.0, 1.0), 7: Speedup(5.2, 1.7)}, has=1)]
    assert with_wish(Pool(((4, 1),)), jobs) == Pool(((4, 1),))
    near = [replace(jobs[0], speedups={1: Speedup(1.0, 1.0), 7: Speedup(5.2, 4.2)})]
    assert with_wish(Pool(((4, 1),)), near).devices == 8


@pytest.mark.parametrize("has", [0, 1, 2, 3])
def test_what_nodes_are_worth_is_judged_without_regard_to_what_a_wish_has_changed(has: int) -> None:
    """Of two devices on two nodes the job has less than of one: it was asked for three, and ran on two meanwhile."""
    speeds = {1: Speedup(1.0, 1.0), 2: Speedup(1.9, 0.8), 3: Speedup(2.7, 1.2)}
    job = _job("one", speedups=speeds, has=has, change_seconds=30.0, changed_seconds=5.0)
    assert with_wish(Pool(((1, 2),)), [job]).devices == 3


def test_a_mute_job_hides_neither_that_a_node_is_worth_it_nor_that_nodes_are_not() -> None:
    mute, known = _job("mute", speedups={}, has=2, wants=2, mute=True), _job("known", 0.0, has=2)
    assert with_wish(FOUR, [mute, known]).devices == 5
    assert with_wish(FOUR, [mute]) == FOUR, "nothing is known of any job"
    flat = _job("flat", 0.9, (1, 2, 3, 4, 5, 6), has=6)
    pool = Pool(((1, 8),))
    left = with_wish(pool, [flat, mute])
    assert share(pool, [flat, mute]) == {"flat": 6, "mute": 2}
    assert left.devices < 8
    assert share(left, [flat, mute])["mute"] == 2, "its devices are not counted as those of others"


def test_spares_have_room_after_all_minimums_and_members_and_before_others_grow() -> None:
    jobs = [_job("one", has=1), _job("two", has=1)]
    assert without_spares(FOUR, jobs, 0) == FOUR
    assert without_spares(FOUR, jobs, 1).devices == 3
    assert without_spares(FOUR, jobs, 2).devices == 2
    assert without_spares(FOUR, jobs, 100).devices == 2
    assert without_spares(FOUR, [replace(jobs[0], holds=2), jobs[1]], 100).devices == 3, "its members are on them"
    waits = _job("waits", sizes=(3, 4), age_seconds=1.0)
    assert without_spares(FOUR, [*jobs, waits], 100).devices == 2, "it has no room anyway"
    assert without_spares(EIGHT, [*jobs, waits], 100).devices == 5
    assert without_spares(Pool(()), jobs, 1) == Pool(())


def test_nodes_are_given_back_whose_devices_hardly_serve() -> None:
    sizes = (1, 2, 4, 8)
    job = _job("flat", 0.6, sizes, has=8)
    pool = Pool(((2, 4),))
    assert mean_speedup(pool, [job], {"flat": 8})[0] < 0.35
    left = with_wish(pool, [job])
    assert left == Pool(((2, 2),))
    assert share(left, [job]) == {"flat": 4}
    assert mean_speedup(left, [job], {"flat": 4})[0] >= 0.35
    assert with_wish(pool, [replace(job, minimum=8, speedups={8: job.speedups[8]})]) == pool


# what is changed first


def test_a_job_shrinks_first_and_another_grows_once_the_room_is_free() -> None:
    shrinks, grows = _job("shrinks", has=3), _job("grows", has=1)
    wanted = {"shrinks": 1, "grows": 3}
    assert first_steps(FOUR, [shrinks, grows], wanted) == {"shrinks": 1}
    assert first_steps(FOUR, [replace(shrinks, has=1, holds=3), grows], wanted) == {}
    assert first_steps(FOUR, [replace(shrinks, has=1, holds=1), grows], wanted) == {"grows": 3}


def test_free_devices_on_several_nodes_are_no_room_for_a_member_that_takes_as_many() -> None:
    pairs, other = _job("pairs", ranks=2, has=2), _job("other", ranks=2, has=2, holds=2)
    pool, wanted = Pool(((3, 4),)), {"pairs": 3, "other": 1}
    assert first_steps(pool, [pairs, other], wanted) == {"other": 1}, "a device is free on each node"
    assert first_steps(pool, [pairs, replace(other, has=1, holds=2)], wanted) == {}
    assert first_steps(pool, [pairs, replace(other, has=1, holds=1)], wanted) == {"pairs": 3}
    threes, fours = _job("threes", ranks=3, has=2), Pool(((4, 3),))
    grows = replace(pairs, has=1)
    assert first_steps(fours, [threes, grows], {"threes": 1, "pairs": 3}) == {"threes": 1}
    assert first_steps(fours, [threes, grows], {"threes": 1, "pairs": 2}) == {"threes": 1, "pairs": 2}


def test_room_that_is_free_is_taken_by_the_oldest() -> None:
    jobs = [_job("young", has=1, age_seconds=1.0), _job("old", has=1, age_seconds=2.0)]
    assert first_steps(FOUR, jobs, {"young": 3, "old": 3}) == {"old": 3}


def test_a_newcomer_has_its_size_at_once_and_waits_for_room_as_any_job() -> None:
    assert first_steps(FOUR, [_job("new", sizes=(2, 4))], {"new": 0}) == {"new": 2}
    assert first_steps(FOUR, [_job("new"), _job("other", has=3)], {"new": 1, "other": 3}) == {"new": 1}
    full = [_job("new"), _job("other", has=4), _job("grows", has=0)]
    assert first_steps(FOUR, full, {"new": 1, "other": 2, "grows": 1}) == {"new": 1, "other": 2, "grows": 1}


def test_of_many_sizes_some_are_looked_at() -> None:
    assert sizes_to_look_at((1, 2, 4, 8, 16)) == (1, 2, 4, 8, 16)
    assert sizes_to_look_at(range(1, 9)) == tuple(range(1, 9))
    assert sizes_to_look_at(()) == ()
    many = sizes_to_look_at(range(1, 1001), 501)
    assert len(many) < 40
    assert {1, 501, 1000} <= set(many)
