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


class TakenOver(NamedTuple):
    """A run went on where another one stood, in its living processes."""

    uid: str
    run: int
    before: int
    step: int


class Asked(NamedTuple):
    """A rank that has trained noticed a request to save."""

    uid: str
    run: int
    at: float
    seconds: float
    """Its input."""
    needed: float
    """The longest time of an undisturbed save, to be on the safe side."""


class Trouble(NamedTuple):
    """Something that may cost steps although a request came in time."""

    at: float
    what: str
    until: float = 0.0
    """When it is over, where it lasts."""


@dataclass
class Witness:
    """Everything seen, in order."""

    trained: list[Trained] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)
    taken: list[TakenOver] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    trouble: list[Trouble] = field(default_factory=list)
    started: dict[tuple[str, int], float] = field(default_factory=dict)
    """When the first process of a run was started."""
    ended: dict[tuple[str, int], float] = field(default_factory=dict)
    """When the last one ended."""
    partly: set[tuple[str, int]] = field(default_factory=set)
    """Runs of which some ranks have done one more step, which does not count as trained here."""

    @classmethod
    def of(cls, network: Network, root: str) -> Witness:
        """The one of this root."""
        found: Witness = network.shared.setdefault(("witness", root.rstrip("/")), cls())
        return found


def roots(network: Network) -> list[str]:
    """Where any rank has trained in this history."""
    return [key[1] for key in network.shared if isinstance(key, tuple) and key[0] == "witness"]
