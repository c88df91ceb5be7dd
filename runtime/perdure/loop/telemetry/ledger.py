"""What this process does with its time, run by run: `figures` tells its agent, and the operator adds up the job's.

At each moment the process makes a step, or does something else that has a name in `CAUSES`. The time of a step is
productive once the step is finished; until then it is unfinished. Which steps may have to be made again depends on
commits, so the ledger knows how many productive seconds the newest commit holds.

A newcomer's account begins when it takes over the living run: until then the others train. The caller passes the clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from perdure.wire.account import CAUSES, RunAccount, merged

STEPS_KEPT: Final = 4096
"""Steps since the newest commit whose times are known. Of more, every second one is forgotten."""
STEPS: Final = "steps"
"""What it does while it does nothing of CAUSES."""


class Ledger:
    """The accounts of one process. The script's thread makes the entries."""

    def __init__(self, started: float | None, *, now: Callable[[], float] = time.monotonic) -> None:
        """`started` is when the agent started the process, by the same clock; None if it does not say."""
        self._started, self._now = started, now
        self._run: int | None = None
        """None before it trains."""
        self._began = self._step = 0
        self._live = False
        self._does = STEPS
        self._mark = 0.0
        """The time has entries up to here."""
        self._seconds: dict[str, float] = {}
        self._productive = self._unfinished = 0.0
        self._of_all_runs = 0.0
        """The productive seconds of all its runs."""
        self._saved = (0, 0.0)
        """The step of the newest commit, and the productive seconds of all runs up to there."""
        self._joined = False
        """Whether others had made unsaved steps before its own, as far as it knows."""
        self._later: deque[tuple[int, float]] = deque()
        """The same of later steps."""
        self._hangs_since: float | None = None
        self._hung = 0.0
        """Seconds of hangs that are over, and not entered yet."""
        self._before: tuple[RunAccount, ...] = ()
        """The account of the run before this one, if this process trained it."""

    def begin(self, run: int, step: int, restore: float) -> None:
        """The run has restored this step, which took so many seconds."""
        now = self._now()
        self._open(run, step, now, live=False)
        self._seconds["restore"] = restore
        self._seconds["start"] = 0.0 if self._started is None else max(0.0, now - self._started - restore)

    def take_over(self, run: int, step: int) -> None:
        """From now on the process is a rank of this run, which goes on behind this step."""
        now = self._now()
        if self._run is not None:
            self._charge(now)
            self._before = (self._account(now, unfinished=0.0),)
        else:
            self._joined = True
        self._open(run, step, now, live=True)

    def _open(self, run: int, step: int, now: float, *, live: bool) -> None:
        if self._run is None:
            self._saved = (step, 0.0)
        self._run, self._began, self._step, self._live, self._mark = run, step, step, live, now
        self._hangs_since, self._hung = None, 0.0
        self._seconds, self._productive = dict.fromkeys(CAUSES, 0.0), 0.0

    def does(self, what: str) -> str:
        """From now on it does something of CAUSES, or STEPS. Returns what it did."""
        before, self._does = self._does, what
        if before != what and self._run is not None:
            self._charge(self._now(), before)
        return before

    def begin_draw(self) -> None:
        """It waits for a batch."""
        if self._does == STEPS:
            self.does("data")

    def end_draw(self) -> None:
        """It has the batch."""
        if self._does == "data":
            self.does(STEPS)

    def stepped(self, step: int) -> None:
        """This step is finished."""
        if self._run is None:
            return
        self._charge(self._now())
        self._does = STEPS
        self._productive += self._unfinished
        self._of_all_runs += self._unfinished
        self._unfinished, self._step = 0.0, step
        self._later.append((step, self._of_all_runs))
        if len(self._later) > STEPS_KEPT:
            self._later = deque(list(self._later)[::2])

    def hangs(self, seconds: float) -> None:
        """It has made no progress for so long, and makes none before `goes_on`, or before it does something else.
        From any thread."""
        if self._hangs_since is None:
            self._hangs_since = self._now() - seconds

    def goes_on(self) -> None:
        """It makes progress again. From any thread."""
        if (since := self._hangs_since) is not None:
            self._hung, self._hangs_since = self._hung + self._now() - since, None

    def committed(self, step: int) -> None:
        """A commit of this step is in the log."""
        self._joined = self._joined and step < self._saved[0]
        while self._later and self._later[0][0] <= step:
            self._saved = self._later.popleft()

    @property
    def accounts(self) -> tuple[RunAccount, ...]:
        """Of its newest runs, up to now; none before it trains. From any thread."""
        return merged(self._before, () if self._run is None else [self._account(self._now())])

    def _account(self, now: float, *, unfinished: float | None = None) -> RunAccount:
        more, seconds = max(0.0, now - self._mark), dict(self._seconds)
        open_step = self._unfinished + (more if self._does == STEPS else 0.0)
        lost = min(open_step if self._does == STEPS else more, self._lost(now))
        if self._does == STEPS:
            open_step -= lost
        else:
            seconds[self._does] += more - lost
        seconds["hang"] += lost
        step, saved = self._saved
        return RunAccount(
            self._run or 0,
            self._began,
            self._step,
            self._live,
            self._productive,
            **seconds,
            unfinished=open_step if unfinished is None else unfinished,
            unsaved=self._of_all_runs - saved,
            unsaved_steps=max(0, self._step - step),
            joined=self._joined,
        )

    def _charge(self, now: float, did: str | None = None) -> None:
        """Enter the time since the last entry under what the process did."""
        seconds, lost, did = max(0.0, now - self._mark), self._lost(now), did or self._does
        self._mark, self._hangs_since, self._hung = now, None, 0.0
        if did == STEPS:
            self._unfinished += seconds
            lost = min(self._unfinished, lost)
            self._unfinished -= lost
        else:
            lost = min(seconds, lost)
            self._seconds[did] += seconds - lost
        self._seconds["hang"] += lost

    def _lost(self, now: float) -> float:
        """The seconds in which it has hung since the last entry count for nothing else."""
        since = self._hangs_since
        return self._hung + (0.0 if since is None else max(0.0, now - since))
