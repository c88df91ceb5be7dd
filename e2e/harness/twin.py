"""The same training, undisturbed: plain processes on this machine, no cluster and no agent.

They run in the environment of the trainer's image, with the same number of ranks, so that the final weights must be the
same to the last bit.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.harness import evidence
from e2e.harness.local_run import LocalRun, Start, executed
from e2e.harness.root import Root
from e2e.harness.shared_run import SharedRun


class TwinFailed(AssertionError):
    """The undisturbed training did not end well; the message is what a rank has said."""


@dataclass(frozen=True)
class Twin:
    """What an undisturbed training has left."""

    weights: str
    batches: tuple[tuple[int, tuple[int, ...]], ...]
    """The samples of each step."""
    said: str
    """What rank 0 has printed."""


def trained(python: Path, script: Path, arguments: Sequence[str], *, world: int, start: Start = executed) -> Twin:
    """Trains it."""
    with tempfile.TemporaryDirectory(prefix="perdure-twin-") as name:
        argv = [str(python), str(script), *arguments]
        with LocalRun(argv, Path(name), world=world, start=start) as run:
            ended = run.ends()
        for rank in ended:
            if rank.status:
                raise TwinFailed(f"{' '.join(argv)} ended with status {rank.status}:\n{rank.tail}")
        return _judged(Root(Path(name) / "root"), ended[0].said)


def trained_once(python: Path, script: Path, arguments: Sequence[str], *, world: int, start: Start = executed) -> Twin:
    """The same, by whichever process of the test run asks first."""
    words = json.dumps([str(script), *arguments, world])
    told = SharedRun.current().once(
        f"twin-{hashlib.sha256(words.encode()).hexdigest()}",
        lambda: asdict(trained(python, script, arguments, world=world, start=start)),
    )
    return Twin(told["weights"], tuple((step, tuple(ids)) for step, ids in told["batches"]), told["said"])


def _judged(root: Root, said: str) -> Twin:
    entries, trace = root.entries(), root.trace().steps
    lost, missing = evidence.steps_lost(entries, trace), evidence.untraced(entries, trace)
    if lost or missing:
        raise TwinFailed(f"an undisturbed training has lost {lost} steps and left no trace of {missing}")
    return Twin(root.weight_hash(), tuple(evidence.batches(entries, trace)), said)
