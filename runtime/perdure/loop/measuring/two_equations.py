"""What the gradients of a step's parts, and their mean, say about the noise of one sample's gradient.

A part is the share of one rank, or one micro-batch. The gradient of a part of n samples is the true gradient plus
noise, so the expected square of its norm is |G|^2 + tr S / n. That of the mean over all parts has less noise and the
same true gradient. Two equations, two unknowns; both estimates are sums over the parts, so each rank can compute its
own term. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Solution:
    """How the estimates come from `own`, the sum of the parts' squared norms, and `mean`, the squared norm of the
    mean of the parts: `noise_own * own + noise_mean * mean`, and so for the signal."""

    noise_own: float
    noise_mean: float
    signal_own: float
    signal_mean: float


def solve(sizes: Sequence[int], *, weighted: bool) -> Solution | None:
    """For parts of so many samples; None if they do not tell noise and signal apart.

    `weighted`: the gradient of each part counts by its samples, as by `session.weighted`, and an empty part is zero.
    Otherwise all parts count alike, and none may be empty.
    """
    parts, samples = len(sizes), sum(sizes)
    if not samples or (not weighted and 0 in sizes):
        return None
    weights = [parts * size / samples if weighted else 1.0 for size in sizes]
    pairs = [(weight, size) for weight, size in zip(weights, sizes, strict=True) if size]
    if len(pairs) < 2:
        return None
    signal_in_own = sum(weight * weight for weight, _ in pairs)
    noise_in_own = sum(weight * weight / size for weight, size in pairs)
    signal_in_mean = (sum(weight for weight, _ in pairs) / parts) ** 2
    noise_in_mean = noise_in_own / parts**2
    both = signal_in_own * noise_in_mean - signal_in_mean * noise_in_own
    return Solution(
        noise_own=-signal_in_mean / both,
        noise_mean=signal_in_own / both,
        signal_own=noise_in_mean / both,
        signal_mean=-noise_in_own / both,
    )
