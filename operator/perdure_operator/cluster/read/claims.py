"""Reads deadlines from Karpenter's NodeClaims: one GET of the claim of a node that is being removed, and no watch.

Karpenter writes the time to the claim only, when the claim is deleted and its NodePool has a terminationGracePeriod:
usually before it deletes the node, but a moment later if another client deleted the node first. If the claim cannot be
read, moves go on without a deadline, and one warning is logged. Called by `observe`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.cluster.protocol import NODE_CLAIMS, ApiError, Forbidden, NotFound, ReadOnlyApi
from perdure_operator.cluster.read import parse
from perdure_operator.state.snapshot import NodeView, Taint

AGAIN: Final = timedelta(seconds=5)
"""When to read a claim without a time again: it may get one a moment later."""
REFUSED_AGAIN: Final = timedelta(seconds=300)

logger = logging.getLogger(__name__)

_State = tuple[str, bool, Sequence[Taint]]


@dataclass(frozen=True)
class _Read:
    """The claim's deadline, and the state of its node when the claim was read."""

    shown: _State
    ends: datetime | None
    until: datetime | None
    """When to read it again; None: when the node's state changes."""


class Claims:
    """The deadlines of nodes that are being removed."""

    def __init__(self, api: ReadOnlyApi, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._read: dict[str, _Read] = {}
        self._earlier: dict[str, _Read] = {}
        self._silent_until: datetime | None = None
        self._said = False

    def forget(self) -> None:
        """Read all claims again: a time may have changed, a right may have been granted. If that fails, old times
        stay."""
        self._earlier, self._read = self._read, {}
        self._silent_until = None

    async def ends(self, node: NodeView) -> datetime | None:
        """When this node is terminated, as its claim says; None if no time is known."""
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
                logger.warning("deadlines of Karpenter's nodes are unknown, moves go on without them: %s", error)
            return None if isinstance(error, NotFound) else earlier
