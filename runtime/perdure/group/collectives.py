"""All ranks succeed together or fail with the same kind of error.

If only one rank raised, the others would wait in their next collective until it times out. Called by save and load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from perdure.errors import (
    Corrupt,
    Fenced,
    LogLost,
    PeerLost,
    PerdureError,
    RootTakenOver,
    StorageError,
    StorageRefused,
    UserError,
)
from perdure.group.peers import Peers, RanksApart

T = TypeVar("T")

_KINDS: Final[Mapping[str, type[PerdureError]]] = {
    kind.__name__: kind for kind in (RootTakenOver, Fenced, LogLost, UserError, StorageRefused, StorageError, Corrupt)
}
"""The most severe first: permanent errors before those that a retry may fix."""


def on_all(peers: Peers, doing: str, act: Callable[[], tuple[T, Any]]) -> tuple[T, list[Any]]:
    """Run `act` on every rank. Returns this rank's result, and each rank's report (JSON) by rank.

    If it raised on any rank, the most severe error is raised on all. `doing` is as in perdure.group.peers.
    """
    own: PerdureError | None = None
    results: list[T] = []
    try:
        result, value = act()
        results, report = [result], {"value": value}
    except (PeerLost, RanksApart):
        raise
    except PerdureError as error:
        own, report = error, _write(error, peers)
    reports = peers.gather(doing, report)
    failed = [found for found in reports if "error" in found]
    if failed:
        gravest = min(failed, key=lambda found: list(_KINDS).index(found["error"]))
        raise _read(gravest) from own
    return results[0], [found["value"] for found in reports]


def on_rank0(peers: Peers, doing: str, act: Callable[[], Any]) -> Any:
    """Run `act` on rank 0 only; returns its JSON result, or raises its error, on all ranks."""
    own: PerdureError | None = None
    report: dict[str, Any] = {}
    if peers.rank == 0:
        try:
            report = {"value": act()}
        except (PeerLost, RanksApart):
            raise
        except PerdureError as error:
            own, report = error, _write(error, peers)
    report = peers.broadcast(doing, report)
    if "error" in report:
        raise _read(report) from own
    return report["value"]


def _write(error: PerdureError, peers: Peers) -> dict[str, Any]:
    kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), StorageError.__name__)
    rank = f"rank {peers.rank}: " if peers.world > 1 else ""
    known = {"opened": getattr(error, "opened", 0), "found": getattr(error, "found", None)}
    return {"error": kind, "message": f"{rank}{error}", **known}


def _read(report: Mapping[str, Any]) -> PerdureError:
    kind = _KINDS[report["error"]]
    if issubclass(kind, Fenced):
        return kind(report["message"], opened=report["opened"])
    if issubclass(kind, LogLost):
        return kind(report["message"], found=tuple(report["found"]) if report["found"] else None)
    return kind(report["message"])
