"""The newest report of each living pod, and how often pods report. Filled by `endpoint`, read by `loop.progress`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from perdure.wire.report import Report
from perdure.wire.scaling import ScalingHints
from perdure_operator.api.status import HistoryEntry, RunPlan
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.decide.health import SILENT
from perdure_operator.serving.reports.tokens import ReportingPod

SPEAKER_SECONDS: Final = (5.0, 60.0)
OTHER_SECONDS: Final = (30.0, 300.0)
"""The shortest and the longest time between two reports of a pod that speaks for its job, and of any other."""
STAND_IN: Final = timedelta(seconds=100)
"""Once the pod that speaks for its job has been silent for so long, and another one heard for so long, that one's
reports count. It is less than health.SILENT by more than status lags behind, unless that pod reports seldom."""
_LOST: Final = timedelta(seconds=80)
"""One report may get lost: a pod that was asked to wait for longer is silent so much after that. It takes a retry, its
jitter, and the limits of a request."""
_PERIODS: Final = 2.5
"""A report is fresh for so many of the times that its pod was asked to wait: one may get lost."""
PER_SECOND: Final = 10.0
"""The operator wants at most this many reports of each kind a second."""


@dataclass(frozen=True)
class Received:
    """A report that counts."""

    sender: ReportingPod
    report: Report
    speaks: bool
    """Whether it speaks for its job."""
    at: datetime
    step_at: datetime | None = None
    """When its pod first reported this step; None: with this report."""
    phase_at: datetime | None = None
    """When its pod first reported this phase, after another one; None: with this report."""
    run_at: datetime | None = None
    """When its pod first reported about this run; None: with this report."""
    period: float = 0.0
    """Seconds after which its pod was asked to report again."""
    hangs_at: datetime | None = None
    """When its pod first reported that it hangs; None: with this report, if it does."""

    def is_fresh(self, now: datetime) -> bool:
        """Whether it still tells what its pod does: the next one is not long overdue."""
        return now - self.at < max(SILENT, timedelta(seconds=_PERIODS * self.period))


class ReportBoard:
    """One report for each pod. Belongs to one event loop."""

    def __init__(self) -> None:
        self._newest: dict[str, Received] = {}
        self._pods: defaultdict[str, set[str]] = defaultdict(set)
        """The uids of each job's pods, by the job's: a job is asked for once a second."""
        self._speakers: set[str] = set()

    def last(self, pod: str) -> Report | None:
        """The newest report of the pod with that uid."""
        known = self._newest.get(pod)
        return known.report if known else None

    def take(self, received: Received) -> float:
        """Keep it in place of the pod's earlier one, and say after how many seconds the next one should come."""
        uid = received.sender.uid
        known = self._newest.get(uid)
        if known and known.report.run == received.report.run:
            received = replace(received, run_at=known.run_at or known.at)
            if known.report.step == received.report.step:
                received = replace(received, step_at=known.step_at or known.at)
            if known.report.phase == received.report.phase:
                received = replace(received, phase_at=known.phase_at or known.at)
            if known.report.hangs_since is not None:
                received = replace(received, hangs_at=known.hangs_at or known.at)
        self._newest[uid] = received
        self._pods[received.sender.job_uid].add(uid)
        (self._speakers.add if received.speaks else self._speakers.discard)(uid)
        period = self.next_seconds(speaks=received.speaks or self._stands_in(received))
        self._newest[uid] = replace(received, period=period)
        return period

    def _stands_in(self, received: Received) -> bool:
        """Whether its report counts for its job, in place of a silent pod's."""
        found = _counting([self._newest[uid] for uid in self._pods[received.sender.job_uid]], received.at)
        return found is not None and found.sender.uid == received.sender.uid

    def next_seconds(self, *, speaks: bool) -> float:
        """When such a pod should report again, if it speaks for its job or stands in for one that does, or if it does
        neither: later, the more of them there are."""
        count = len(self._speakers) if speaks else len(self._newest) - len(self._speakers)
        shortest, longest = SPEAKER_SECONDS if speaks else OTHER_SECONDS
        return max(shortest, min(longest, count / PER_SECOND))

    def of_jobs(self, now: datetime) -> list[Received]:
        """The report that counts for each job, the oldest first: the newest of those that speak for it and have a step,
        or another member's if these are silent."""
        found = (_counting([self._newest[uid] for uid in pods], now) for pods in self._pods.values())
        return sorted((one for one in found if one), key=lambda one: one.at)

    def of_run(self, job: str, run: int | None) -> list[Received]:
        """The newest report of each pod of the job with that uid, if it is about this run."""
        of_job = (self._newest[uid] for uid in self._pods.get(job, ()))
        return [one for one in of_job if one.report.run == run]

    def scaling_of(self, job: JobRecord, now: datetime) -> tuple[ScalingHints, float] | None:
        """What the member that holds rank 0 of the job's present run has measured, and how many seconds ago it said
        so; None if it has said nothing of it.

        A container has written it. It is believed of no more ranks than the runs had that status knows of.
        """
        status = job.status
        if status is None or (current := status.current) is None:
            return None
        first = current.plan.members[0]
        told = self._newest.get(first.uid)
        if told is None or told.sender.job_uid != job.uid or told.report.run != current.run or not told.report.scaling:
            return None
        hints = told.report.scaling
        profiled = min(hints.profiled, _most_ranks(status.history, current.plan))
        return replace(hints, profiled=profiled), (now - told.at).total_seconds()

    def forget_ended(self, cache: Cache) -> None:
        """Forget the reports of pods that are gone."""
        for uid, received in list(self._newest.items()):
            pod = cache.pod((received.sender.job[0], received.sender.name))
            if pod is None or pod.uid != uid:
                del self._newest[uid]
                self._speakers.discard(uid)
                self._pods[received.sender.job_uid].discard(uid)
        self._pods = defaultdict(set, {job: pods for job, pods in self._pods.items() if pods})


def _most_ranks(history: Sequence[HistoryEntry], plan: RunPlan) -> int:
    """The most ranks of this run and of those in history, if each member had as many as now."""
    most = max((entry.size for entry in history), default=0)
    return max(plan.world, most * plan.world // len(plan.members))


def _counting(of_job: Sequence[Received], now: datetime) -> Received | None:
    """The newest report that speaks for the job, or, while that pod is silent, the one of the member that stands in for
    it: of the newest run, rather heard lately, of the lowest rank.

    A pod that speaks is heard also while it has no step: it imports, or restores for longer than others.
    """
    with_step = [one for one in of_job if one.report.run is not None and one.report.step is not None]
    speaking = max((one for one in with_step if one.speaks), key=lambda one: one.at, default=None)
    newest_run = max((one.report.run or 0 for one in with_step), default=0)
    spoke = [one for one in of_job if one.speaks and one.report.run == newest_run]
    if any(now - one.at < max(STAND_IN, timedelta(seconds=one.period) + _LOST) for one in spoke):
        return speaking
    others = [one for one in with_step if not one.speaks and one.is_fresh(now)]
    heard_long = [one for one in others if one.run_at and one.at - one.run_at >= STAND_IN]

    def order(one: Received) -> tuple[int, bool, int]:
        return -(one.report.run or 0), now - one.at >= STAND_IN, one.report.rank or 0

    return min(heard_long, key=order, default=speaking)
