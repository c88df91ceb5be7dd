"""Handmade logs and traces: training as a scenario would leave it, right or with one fault."""

from __future__ import annotations

from dataclasses import dataclass, field

from e2e.harness.evidence import Entry, TracedStep

UID = "u"
SIZE = 8
BATCH = 4
STEPS_PER_EPOCH = SIZE // BATCH


@dataclass
class Training:
    """Two ranks that share batches of 4 out of 8 samples; one step takes one second."""

    entries: list[Entry] = field(default_factory=list)
    trace: list[TracedStep] = field(default_factory=list)
    clock: float = 1000.0

    def opened(self, run: int, resumes: int | None = None) -> Training:
        return self._append("Opened", run, {"world": 2, "resumes": resumes})

    def took_over(self, run: int, older: int, step: int) -> Training:
        return self._append("Opened", run, {"world": 2, "resumes": None, "takesOver": older, "step": step})

    def committed(self, run: int, step: int, *, final: bool = False) -> Training:
        return self._append("Committed", run, {"step": step, "epoch": step // STEPS_PER_EPOCH, "final": final})

    def completed(self, run: int, step: int) -> Training:
        return self._append("Completed", run, {"step": step, "epoch": step // STEPS_PER_EPOCH})

    def trained(self, run: int, first: int, last: int) -> Training:
        """Both ranks of the run do steps first .. last."""
        for step in range(first, last + 1):
            self.clock += 1
            epoch, place = divmod(step - 1, STEPS_PER_EPOCH)
            batch = [(epoch + place * BATCH + n) % SIZE for n in range(BATCH)]
            for rank in (0, 1):
                ids = tuple(batch[rank * 2 : rank * 2 + 2])
                self.trace.append(TracedStep(UID, run, rank, step, epoch, self.clock, ids))
        return self

    def passed(self, seconds: float) -> Training:
        self.clock += seconds
        return self

    def without(self, run: int, rank: int, step: int) -> Training:
        """That line of the trace is missing."""
        self.trace = [line for line in self.trace if (line.run, line.rank, line.step) != (run, rank, step)]
        return self

    def with_ids(self, run: int, rank: int, step: int, ids: tuple[int, ...]) -> Training:
        """That rank trained on other samples in that step."""
        self.trace = [
            TracedStep(UID, run, rank, step, line.epoch, line.time, ids)
            if (line.run, line.rank, line.step) == (run, rank, step)
            else line
            for line in self.trace
        ]
        return self

    def _append(self, kind: str, run: int, body: dict[str, object]) -> Training:
        self.entries.append(Entry(len(self.entries) + 1, kind, UID, run, "1970-01-01T00:16:40+00:00", body))
        return self


def drained() -> Training:
    """Two epochs, drained after step 3: run 2 resumes entry 2 at step 3."""
    start = Training().opened(1).trained(1, 1, 3).committed(1, 3, final=True).passed(5)
    return start.opened(2, resumes=2).trained(2, 4, 4).completed(2, 4)


def handed_over() -> Training:
    """Two epochs, run 2 takes over the living run 1 at step 3."""
    start = Training().opened(1).trained(1, 1, 2).committed(1, 2).trained(1, 3, 3)
    return start.took_over(2, older=1, step=3).trained(2, 4, 4).completed(2, 4)
