"""`kubectl perdure top`: how fast each job trains, what its steps wait for, and when it was last heard of. Pure.

All numbers are what rank 0 reported, as status shows them, once a minute at most. Nothing is reckoned forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from perdure_operator.api.model import Model
from perdure_operator.api.status import Straggler
from perdure_operator.cli.kubectl.job import JobSeen, heard_progress, summary
from perdure_operator.cli.kubectl.page import Page, Table, ago, duration


class JobPace(Model):
    """How one job trains. What was not reported lately is null."""

    namespace: str
    name: str
    stage: str
    """As in `kubectl perdure status`."""
    members: int | None = None
    """Living members of the run."""
    wanted: int | None = None
    """What spec.replicas asks for."""
    step: int | None = None
    percent: int | None = None
    """How much of the training is done."""
    remaining_seconds: int | None = None
    samples_per_second: float | None = None
    """Of all ranks together."""
    seconds_per_step: float | None = None
    own_percent: int | None = None
    """The part of its steps in which rank 0 waits for no other rank."""
    data_wait_percent: int | None = None
    """The part of its steps in which rank 0 waits for data."""
    save_stall_seconds: float | None = None
    """How long training stood still for the newest periodic save."""
    stragglers: tuple[Straggler, ...] = ()
    """Members that have held up the others for a minute."""
    heard: datetime | None = None
    """When the report with these numbers came; null without reports."""


def pace(seen: JobSeen) -> JobPace:
    """How the job trains."""
    job, progress = summary(seen), heard_progress(seen.status, seen.now)
    common = JobPace(
        namespace=job.namespace,
        name=job.name,
        stage=job.stage,
        members=job.members,
        wanted=job.wanted,
        step=job.step,
        stragglers=job.stragglers,
        heard=seen.status.progress.observed_at if seen.status.progress else None,
    )
    if progress is None:
        return common
    return common.model_copy(
        update={
            "percent": progress.percent,
            "remaining_seconds": progress.remaining_seconds,
            "samples_per_second": progress.samples_per_second,
            "seconds_per_step": progress.seconds_per_step,
            "own_percent": progress.own_percent,
            "data_wait_percent": progress.data_wait_percent,
            "save_stall_seconds": progress.save_stall_seconds,
        }
    )


def goes_on(seen: JobSeen) -> bool:
    """Whether the job is not over."""
    return not seen.status.finished_at


def page(jobs: Sequence[JobPace], now: datetime, *, namespaces: bool) -> Page:
    """One row for each job, under a line with their sums."""
    heads = (
        *("NAMESPACE", "NAME", "STAGE", "MEMBERS", "STEP", "DONE", "LEFT", "SAMPLES/S", "S/STEP", "OWN", "DATA"),
        *("SAVE STALL", "HELD UP BY", "HEARD"),
    )
    rows = tuple((one.namespace if namespaces else "", *_row(one, now)) for one in jobs)
    return _sums(jobs), Table(heads, rows)


def _row(job: JobPace, now: datetime) -> tuple[str, ...]:
    return (
        job.name,
        job.stage,
        "/".join("?" if number is None else str(number) for number in (job.members, job.wanted)),
        "unknown" if job.step is None else str(job.step),
        _percent(job.percent),
        "" if job.remaining_seconds is None else duration(job.remaining_seconds),
        _number(job.samples_per_second),
        _number(job.seconds_per_step),
        _percent(job.own_percent),
        _percent(job.data_wait_percent),
        "" if job.save_stall_seconds is None else f"{job.save_stall_seconds:g}s",
        ", ".join(_slow(one) for one in job.stragglers),
        f"{ago(job.heard, now)} ago" if job.heard else "",
    )


def _slow(one: Straggler) -> str:
    return f"rank {one.rank} on {one.node}" if one.node else f"rank {one.rank}"


def _percent(value: int | None) -> str:
    return "" if value is None else f"{value}%"


def _number(value: float | None) -> str:
    """Three digits."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _sums(jobs: Sequence[JobPace]) -> str:
    members, wanted = sum(one.members or 0 for one in jobs), sum(one.wanted or 0 for one in jobs)
    rates = [one.samples_per_second for one in jobs if one.samples_per_second is not None]
    rate = f"; {_number(sum(rates))} samples/s in {_jobs(len(rates))}" if rates else ""
    return f"{_jobs(len(jobs))}: {members} of {wanted} members{rate}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
