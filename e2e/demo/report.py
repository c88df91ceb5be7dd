"""What the demo shows at its end: the timeline, the pause and its parts, the comparison, one line for scripts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.harness import evidence, timeline
from e2e.harness.drain import Drained
from e2e.harness.evidence import Entry, Gap, NoEvidence, Samples, TracedStep
from e2e.harness.watching import Seen


@dataclass(frozen=True)
class Trained:
    """What one training has left behind."""

    history: Sequence[Seen]
    entries: Sequence[Entry]
    steps: Sequence[TracedStep]
    accuracy: str
    weights: str


@dataclass(frozen=True)
class Result:
    """The promises, measured."""

    gap: Gap
    drained: Drained
    steps_lost: int
    samples: Samples
    steps_without_evidence: int
    weights_equal: bool

    @property
    def holds(self) -> bool:
        """Whether every promise is kept."""
        nothing = (self.steps_lost, self.samples, self.steps_without_evidence) == (0, Samples(0, 0, 0), 0)
        return nothing and self.weights_equal and self.drained.status == 0

    def line(self) -> str:
        """For scripts."""
        values = {
            "steps_lost": self.steps_lost,
            "samples_lost": self.samples.lost,
            "samples_repeated": self.samples.repeated,
            "weights_equal": str(self.weights_equal).lower(),
            "drain_s": f"{self.drained.seconds:.1f}",
            "pause_s": f"{self.gap.seconds:.1f}",
        }
        return " ".join(["RESULT", *(f"{name}={value}" for name, value in values.items())])


def judge(moved: Trained, undisturbed: Trained, drained: Drained, *, samples: int, epochs: int) -> Result:
    """Compares the drained training with the promises. NoEvidence where it was over before the drain could matter."""
    gaps = evidence.gaps(moved.steps)
    if len(gaps) != 1:
        raise NoEvidence(f"the training has {len(gaps) + 1} runs with steps, 2 were expected: it was not drained once")
    return Result(
        gap=gaps[0],
        drained=drained,
        steps_lost=evidence.steps_lost(moved.entries, moved.steps),
        samples=evidence.samples(moved.entries, moved.steps, size=samples, epochs=epochs),
        steps_without_evidence=len(evidence.untraced(moved.entries, moved.steps)),
        weights_equal=moved.weights == undisturbed.weights,
    )


def told(result: Result, moved: Trained, undisturbed: Trained, start: float) -> str:
    """Everything, for people."""
    gap = result.gap
    agreed = timeline.seconds_of(moved.history, gap.before_run).get("agree", 0.0)
    found = timeline.moments(moved.history, moved.entries, [gap], [result.drained])
    parts = [f"    {part.name:<12}{part.seconds:8.2f} s" for part in timeline.pause_parts(moved.history, gap)]
    return "\n".join(
        [
            "What happened when",
            timeline.written(found, start),
            "",
            f"  drain           {result.drained.seconds:8.2f} s, exit status {result.drained.status}",
            f"  training pause  {gap.seconds:8.2f} s, of which",
            *parts,
            f"  (before it, the ranks agreed on the step to stop at in {agreed:.2f} s, while they trained)",
            "",
            f"  last step before: {gap.last_step}   first step after: {gap.first_step}",
            f"  steps lost: {result.steps_lost}",
            f"  samples lost: {result.samples.lost}",
            f"  samples repeated: {result.samples.repeated}",
            "",
            f"  {'':14}accuracy   weights (SHA-256)",
            f"  {'drained':14}{moved.accuracy:<10} {moved.weights}",
            f"  {'undisturbed':14}{undisturbed.accuracy:<10} {undisturbed.weights}",
        ]
    )
