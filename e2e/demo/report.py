"""What the demo shows at its end: the timeline, the pause and its parts, the comparison, one line for scripts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.harness import promises, timeline
from e2e.harness.drain import Drained
from e2e.harness.evidence import Entry, TracedStep
from e2e.harness.handover import Way, way_of
from e2e.harness.promises import Promises, measure, result_line
from e2e.harness.watching import Seen


@dataclass(frozen=True)
class Trained:
    """What one training has left behind."""

    history: Sequence[Seen]
    entries: Sequence[Entry]
    steps: Sequence[TracedStep]
    score: str
    weights: str


@dataclass(frozen=True)
class Result:
    """The promises, measured, and the drain."""

    promises: Promises
    drained: Drained
    way: Way

    @property
    def holds(self) -> bool:
        """Whether every promise is kept."""
        return self.promises.hold and self.drained.status == 0

    def line(self) -> str:
        """For scripts."""
        pause = self.promises.gap.seconds
        seconds = {"drain_s": f"{self.drained.seconds:.1f}", "pause_s": f"{pause:.2f}" if pause < 1 else f"{pause:.1f}"}
        return result_line(self.promises.values() | {"handover": self.way.value} | seconds)


def judge(moved: Trained, undisturbed: Trained, drained: Drained, *, samples: int, epochs: int) -> Result:
    """Compares the drained training with the promises. NoEvidence where it was over before the drain could matter."""
    equal = moved.weights == undisturbed.weights
    promises = measure(moved.entries, moved.steps, samples=samples, epochs=epochs, weights_equal=equal)
    return Result(promises, drained, way_of(moved.history, moved.entries, promises.gap))


def told(result: Result, moved: Trained, undisturbed: Trained, start: float, *, score: str) -> str:
    """Everything, for people; `score` names what a training comes to."""
    gap = result.promises.gap
    agreed = timeline.seconds_of(moved.history, gap.before_run).get("agree", 0.0)
    found = timeline.moments(moved.history, moved.entries, [gap], [result.drained])
    parts = [f"    {part.name:<12}{part.seconds:8.2f} s" for part in timeline.pause_parts(moved.history, gap)]
    return "\n".join(
        [
            "What happened when",
            timeline.written(found, start),
            "",
            f"  drain           {result.drained.seconds:8.2f} s, exit status {result.drained.status}",
            f"  handover        {result.way.value:>8}",
            f"  training pause  {gap.seconds:8.2f} s, of which",
            *parts,
            f"  (before it, the ranks agreed on the step to stop at in {agreed:.2f} s, while they trained)",
            "",
            *promises.told(
                result.promises,
                {"drained": moved.score, "undisturbed": undisturbed.score},
                {"drained": moved.weights, "undisturbed": undisturbed.weights},
                score,
            ),
        ]
    )
