"""Perdure's policy in the simulated world: sizes are the operator's, places a scheduler's, batches a trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from e2e.bench.pollux import our_policy
from e2e.bench.pollux.measurements import Noise
from e2e.bench.pollux.our_policy import PerdureAgent, PerdurePolicy, place
from e2e.bench.pollux.their_speed import Batch
from e2e.bench.pollux.world import Cluster, Devices, Job, LiveMoves, check
from perdure.goodput.batch import best_batch
from tests.unit.e2e.bench.pollux.made_up import model, step_time

LIVE = LiveMoves(start=5.0, warm=4.0, pause=0.05)


def job(name: str, devices: Sequence[int] = ()) -> Job:
    found = Job(name, model(var=1e3, longer=100.0), 0.0, devices=tuple(devices))
    found.train_on(found.devices)
    return found


def placed(jobs: Sequence[Job], *, together: bool, **sizes: int) -> dict[str, Devices]:
    found = place(jobs, sizes, together=together)
    for one in jobs:
        one.devices = found[one.name]
    check(jobs)
    return found


@pytest.mark.parametrize("together", [False, True])
def test_who_shrinks_leaves_the_nodes_with_its_fewest_ranks(together: bool) -> None:
    assert placed([job("one", (0, 1, 1, 2))], together=together, one=2) == {"one": (1, 1)}
    assert placed([job("one", (3, 3))], together=together, one=2) == {"one": (3, 3)}


@pytest.mark.parametrize("together", [False, True])
def test_new_ranks_go_to_their_own_node_and_else_to_the_fullest_with_room_for_them(together: bool) -> None:
    assert placed([job("one", (5,))], together=together, one=3) == {"one": (5, 5, 5)}
    some = [job("old", (2, 2, 2)), job("other", (0, 0)), job("new")]
    assert placed(some, together=together, old=3, other=2, new=2)["new"] == (0, 0)


def test_members_stay_where_they_are_or_all_go_where_there_is_room_for_all() -> None:
    def full() -> list[Job]:
        return [job("one", (0,)), job("other", (0, 0, 0))]

    assert placed(full(), together=False, one=4, other=3)["one"] == (0, 1, 1, 1)
    assert placed(full(), together=True, one=4, other=3)["one"] == (1, 1, 1, 1)


def test_nobody_moves_to_as_many_nodes_as_it_would_be_on_anyway() -> None:
    some = [job("one", (0, 0)), job("other", (0,))]
    assert placed(some, together=True, one=6, other=1)["one"] == (0, 0, 0, 1, 1, 1)


def test_devices_of_those_who_leave_for_others_are_nobody_elses_until_then() -> None:
    jobs = [job("one", (0,)), job("other", (0, 0, 0)), job("third")]
    assert placed(jobs, together=True, one=4, other=3, third=4)["third"] == (1, 1, 1, 1)
    moving = jobs[0]
    moving.joining = 3.0
    assert (moving.devices, moving.training) == ((2, 2, 2, 2), (0,))
    later = placed([moving, job("next")], together=True, one=4, next=4)
    assert later == {"one": (2, 2, 2, 2), "next": (1, 1, 1, 1)}, "one of node 0's is still in use"


def test_who_comes_has_room_before_who_grows_and_that_one_has_what_it_had_where_none_is_left() -> None:
    full = [job(f"{node}", [node] * 4) for node in range(2, 16)]
    sizes = {one.name: 4 for one in full}
    some = [*full, job("grows", (0,)), job("other", (0, 0, 1, 1, 1)), job("new")]
    given = placed(some, together=True, **sizes, grows=3, other=5, new=1)
    assert (given["new"], given["grows"]) == ((0,), (0,)), "one device is left, and two are wanted"


def test_larger_jobs_fill_whole_nodes() -> None:
    some = [job("one", (0, 0, 0)), job("big")]
    assert placed(some, together=True, one=3, big=8)["big"] == (1, 1, 1, 1, 2, 2, 2, 2)


def test_a_cluster_gives_all_its_devices_to_jobs_that_scale_and_ends() -> None:
    jobs = [job(f"{index}") for index in range(3)]
    most: list[int] = []

    class Noting(PerdurePolicy):
        def divide(self, now: float, jobs: Sequence[Job]) -> dict[str, Devices]:
            given = dict(super().divide(now, jobs))
            most.append(max(map(len, given.values())))
            return given

    Cluster(Noting(4.05), PerdureAgent(), LIVE, 60.0).run(jobs)
    assert most[0] == 1, "nothing is known of them"
    assert all(after <= 2 * before for before, after in pairwise(most))
    assert max(most) > 4
    assert all(one.ended is not None for one in jobs)


def test_a_batch_is_chosen_as_a_trainer_does_it() -> None:
    one = job("one", (0, 0))
    one.times = {(1, ranks, micro): step_time(1, ranks, micro) for ranks in (1, 2) for micro in (4, 16)}
    one.noise = Noise(1.0, 1e3)
    expected = best_batch(our_policy._speed(one), 16e3, our_policy._range(one.model), 1, 2)
    assert expected is not None
    assert expected.batch == 64, "nearly all is noise"
    assert our_policy._hints(one).noise == 16e3, "in samples: of the initial batch of 16, a thousand times"
    one.batch = PerdureAgent().begin(one)
    assert one.batch == Batch(expected.micro, expected.accumulation)
    one.noise = Noise(1.0, 1e-6)
    assert PerdureAgent().go_on(one, epoch_ended=False) == one.batch, "not in the middle of an epoch"
    smaller = Batch(8, 0)
    assert PerdureAgent().go_on(one, epoch_ended=True) == smaller
    assert PerdureAgent().go_on(one, epoch_ended=False, saves=True) == smaller
    assert PerdureAgent(at_each_look=True).go_on(one, epoch_ended=False) == smaller
    one.noise = Noise(1.0, 1e3 * 1.001)
    assert PerdureAgent().go_on(one, epoch_ended=True) == one.batch, "no change without a reason"


def test_a_given_batch_is_no_choice() -> None:
    one = job("one", (0,))
    one.model.fixed_batch = 64
    one.noise = Noise(1.0, 1.0)
    one.batch = PerdureAgent().begin(one)
    assert one.batch == Batch(16, 3)
    assert PerdureAgent().go_on(one, epoch_ended=True) == one.batch
