"""What really happened in the trainers of one root, beside anything they or the log say.

The simulated trainers tell it here, `evidence` compares it with the log. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.interface import Network


class Trained(NamedTuple):
    """One step that all ranks of a run have done."""

    uid: str
    run: int
    step: int
    epoch: int
    start: int
    stop: int
    """It consumed the samples [start, stop) of the epoch."""


class Resumed(NamedTuple):
    """From which commit a run went on; seq 0 is the beginning."""

    uid: str
    run: int
    seq: int
    step: int


@dataclass
class Witness:
    """Everything seen, in order."""

    trained: list[Trained] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)

    @classmethod
    def of(cls, network: Network, root: str) -> Witness:
        """The one of this root."""
        found: Witness = network.shared.setdefault(("witness", root.rstrip("/")), cls())
        return found
