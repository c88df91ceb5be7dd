"""Time goes by in a cluster: each second is accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import pytest

from e2e.bench.pollux.their_speed import Batch
from e2e.bench.pollux.world import Cluster, Devices, Job, LiveMoves, Restarts, check
from tests.unit.e2e.bench.pollux.made_up import model, step_time


@dataclass
class Planned:
    """Gives the devices of a plan, by the time of a look."""

    plan: Mapping[float, Mapping[str, Devices]]
    now: dict[str, Devices] = field(default_factory=dict)

    def divide(self, now: float, jobs: Sequence[Job]) -> Mapping[str, Devices]:
        self.now |= self.plan.get(now, {})
        return {job.name: self.now.get(job.name, ()) for job in jobs}


class Constant:
    """16 samples in a step, whatever the ranks."""

    saves_every = inf

    def begin(self, job: Job) -> Batch:
        return Batch(16 // sum(job.trains_on), 0)

    def go_on(self, job: Job, epoch_ended: bool, saves: bool = False) -> Batch:  # noqa: ARG002
        return job.batch


def cluster(moves: Restarts | LiveMoves, plan: Mapping[float, Mapping[str, Devices]]) -> Cluster:
    return Cluster(Planned(plan), Constant(), moves, interval=10.0)


def job(name: str = "one", submitted: float = 0.0) -> Job:
    return Job(name, model(), submitted)


def seconds(nodes: int, ranks: int) -> float:
    """Of a step of 16 samples, each of which counts as one."""
    return step_time(nodes, ranks, 16 // ranks).step


LIVE = LiveMoves(start=5.0, warm=4.0, pause=0.5)


def test_a_job_ends_as_soon_as_its_steps_are_done() -> None:
    one = job(submitted=3.0)
    cluster(Restarts(5.0), {10.0: {"one": (0,)}}).run([one])
    assert one.ended == pytest.approx(10 + 5 + 200 * seconds(1, 1)), "a look, a start, 200 steps"
    assert one.service == pytest.approx(5 + 200 * seconds(1, 1))
    assert (one.moves, one.times) == (0, {(1, 1, 16): step_time(1, 1, 16)})


def test_a_restart_stops_a_job_while_it_lasts() -> None:
    one = job()
    cluster(Restarts(5.0), {10.0: {"one": (0,)}, 20.0: {"one": (0, 0)}}).run([one])
    done = 5 / seconds(1, 1)
    assert one.ended == pytest.approx(20 + 5 + (200 - done) * seconds(1, 2))
    assert one.moves == 1


def test_a_job_trains_on_while_its_joiners_warm_up() -> None:
    one = job()
    cluster(LIVE, {10.0: {"one": (0,)}, 20.0: {"one": (0, 1)}}).run([one])
    done = (5 + 4) / seconds(1, 1)
    assert one.ended == pytest.approx(20 + 4 + 0.5 + (200 - done) * seconds(2, 2))


def test_ranks_that_leave_cost_a_pause() -> None:
    one = job()
    cluster(LIVE, {10.0: {"one": (0, 0)}, 20.0: {"one": (0,)}}).run([one])
    done = 5 / seconds(1, 2)
    assert one.ended == pytest.approx(20 + 0.5 + (200 - done) * seconds(1, 1))


def test_a_job_without_devices_waits_and_keeps_what_it_has() -> None:
    one = job()
    cluster(LIVE, {10.0: {"one": (0,)}, 20.0: {"one": ()}, 50.0: {"one": (3,)}}).run([one])
    done = 5 / seconds(1, 1)
    assert one.ended == pytest.approx(50 + 5 + (200 - done) * seconds(1, 1))


def test_a_larger_batch_counts_for_as_much_as_its_noise_is_worth() -> None:
    class Larger(Constant):
        def begin(self, job: Job) -> Batch:  # noqa: ARG002
            return Batch(16, 1)

    one = Job("one", model(sqr=1.0, var=3.0), 0.0)
    Cluster(Planned({10.0: {"one": (0,)}}), Larger(), Restarts(0.0), 10.0).run([one])
    gain, both = (3 + 1) / (3 / 2 + 1), 2 * step_time(1, 1, 16).step
    assert one.ended == pytest.approx(10 + 200 / gain * both)


def test_a_job_may_choose_its_batch_where_it_makes_a_commit() -> None:
    at: list[tuple[bool, float]] = []

    class Saving(Constant):
        saves_every = 8.0

        def go_on(self, job: Job, epoch_ended: bool, saves: bool = False) -> Batch:
            if saves or epoch_ended:
                at.append((saves, job.progress))
            return Batch(8, 0) if saves else job.batch

    one, first = job(), 1 / seconds(1, 1)
    Cluster(Planned({10.0: {"one": (0,)}}), Saving(), LIVE, 10.0).run([one])
    gain, step = one.model.noise(8, 0).gain(0.5), step_time(1, 1, 8).step
    assert [saves for saves, _ in at[:3]] == [True] * 3
    assert [done for _, done in at[:3]] == pytest.approx([8 * first + spans * 8 * gain / step for spans in range(3)])
    plan: dict[float, dict[str, Devices]] = {10.0: {"one": (0,)}, 20.0: {"one": ()}, 30.0: {"one": (0,)}}
    at.clear()
    Cluster(Planned(plan), Saving(), LIVE, 10.0).run([job()])
    assert at[0][1] == pytest.approx((5 + 8) * first), "it begins to count where it starts"


def test_joiners_hold_devices_while_they_warm_up_and_leavers_until_they_have_left() -> None:
    one, other = job("one"), job("other")
    plan = {10.0: {"one": (0, 0, 0), "other": (1,)}, 20.0: {"one": (1, 1, 1), "other": (0, 1)}}
    with pytest.raises(ValueError, match="more devices than the nodes have"):
        cluster(LIVE, {**plan, 20.0: {"one": (1, 1, 1), "other": (0, 0, 1)}}).run([one, other])
    cluster(LIVE, plan).run([job("one"), job("other")])


def test_no_device_is_given_twice() -> None:
    with pytest.raises(ValueError, match="more devices than the nodes have"):
        check([Job("one", model(), 0.0, devices=(0, 0, 0)), Job("other", model(), 0.0, devices=(0, 0))])
    with pytest.raises(ValueError, match="more devices than the nodes have"):
        check([Job("one", model(), 0.0, devices=(16,))])


def test_jobs_that_nobody_gives_a_device_never_end() -> None:
    with pytest.raises(ValueError, match="jobs that never end: one"):
        Cluster(Planned({}), Constant(), LIVE, 1e6).run([job()])
