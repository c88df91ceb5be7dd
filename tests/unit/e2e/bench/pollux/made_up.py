"""Models whose times and noise are made up, so that a test can compute what has to come out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final

from e2e.bench.pollux.measurements import Epochs, Model, Placement, StepTime, Timed

MICROS: Final = (4, 16)
PROGRESS: Final = (100.0, 200.0)


def step_time(nodes: int, ranks: int, micro: int) -> StepTime:
    """0.1 s, 0.01 s a sample, and for more than one rank 0.05 s on one node or 0.2 s on several."""
    sync = 0.0 if ranks == 1 else 0.05 if nodes == 1 else 0.2
    return StepTime(0.1 + 0.01 * micro + sync, sync)


def model(*, sqr: float = 1.0, var: float = 3.0, name: str = "made-up", longer: float = 1.0) -> Model:
    """Two epochs, batches from 16 to 64, micro-batches from 4 to 16, on up to two nodes and some more."""
    epochs = {batch: Epochs([longer * end for end in PROGRESS], (sqr, sqr), (var, var)) for batch in (16, 64)}
    placements: Mapping[Placement, list[Timed]] = {
        placement: [Timed(micro, step_time(len(placement), sum(placement), micro)) for micro in MICROS]
        for placement in [
            (1,),
            (2,),
            (3,),
            (4,),
            *(pair for pair in product(range(1, 5), repeat=2) if pair[0] <= pair[1]),
        ]
    }
    scaled = {
        (nodes, ranks): [Timed(micro, step_time(nodes, ranks, micro)) for micro in MICROS]
        for nodes, ranks in ((16, 16), (16, 64), (4, 4), (4, 16))
    }
    return Model(name, epochs, placements, scaled)
