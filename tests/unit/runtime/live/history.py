"""A whole history of a job: so many moves, one after the other, whatever the result of each."""

from __future__ import annotations

from tests.unit.runtime.live.job import Job
from tests.unit.runtime.live.move import Move


def play(job: Job, attempts: int) -> None:
    """Broken if a law does not hold on the way."""
    number = job.run
    for _ in range(attempts):
        number += 1
        job.harmed = False
        attempt = job.drawn(number)
        job.tells(f"run {number} is to take over run {job.run}: {attempt.joins} for {attempt.leavers}")
        Move(job, attempt).play()
        number = max(number, job.run)
    job.check_log()
