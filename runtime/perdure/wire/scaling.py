"""What a training job has measured of itself, and tells the operator: how its goodput changes with its ranks.

Rank 0's trainer measures it, its agent passes it on in reports, and `perdure.goodput.hints` computes with it. A
container writes it, so it may hold anything: hints are read whole or not at all, and what is unknown is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from perdure.wire.codec import Amount, from_json
from perdure.wire.reading import ContractError

LARGEST_COUNT: Final = 2**31
"""No batch and no number of ranks is larger."""

_DIGITS: Final = 6
"""Of a measured number; its own error is larger."""


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
        raise TypeError(f"{str(value)[:80]!r} is not an integer from 1 to 2^31")
    return value


_Count = Annotated[int, _count]
"""From 1 to LARGEST_COUNT."""


@dataclass(frozen=True)
class ScalingHints:
    """Which batches a job may use, the noise of its gradient, and the time of its steps."""

    initial_batch: _Count
    """Samples in a step as the script asks for them."""
    most_batch: _Count
    """Samples in a step at most; not fewer than `initial_batch`."""
    per_rank_low: _Count
    """Samples that one rank computes at once, at least."""
    per_rank_high: _Count
    """The same, at most; not fewer than `per_rank_low`."""
    accumulates: bool
    """Whether a rank may compute several such parts for one step."""
    noise: Amount
    """The gradient's noise scale, in samples."""
    alpha: Amount
    """Seconds of one part, whatever its size."""
    beta: Amount
    """Seconds of each sample of it. `alpha` and `beta` are not both 0."""
    c_in: Amount
    """Seconds that two ranks on one node take to agree on a gradient."""
    d_in: Amount
    """Seconds more with each further rank there."""
    c_out: Amount
    """Seconds that two ranks on two nodes take for it."""
    d_out: Amount
    """Seconds more with each further rank, on two nodes or more."""
    profiled: _Count
    """The most ranks that were measured together."""


def write_scaling(hints: ScalingHints) -> dict[str, Any] | None:
    """The hints as a JSON object; None if no reader would take them, as when a measure is no number."""
    written = {name: _short(value) for name, value in asdict(hints).items()}
    return None if read_scaling(written) is None else written


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def read_scaling(value: Any) -> ScalingHints | None:
    """The hints in a JSON value; None if one of its fields is missing, or not in its range."""
    if not isinstance(value, Mapping):
        return None
    try:
        hints = from_json(ScalingHints, value)
    except ContractError:
        return None
    return hints if _agrees(hints) else None


def _agrees(hints: ScalingHints) -> bool:
    """Whether the fields agree with each other."""
    return (
        hints.initial_batch <= hints.most_batch
        and hints.per_rank_low <= hints.per_rank_high
        and hints.alpha + hints.beta > 0
    )
