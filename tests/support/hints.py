"""What a job may have measured of itself."""

from __future__ import annotations

from perdure.wire.scaling import ScalingHints

HINTS = ScalingHints(
    initial_batch=256, most_batch=4096, per_rank_low=32, per_rank_high=256, accumulates=True, noise=1830.5,
    alpha=0.0213, beta=0.00042, c_in=0.003, d_in=0.0, c_out=0.0112, d_out=0.00015, profiled=8,
)  # fmt: skip
