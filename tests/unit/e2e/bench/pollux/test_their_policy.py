"""Pollux' policy in a small world: who has measured nothing gets one rank, and nobody more than twice what it knows."""

from __future__ import annotations

import pytest

from e2e.bench.pollux.their_policy import PolluxAgent, PolluxPolicy, best
from e2e.bench.pollux.their_speed import Batch
from e2e.bench.pollux.world import Job, run
from tests.unit.e2e.bench.pollux.made_up import model


def test_a_job_that_has_measured_nothing_gets_one_rank_and_then_twice_what_it_had() -> None:
    policy, agent = PolluxPolicy(seed=1), PolluxAgent()
    job, seen = Job("one", model(sqr=1.0, var=1e3), 0.0), []
    for look in range(4):
        job.devices = policy.divide(60.0 + 1e4 * look, [job])["one"]
        job.train_on(job.devices)
        job.batch = agent.begin(job)
        seen.append(len(job.devices))
        run(job, agent, pause=0.0, now=0.0, seconds=1.0)
    assert seen == [1, 2, 4, 8], "as nothing but the ranks that it knows holds it back"


def test_a_batch_that_was_given_is_kept_and_others_are_chosen() -> None:
    fixed = model(name="ncf")
    fixed.fixed_batch = 64
    assert fixed.most_ranks == 1
    assert PolluxAgent().begin(Job("one", fixed, 0.0, trains_on=(1,))) == Batch(16, 3)
    assert PolluxAgent().begin(Job("one", model(), 0.0, trains_on=(4,))) == Batch(4, 0), "nothing is known: the initial"


def test_without_a_measurement_there_is_no_belief() -> None:

    with pytest.raises(ValueError, match="one has measured nothing"):
        best(Job("one", model(), 0.0), None, None)  # type: ignore[arg-type]
