"""Whole lives of a job under random faults: no invariant breaks, and the training comes to its goal."""

from __future__ import annotations

import pytest

from perdure_operator.api.reasons import ConditionType
from tests.simulation.cluster import GOAL
from tests.simulation.history import ANNOUNCED, SUDDEN, History, committed
from tests.unit.decide.builders import job

BUDGETS = {"max_code_failures": 1000, "max_infrastructure_failures": 1000}


@pytest.mark.parametrize("seed", range(10))
def test_announced_disruptions_lose_no_step_and_cost_no_failure(seed: int) -> None:
    history = History(job(failure=BUDGETS), seed, faults=ANNOUNCED, crashes=False)
    status = history.play(seconds=400, until=3000)
    assert status.find(ConditionType.COMPLETED), history.explain()
    assert history.cluster.steps_lost == 0, history.explain()
    assert status.steps_lost == 0
    assert (status.failures.code, status.failures.infrastructure) == (0, 0), history.explain()
    assert committed(history) == GOAL


@pytest.mark.parametrize("seed", range(15))
def test_announced_disruptions_lose_no_step_even_if_the_operator_dies_between_writes(seed: int) -> None:
    history = History(job(failure=BUDGETS), seed, faults=ANNOUNCED)
    status = history.play(seconds=400, until=3000)
    assert status.find(ConditionType.COMPLETED), history.explain()
    assert history.cluster.steps_lost == 0, history.explain()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_job_completes_once_faults_stop(seed: int) -> None:
    history = History(job(failure=BUDGETS), seed, faults=ANNOUNCED + SUDDEN)
    status = history.play(seconds=600, until=6000)
    assert status.find(ConditionType.COMPLETED), history.explain()
    assert committed(history) == GOAL
