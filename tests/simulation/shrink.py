"""Makes a failing history smaller: fewer kinds of faults, fewer of them, an earlier end, the same check broken."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.history import History, Request, Result

MOST_TRIES = 80


def shrink(result: Result, *, tries: int = MOST_TRIES) -> Result:
    """The smallest one found."""
    best, left = result, [tries]
    if result.violation is None:
        return result
    if result.violation.check != "I6":
        best = _try(best, replace(best.request, until=result.violation.at), left) or best
    for whole in (True, False):
        for name in sorted({_kind(one) if whole else one for one in best.planned}):
            request = replace(best.request, without=(*best.request.without, name))
            best = _try(best, request, left) or best
    return best


def _kind(name: str) -> str:
    return name.partition("#")[0]


def _try(best: Result, request: Request, left: list[int]) -> Result | None:
    if left[0] <= 0:
        return None
    left[0] -= 1
    result = History(request).play()
    result.facts.clear()
    same = result.violation is not None and best.violation is not None
    return result if same and result.violation.check == best.violation.check else None  # type: ignore[union-attr]
