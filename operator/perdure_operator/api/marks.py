"""What a pod tells autoscalers of nodes about itself: its marks, annotations that they read. Pure.

Only of jobs that set disruption.autoscaler. Called by `decide.autoscaler_marks` for pods that live, and by
`cluster.member` for one that is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.wire import Role
from perdure_operator.api.names import ANNOTATION_AUTOSCALER
from perdure_operator.api.spec import DO_NOT_DISRUPT, SAFE_TO_EVICT, Autoscaler

MARKS: Final = (SAFE_TO_EVICT, DO_NOT_DISRUPT, ANNOTATION_AUTOSCALER)
"""Every annotation that a mark may have."""


def marks(mode: Autoscaler | None, role: str) -> dict[str, str]:
    """Of a pod with this role in a job of this mode.

    A standby is worth its warm-up alone and has no budget: no autoscaler takes its node, whatever the mode, until it
    is promoted or written off.
    """
    if mode is None or role == Role.FORMER:
        return {}
    if mode is Autoscaler.COOPERATIVE and role == Role.MEMBER:
        return {SAFE_TO_EVICT: "true", ANNOTATION_AUTOSCALER: mode.value}
    return {SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true", ANNOTATION_AUTOSCALER: mode.value}


def marked(found: Mapping[str, str]) -> bool:
    """Whether the operator has marked this pod: only then are its marks the operator's to take away."""
    return ANNOTATION_AUTOSCALER in found
