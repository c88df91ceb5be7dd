"""What the death of any one member costs now, as this rank can tell: which finished steps are trained again. Pure.

The operator shows it (perdure.wire.report). Each answer is the worst that one death without notice may cost, whatever
rank it takes and wherever in a step: where an image is left only sometimes, the newest commit counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.wire.report import DeathCost


@dataclass(frozen=True)
class MirrorGuard:
    """What the mirror of all ranks' parts is good for."""

    most_lost: int
    """The finished steps that a death costs at most once it is whole."""
    whole: bool
    """Whether it is."""


def death_cost(*, images: bool, mirror: MirrorGuard | None) -> tuple[DeathCost, int | None]:
    """What a death costs, and with DeathCost.STEPS how many at most.

    `images`: whether the survivors of any member leave images that hold each finished step.
    """
    if images:
        return DeathCost.NO_STEP, None
    if mirror is None:
        return DeathCost.SINCE_COMMIT, None
    return (DeathCost.STEPS, mirror.most_lost) if mirror.whole else (DeathCost.UNTIL_MIRRORED, None)


def held_in_two_pods(parts: Sequence[int], pod: int) -> bool:
    """Whether each part of the state is in two pods of `pod` ranks each. `parts` has the number of each rank's part."""
    pods: dict[int, set[int]] = {}
    for rank, part in enumerate(parts):
        pods.setdefault(part, set()).add(rank // pod)
    return all(len(one) > 1 for one in pods.values())
