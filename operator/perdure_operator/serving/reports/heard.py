"""The newest report of each living pod, and how often pods report. Filled by `endpoint`, read by `loop.progress`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from perdure.wire.report import Report
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import Key
from perdure_operator.serving.reports.tokens import ReportingPod

SPEAKER_SECONDS: Final = (5.0, 60.0)
OTHER_SECONDS: Final = (30.0, 300.0)
"""The shortest and the longest time between two reports of a pod that speaks for its job, and of any other."""
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
    hangs_at: datetime | None = None
    """When its pod first reported that it hangs; None: with this report, if it does."""


class ReportBoard:
    """One report for each pod. Belongs to one event loop."""

    def __init__(self) -> None:
        self._newest: dict[str, Received] = {}
        self._speakers: set[str] = set()

    def last(self, pod: str) -> Report | None:
        """The newest report of the pod with that uid."""
        known = self._newest.get(pod)
        return known.report if known else None

    def take(self, received: Received) -> None:
        """Keep it in place of the pod's earlier one."""
        uid = received.sender.uid
        known = self._newest.get(uid)
        if known and known.report.run == received.report.run:
            if known.report.step == received.report.step:
                received = replace(received, step_at=known.step_at or known.at)
            if known.report.phase == received.report.phase:
                received = replace(received, phase_at=known.phase_at or known.at)
            if known.report.hangs_since is not None:
                received = replace(received, hangs_at=known.hangs_at or known.at)
        self._newest[uid] = received
        (self._speakers.add if received.speaks else self._speakers.discard)(uid)

    def next_seconds(self, *, speaks: bool) -> float:
        """When such a pod should report again: later, the more of them there are."""
        count = len(self._speakers) if speaks else len(self._newest) - len(self._speakers)
        shortest, longest = SPEAKER_SECONDS if speaks else OTHER_SECONDS
        return max(shortest, min(longest, count / PER_SECOND))

    def of_jobs(self) -> list[Received]:
        """The newest report that speaks for each job and has a step, the oldest first."""
        newest: dict[Key, Received] = {}
        speaking = (self._newest[uid] for uid in self._speakers)
        for received in sorted((one for one in speaking if one.report.step is not None), key=lambda one: one.at):
            newest.pop(received.sender.job, None)
            newest[received.sender.job] = received
        return list(newest.values())

    def of_run(self, job: str, run: int | None) -> list[Received]:
        """The newest report of each pod of the job with that uid, if it is about this run."""
        of_job = (one for one in self._newest.values() if one.sender.job_uid == job)
        return [one for one in of_job if one.report.run == run]

    def forget_ended(self, cache: Cache) -> None:
        """Forget the reports of pods that are gone."""
        for uid, received in list(self._newest.items()):
            pod = cache.pod((received.sender.job[0], received.sender.name))
            if pod is None or pod.uid != uid:
                del self._newest[uid]
                self._speakers.discard(uid)
