"""The session call that a rank is in, for other ranks that wait for it.

Read every few seconds by the heartbeat's thread, so that a step pays nothing for it.
"""

from __future__ import annotations

from perdure.group.gloo import GlooPeers
from perdure.loop.run import Run


def waited_for(run: Run) -> str:
    """What the session waits for other ranks for; "" while it does not. From any thread."""
    if not hasattr(run, "heartbeat"):  # it connects
        return ""
    if isinstance(run.peers, GlooPeers) and (doing := run.peers.doing):
        return doing
    return run.agreement.waits


def current_call(run: Run) -> str:
    """This rank's place as text that follows "rank 0"; "" before the run is open. From any thread."""
    if run.opened_checkpointer is None:
        return ""
    if isinstance(run.peers, GlooPeers) and (doing := run.peers.doing):
        return doing
    waits = run.agreement.waits
    return f"{run.progress.doing}, and {waits}" if waits else run.progress.doing
