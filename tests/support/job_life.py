"""The life of an invented job, second by second: what happened when, and a recount of its time that knows all of it.

The recount is the definition of goodput, written down as slowly as possible: each piece of time has one cause, a
finished step is productive unless a later run had to make it again, and what is in no commit yet is undecided.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any


@dataclass(frozen=True)
class Piece:
    """A piece of time."""

    begin: float
    end: float
    cause: str
    """A word of the operator's counters, or `step`."""
    run: int = 0
    """The run with whose begin the living processes began."""
    step: int = 0
    """The step that it belongs to, for `step`."""


@dataclass(frozen=True)
class Happened:
    """What one process of the job does, or what the operator sees, at a moment."""

    at: float
    what: str
    """awaits, assigned, started, starts beside, begins, steps, does, hangs, commits, takes over, is replaced, reports,
    ended, dies, over."""
    value: Any = None


@dataclass
class JobLife:
    """One life, drawn from a seed."""

    seed: int
    reports: float = 1.0
    """The part of the reports that arrive."""
    accounts_at_death: float = 1.0
    """The part of the deaths that leave a last account."""
    pieces: list[Piece] = field(default_factory=list)
    story: list[Happened] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)
    """At which step each run began that began with new processes."""
    finished: list[tuple[int, int]] = field(default_factory=list)
    """The steps that were finished, each with the run of its piece."""
    beside: float = 0.0
    """Seconds in which the processes of a next run started while another one trained."""
    restarts: list[tuple[float, float]] = field(default_factory=list)
    """When training ended, and when the next run with new processes began."""

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311 - it has to be repeatable
        self.now, self.run, self.step, self.saved = 0.0, 0, 0, 0
        self._beside = False
        """Whether the processes of the next run were started while this one trained."""
        self._stopped: float | None = None
        """When the newest run stopped training."""
        self._live()
        self.story.sort(key=lambda one: one.at)

    def recount(self) -> dict[str, float]:
        """Seconds by cause: the truth."""
        found: dict[str, float] = defaultdict(float)
        finished = set(self.finished)
        for piece in self.pieces:
            cause = piece.cause
            if cause == "step":
                redone = any(run > piece.run and began < piece.step for run, began in self.begins.items())
                followed = any(run > piece.run for run in self.begins)
                if (piece.run, piece.step) not in finished:
                    cause = "redone" if followed else "undecided"
                elif redone:
                    cause = "redone"
                else:
                    cause = "productive" if piece.step <= self.saved or self._kept(piece) else "undecided"
            found[cause] += piece.end - piece.begin
        return found

    def pauses(self) -> list[float]:
        """Seconds without training before each run with new processes, without those of which nobody can know that
        nobody trained."""
        return [
            sum(piece.end - piece.begin for piece in self.pieces if since <= piece.begin < until and _is_pause(piece))
            for since, until in self.restarts
        ]

    def _kept(self, piece: Piece) -> bool:
        """A later run began behind this step, from an image."""
        return any(run > piece.run and began >= piece.step for run, began in self.begins.items())

    def _seconds(self, least: float, most: float) -> float:
        return round(self._random.uniform(least, most), 3)

    def _passes(self, cause: str, seconds: float, **more: int) -> None:
        self.pieces.append(Piece(self.now, self.now + seconds, cause, **more))
        self.now += seconds

    def _tell(self, what: str, value: Any = None) -> None:
        self.story.append(Happened(self.now, what, value))

    def _live(self) -> None:
        runs = self._random.randint(2, 5)
        for number in range(1, runs + 1):
            if not self._beside:
                self._wait()
            self._train(last=number == runs)
        self._tell("over")

    def _wait(self) -> None:
        for cause in ("held", "nodes", "members"):
            if self._random.random() < 0.8:
                self._tell("awaits", cause)
                self._passes(cause, self._seconds(0.5, 400))

    def _train(self, *, last: bool) -> None:
        self.run += 1
        self._line = self.run
        restore, begun = self._seconds(0.2, 9), self.now
        if not self._beside:
            self._tell("assigned", self.run)
            self._tell("started")
        self._beside = False
        self._passes("start", self._seconds(1, 30))
        self._passes("restore", restore)
        self.begins[self._line] = self.saved = self.step  # an image is committed before the run goes on
        if self._stopped is not None:
            self.restarts.append((self._stopped, self.now))
        self._tell("begins", (self.run, self.step, restore))
        self._reports(begun, self.now)
        self._uploading: list[tuple[float, int]] = []
        moved = self.now
        for _ in range(self._random.randint(30, 120)):
            self._one_step()
            if self._random.random() < 0.03 and self.now > moved + 10.0:
                self._hand_over()
                moved = self.now
        self._end(self._random.choice(("leaves", "leaves", "dies", "image", "hangs", *(() if last else ("in place",)))))

    def _one_step(self) -> None:
        begun, step = self.now, self.step + 1
        self._pause("data", 0.6, 0.001, 1.5)
        mine = {"run": self._line, "step": step}
        self._passes("step", self._seconds(0.05, 3), **mine)
        if self._random.random() < 0.005:
            self._hang(self._seconds(300, 900))
        self._passes_uploads()
        self._finish(step)
        if self._random.random() < 0.05:
            self._passes("step", self._seconds(0.001, 0.02), run=self._line, step=step + 1)
            self._pause("save", 1.0, 0.01, 4)
            self._uploading.append((self.now + self._seconds(0.1, 20), step))
        self._pause("evaluation", 0.01, 5, 200)
        self._reports(begun, self.now)

    def _finish(self, step: int) -> None:
        self._tell("steps", step)
        self.step = step
        self.finished.append((self._line, step))

    def _passes_uploads(self) -> None:
        for at, step in list(self._uploading):
            if at <= self.now:
                self._uploading.remove((at, step))
                self.saved = max(self.saved, step)
                self._tell("commits", step)

    def _pause(self, cause: str, chance: float, least: float, most: float) -> None:
        if self._random.random() < chance:
            self._tell("does", cause)
            self._passes(cause, self._seconds(least, most))
            if self._random.random() < 0.005:
                self._tell("hangs", 0.0)
                self._passes("hang", self._seconds(300, 900))
            self._tell("does", "steps")

    def _hang(self, seconds: float) -> None:
        """It hangs from the last thing that it did: the whole step so far is lost, too, if nothing else was done."""
        self._passes("hang", seconds)
        self._tell("hangs", seconds)

    def _hand_over(self) -> None:
        self._tell("does", "handover")
        first = self._seconds(0.01, 0.5)
        self._passes("handover", first)
        self.run += 1
        if self._random.random() < 0.5:
            for _, step in self._uploading:  # the process leaves with all that it has begun to save
                self.saved = max(self.saved, step)
                self._tell("commits", step)
            self._uploading.clear()
            self._tell("is replaced", (self.run, self.step))
        else:
            self._tell("takes over", (self.run, self.step))
        self._passes("handover", self._seconds(0.001, 0.2))
        self._tell("does", "steps")

    def _end(self, how: str) -> None:
        if how == "in place":
            self._beside = True
            self.beside -= self.now
            self._tell("starts beside")
            for _ in range(self._random.randint(3, 20)):
                self._one_step()
        begun = self._stopped = self.now
        save = 0.0
        if how in ("leaves", "in place"):
            save = self._seconds(0.1, 30)
            self._tell("does", "save")
            self._passes("save", save)
            self.saved = self.step
            self._tell("commits", self.step)
        else:
            self._passes("step", self._seconds(0.01, 2), run=self._line, step=self.step + 1)
            if how == "hangs":
                self._hang(self._seconds(300, 2000))
        self._reports(begun, self.now)
        leaves = how in ("leaves", "in place")
        self._tell("ended" if leaves or self._random.random() < self.accounts_at_death else "dies", save)
        if self._beside:
            self.beside += self.now
        else:
            self._passes("unreported", self._seconds(0.5, 5))
        if how in ("dies", "hangs"):
            self.step = self.saved

    def _reports(self, begin: float, end: float) -> None:
        """A report each five seconds."""
        at = 5.0 * (begin // 5 + 1)
        while at <= end:
            if self._random.random() < self.reports:
                self.story.append(Happened(at, "reports"))
            at += 5.0


def _is_pause(piece: Piece) -> bool:
    return piece.cause not in ("unreported", "hang")
