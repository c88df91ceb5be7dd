"""The operator's own series, of every replica: rounds, queue, requests, Lease and watch. Pure. Used by `exposition`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from perdure_operator.serving.metrics.counted import ROUND_SECONDS, OperatorFacts, RoundOutcome


def families(facts: OperatorFacts, *, version: str) -> Iterator[Metric]:
    """All of them."""
    info = GaugeMetricFamily("perdure_operator_info", "Always 1; `version` is Perdure's.", labels=["version"])
    info.add_metric([version], 1)
    yield info
    leading = "1 if this replica leads: it alone writes, and it alone shows the jobs' series."
    yield GaugeMetricFamily("perdure_operator_leading", leading, value=float(facts.leading))
    synced = "1 if this replica leads and has read every object: a leader that cannot read one kind does nothing."
    yield GaugeMetricFamily("perdure_operator_synced", synced, value=float(facts.synced))
    lease = GaugeMetricFamily(
        "perdure_operator_lease_age_seconds", "Since the leader sent its newest renewal of the Lease; leader only."
    )
    if facts.lease_age is not None:
        lease.add_metric([], facts.lease_age)
    yield lease
    yield GaugeMetricFamily(
        "perdure_operator_queue_due", "Jobs that are due and wait for a worker.", value=facts.queue_due
    )
    yield GaugeMetricFamily(
        "perdure_operator_queue_oldest_seconds", "Since the first of them was due.", value=facts.queue_oldest
    )
    yield GaugeMetricFamily("perdure_operator_rounds_running", "Jobs that a worker has.", value=facts.rounds_running)
    yield from _rounds(facts)
    yield GaugeMetricFamily(
        "perdure_operator_watch_lag_seconds",
        "Since the oldest of our status writes that the watch has not shown yet; 0 if it has shown all.",
        value=facts.watch_lag,
    )
    requests = CounterMetricFamily(
        "perdure_operator_api_requests",
        "Requests to the API server, those of kopf's watches left out; the code is `none` where no answer came.",
        labels=["verb", "code"],
    )
    for (verb, code), count in sorted(facts.requests.items()):
        requests.add_metric([verb, code], count)
    yield requests


def _rounds(facts: OperatorFacts) -> Iterator[Metric]:
    rounds = CounterMetricFamily("perdure_operator_rounds", "Rounds by how they ended.", labels=["outcome"])
    for outcome in RoundOutcome:
        rounds.add_metric([outcome.value], facts.outcomes.get(outcome, 0))
    yield rounds
    counts = list(accumulate(facts.buckets))
    bounds = [*(str(bound) for bound in ROUND_SECONDS), "+Inf"]
    yield HistogramMetricFamily(
        "perdure_operator_round_duration_seconds",
        "How long a round took, its calls to the API server included.",
        buckets=list(zip(bounds, counts, strict=True)),
        sum_value=facts.round_seconds,
    )
    writes = CounterMetricFamily(
        "perdure_operator_writes", "Writes of rounds that carried out all of theirs, by kind.", labels=["kind"]
    )
    for kind, count in sorted(facts.writes.items()):
        writes.add_metric([kind], count)
    yield writes
