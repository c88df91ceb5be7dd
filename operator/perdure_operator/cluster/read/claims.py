"""The deadlines of Karpenter's NodeClaims: one GET of the one claim of a node that is being taken away, and no watch.

Karpenter writes the time on the claim alone, when the claim is deleted and its NodePool has a terminationGracePeriod,
before it deletes the node; whoever deletes the node first gets it a moment later. Nothing depends on it: where it
cannot be read a move goes on without a deadline, and that is said once. Called by `observe`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.cluster.protocol import NODE_CLAIMS, ApiError, ClusterApi, Forbidden, NotFound
from perdure_operator.cluster.read import parse
from perdure_operator.state.snapshot import NodeView, Taint

AGAIN: Final = timedelta(seconds=5)
"""A claim without a time may have one a moment later."""
REFUSED_AGAIN: Final = timedelta(seconds=300)

logger = logging.getLogger(__name__)

_State = tuple[str, bool, Sequence[Taint]]


@dataclass(frozen=True)
class _Read:
    """What the claim said, and what its node showed then."""

    shown: _State
    ends: datetime | None
    until: datetime | None
    """Until when it need not be read again; None: as long as the node shows the same."""


class Claims:
    """What was read of the claims of nodes that are being taken away."""

    def __init__(self, api: ClusterApi, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._read: dict[str, _Read] = {}
        self._earlier: dict[str, _Read] = {}
        self._silent_until: datetime | None = None
        self._said = False

    def forget(self) -> None:
        """Read all anew: a time may have been changed, a right given. What cannot be read then is as it was."""
        self._earlier, self._read = self._read, {}
        self._silent_until = None

    async def ends(self, node: NodeView) -> datetime | None:
        """When this node is terminated at last, as its claim says."""
        now, shown = self._clock(), (node.claim, node.deleting, node.taints)
        known = self._read.get(node.name)
        if known and known.shown == shown and (known.until is None or now < known.until):
            return known.ends
        if not node.claim:
            return None
        before = known or self._earlier.get(node.name)
        earlier = before.ends if before and before.shown[0] == node.claim else None
        if self._silent_until and now < self._silent_until:
            return earlier
        ends = await self._ask(node.claim, earlier)
        self._read[node.name] = _Read(shown, ends, None if ends else now + AGAIN)
        return ends

    async def _ask(self, claim: str, earlier: datetime | None) -> datetime | None:
        try:
            return parse.claim_ends(await self._api.get(NODE_CLAIMS, None, claim))
        except ApiError as error:
            if isinstance(error, Forbidden):
                self._silent_until = self._clock() + REFUSED_AGAIN
            if not self._said:
                self._said = True
                logger.warning("deadlines of Karpenter's nodes are not known, moves go on without: %s", error)
            return None if isinstance(error, NotFound) else earlier
