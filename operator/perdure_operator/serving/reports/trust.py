"""Which reports count, and which of them speak for their job. Pure.

A token proves which pod sends. The cache says whether that is a living pod of the job, and status which runs there are.
What a report says beyond that is the word of a container. Called by `endpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.wire import Role
from perdure.wire.report import Report
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster.read.records import JobRecord, PodRecord
from perdure_operator.decide.health import trained_plans, trained_runs
from perdure_operator.serving.reports.tokens import ReportingPod

_REPORT: Final = frozenset({Role.MEMBER.value, Role.STANDBY.value})


def refusal(
    sender: ReportingPod, pod: PodRecord | None, job: JobRecord | None, report: Report, last: Report | None
) -> str:
    """Why the report does not count; "" if it does. `pod` and `job` are those of the sender's names, `last` is the
    newest report of that pod."""
    if job is None or job.uid != sender.job_uid or job.status is None:
        return "the token's job is gone"
    if pod is None or pod.uid != sender.uid or pod.view.owner_uid != job.uid:
        return "the token's pod is gone, or not the job's"
    if pod.view.role not in _REPORT or pod.view.gone or pod.view.terminated is not None:
        return "the pod has left its job, or ended"
    if report.run is not None and not _may_be_trained(report.run, job.status):
        return f"run {report.run} is not planned, or over for long"
    if last is not None and report.start != last.start:
        return "another agent reports for this pod"
    if last is not None and report.sequence <= last.sequence:
        return f"report {last.sequence} of this pod is here already"
    return ""


def _may_be_trained(run: int, status: TrainingJobStatus) -> bool:
    """Whether a member may train that run, or be about to leave it: status knows of a move before members do, and
    the other way round. What is shown is the business of `progress`."""
    return run in trained_runs(status) or run in _left_runs(status)


def _left_runs(status: TrainingJobStatus) -> Iterator[int]:
    """The runs that members may still train although a later one is on or planned, and those that were tried in
    between."""
    if status.previous is not None:
        yield status.previous.run
    if status.next is not None:
        yield from status.next.attempted_runs
    for plan in trained_plans(status):
        if plan.takes_over:
            yield from range(plan.takes_over, plan.run)


def speaks_for_job(sender: ReportingPod, report: Report, status: TrainingJobStatus) -> bool:
    """Whether the report is that of a run's rank 0, by the run's plan."""
    return any(
        (one.name, one.uid, one.rank) == (sender.name, sender.uid, 0)
        for plan in trained_plans(status)
        if plan.run == report.run
        for one in plan.members
    )
