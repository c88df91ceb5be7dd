from __future__ import annotations

from dataclasses import replace

from perdure_operator.serving.metrics import operator
from perdure_operator.serving.metrics.counted import ROUND_SECONDS, OperatorFacts, RoundOutcome

FACTS = OperatorFacts(
    leading=True,
    synced=True,
    lease_age=1.5,
    queue_due=3,
    queue_oldest=0.25,
    rounds_running=2,
    outcomes={RoundOutcome.WROTE: 5},
    writes={"Status": 4, "CreatePod": 2},
    buckets=(1, *[0] * (len(ROUND_SECONDS) - 1), 2),
    round_seconds=61.0,
    watch_lag=0.5,
    requests={("GET", "200"): 9, ("PUT", "none"): 1},
)


def samples(facts: OperatorFacts) -> dict[tuple[str, tuple[str, ...]], float]:
    found = [sample for family in operator.families(facts, version="1.2.3") for sample in family.samples]
    return {(one.name.removeprefix("perdure_operator_"), tuple(one.labels.values())): one.value for one in found}


def test_facts_become_series() -> None:
    found = samples(FACTS)
    expected = {
        ("info", ("1.2.3",)): 1,
        ("leading", ()): 1,
        ("synced", ()): 1,
        ("lease_age_seconds", ()): 1.5,
        ("queue_due", ()): 3,
        ("queue_oldest_seconds", ()): 0.25,
        ("rounds_running", ()): 2,
        ("rounds_total", ("wrote",)): 5,
        ("rounds_total", ("error",)): 0,
        ("writes_total", ("Status",)): 4,
        ("watch_lag_seconds", ()): 0.5,
        ("api_requests_total", ("GET", "200")): 9,
        ("api_requests_total", ("PUT", "none")): 1,
    }
    assert found.items() >= expected.items()


def test_the_histogram_counts_upwards_to_all_rounds() -> None:
    found = samples(FACTS)
    assert found["round_duration_seconds_bucket", ("0.005",)] == 1
    assert found["round_duration_seconds_bucket", ("30.0",)] == 1
    assert found["round_duration_seconds_bucket", ("+Inf",)] == 3
    assert (found["round_duration_seconds_count", ()], found["round_duration_seconds_sum", ()]) == (3, 61.0)


def test_a_follower_leads_nothing_and_has_no_age_of_a_lease() -> None:
    found = samples(replace(FACTS, leading=False, synced=False, lease_age=None))
    assert (found["leading", ()], found["synced", ()]) == (0, 0)
    assert ("lease_age_seconds", ()) not in found
