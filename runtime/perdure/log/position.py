"""How far training has come: what each commit says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Position:
    """How far training has come."""

    step: int
    """Optimizer steps done."""
    epoch: int
    """Finished epochs."""
    cursors: Mapping[str, Any] = field(default_factory=dict)
    """{loader: {kind, ...}}, plain JSON: what of this epoch committed steps have consumed."""
