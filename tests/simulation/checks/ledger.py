"""A job's losses in status at the end of its history, compared with its trainers' actions.

Status must not claim what no member could report: too few lost steps are wrong if it says that they are all, and too
many are always wrong.
"""

from __future__ import annotations

from tests.simulation.checks.accounts import UNSURE
from tests.simulation.checks.case import Promise
from tests.simulation.checks.reading import status_of
from tests.simulation.objects import JOBS, key_of, uid_of


class Ledger(Promise):
    """stepsLost, stepsInDoubt and runsUnreported."""

    def judge(self) -> None:
        """At the end, once every run is over."""
        if self._case.fired(*UNSURE):
            return
        for job in self._world.server.each(JOBS):
            root, status = job["spec"]["checkpoint"]["uri"], status_of(job)
            lost = self._case.evidence.lost(root, uid_of(job))
            told, doubt, unreported = (
                int(status.get(name) or 0) for name in ("stepsLost", "stepsInDoubt", "runsUnreported")
            )
            words = f"{key_of(job)[1]} has lost {lost}, and status tells {told}"
            if told > sum(lost.values()) + self._case.evidence.partly(root, uid_of(job)):
                self._case.fail("ledger", f"{words}")
            elif not unreported and told + doubt < sum(lost.values()):
                self._case.fail("ledger", f"{words} and {doubt} in doubt, and of no run that it does not know")
