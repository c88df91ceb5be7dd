"""What an adapter looks up in a Session and scripts have no use for. Changes nothing.

Called by perdure.adapters.
"""

from __future__ import annotations

from perdure.session.session import Session
from perdure.session.wrapping import WORLD_WITH_ONE_ORDER


def root(session: Session) -> str:
    """Where its checkpoints are."""
    return session._run.settings.root  # noqa: SLF001 - an adapter is a part of it


def sums_in_rank_order(session: Session) -> bool:
    """Whether gradients are to be added in one order, as a restart makes another one of more than two ranks'."""
    return session._deterministic and session.world > WORLD_WITH_ONE_ORDER  # noqa: SLF001 - an adapter is a part of it


def offers_hand_over(session: Session) -> bool:
    """Whether somebody who does not know better may start a process that is to join this run while it trains."""
    return session._run.settings.live and session._run.settings.run is not None  # noqa: SLF001 - an adapter is a part of it
