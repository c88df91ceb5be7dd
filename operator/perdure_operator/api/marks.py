"""A pod's marks: annotations that autoscalers of nodes read. Pure.

Only jobs that set disruption.autoscaler have marks. Called by `decide.members` for existing pods, and by
`cluster.member` for new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.wire import Role
from perdure_operator.api.names import ANNOTATION_AUTOSCALER
from perdure_operator.api.spec import DO_NOT_DISRUPT, SAFE_TO_EVICT, Autoscaler

MARKS: Final = (SAFE_TO_EVICT, DO_NOT_DISRUPT, ANNOTATION_AUTOSCALER)
"""Every annotation that the operator may set as a mark."""


def marks(mode: Autoscaler | None, role: str) -> dict[str, str]:
    """The marks of a pod with this role in a job with this mode.

    A standby has no budget. So in any mode, its marks keep autoscalers from its node until it is promoted or written
    off.
    """
    if mode is None or role == Role.FORMER:
        return {}
    if mode is Autoscaler.COOPERATIVE and role == Role.MEMBER:
        return {SAFE_TO_EVICT: "true", ANNOTATION_AUTOSCALER: mode.value}
    return {SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true", ANNOTATION_AUTOSCALER: mode.value}


def holds_node(found: Mapping[str, str]) -> bool:
    """Whether what the operator marked this pod with keeps autoscalers from its node."""
    return marked(found) and found.get(SAFE_TO_EVICT) != "true"


def marked(found: Mapping[str, str]) -> bool:
    """Whether the operator marked this pod. Only then it may remove the marks."""
    return ANNOTATION_AUTOSCALER in found
