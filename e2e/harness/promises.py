"""Perdure's promises for a training interrupted once, measured: for `make demo` and `make try`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from e2e.harness import evidence
from e2e.harness.evidence import Entry, Gap, NoEvidence, Samples, TracedStep


@dataclass(frozen=True)
class Promises:
    """The promises, measured."""

    gap: Gap
    steps_lost: int
    samples: Samples
    steps_without_evidence: int
    weights_equal: bool

    @property
    def hold(self) -> bool:
        """Whether all are kept."""
        nothing = (self.steps_lost, self.samples, self.steps_without_evidence) == (0, Samples(0, 0, 0), 0)
        return nothing and self.weights_equal

    def values(self) -> dict[str, str]:
        """For scripts, as one line."""
        return {
            "steps_lost": str(self.steps_lost),
            "samples_lost": str(self.samples.lost),
            "samples_repeated": str(self.samples.repeated),
            "weights_equal": str(self.weights_equal).lower(),
        }


def result_line(values: Mapping[str, str]) -> str:
    """For scripts."""
    return " ".join(["RESULT", *(f"{name}={value}" for name, value in values.items())])


def measure(
    entries: Sequence[Entry], steps: Sequence[TracedStep], *, samples: int, epochs: int, weights_equal: bool
) -> Promises:
    """Judge an interrupted training. NoEvidence if it was over before the interruption mattered."""
    gaps = evidence.gaps(steps)
    if len(gaps) != 1:
        raise NoEvidence(f"the training has {len(gaps) + 1} runs with steps, 2 were expected: it was not stopped once")
    return Promises(
        gap=gaps[0],
        steps_lost=evidence.steps_lost(entries, steps),
        samples=evidence.samples(entries, steps, size=samples, epochs=epochs),
        steps_without_evidence=len(evidence.untraced(entries, steps)),
        weights_equal=weights_equal,
    )


def told(
    promises: Promises, scores: Mapping[str, str], weights: Mapping[str, str], score: str = "accuracy"
) -> list[str]:
    """The promises and the results of both trainings, for people; `scores` and `weights` are by training, `score` is
    the name of the first."""
    return [
        f"  last step before: {promises.gap.last_step}   first step after: {promises.gap.first_step}",
        f"  steps lost: {promises.steps_lost}",
        f"  samples lost: {promises.samples.lost}",
        f"  samples repeated: {promises.samples.repeated}",
        "",
        f"  {'':14}{score:<10.10} weights (SHA-256)",
        *(f"  {name:14}{scores[name]:<10.10} {weights[name]}" for name in weights),
    ]
