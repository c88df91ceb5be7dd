"""What a death costs, by what the ranks have prepared for one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.loop.death_cost import MirrorGuard, death_cost, held_in_two_pods
from perdure.wire.report import DeathCost


@pytest.mark.parametrize(
    ("images", "mirror", "cost"),
    [
        (True, None, (DeathCost.NO_STEP, None)),
        (False, None, (DeathCost.SINCE_COMMIT, None)),
        (False, MirrorGuard(1, whole=False), (DeathCost.UNTIL_MIRRORED, None)),
        (False, MirrorGuard(1, whole=True), (DeathCost.STEPS, 1)),
        (False, MirrorGuard(5, whole=True), (DeathCost.STEPS, 5)),
    ],
)
def test_images_save_each_finished_step_and_a_mirror_all_but_a_few(
    images: bool, mirror: MirrorGuard | None, cost: tuple[DeathCost, int | None]
) -> None:
    assert death_cost(images=images, mirror=mirror) == cost


@pytest.mark.parametrize(
    ("parts", "pod", "held"),
    [
        ((0,), 1, False),
        ((0, 0), 1, True),
        ((0, 0), 2, False),
        ((0, 0, 0, 0), 2, True),
        ((0, 1), 1, False),
        ((0, 1, 0, 1), 1, True),
        ((0, 1, 0, 1), 2, True),
        ((0, 0, 1, 1), 2, False),
        ((0, 1, 0, 1), 4, False),
        ((0, 1, 0), 1, False),
    ],
)
def test_a_pod_that_dies_takes_all_its_ranks_along(parts: Sequence[int], pod: int, held: bool) -> None:
    assert held_in_two_pods(parts, pod) is held
