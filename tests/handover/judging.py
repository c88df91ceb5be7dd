"""What a training that changed its members has lost, as its log and its traces have it."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.harness import evidence
from e2e.harness.evidence import Entry, Samples, TracedStep

SAMPLES = 1536
Lost = tuple[int, Samples, list[tuple[int, int]]]
NOTHING: Lost = (0, Samples(0, 0, 0), [])


def lost(entries: Sequence[Entry], steps: Sequence[TracedStep], *, epochs: int) -> Lost:
    """Steps done twice or never counted, samples lost or repeated, steps of which a rank has left no trace."""
    return (
        evidence.steps_lost(entries, steps),
        evidence.samples(entries, steps, size=SAMPLES, epochs=epochs),
        evidence.untraced(entries, steps),
    )
