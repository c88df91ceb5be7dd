"""State that is each rank's own, of objects that a script registers with `merge=`: it is saved by rank.

A run of the same size gives each rank its own state back. In a run of another size each rank calls the script's
function with the states of all old ranks, and continues with the result. Used by the registry, and where a run begins
(resuming) or changes its ranks (effects).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from perdure.checkpoint.codec import decode, encode
from perdure.errors import UserError
from perdure.state.rng import untouched

BY_RANK: Final = "by_rank"
"""The key in a rank's own state for these states, by the name of the object."""
LIMIT_BYTES: Final = 256 * 2**10
"""Limit for one object on one rank, as stored: the manifest holds those of all ranks, and each rank reads it."""

Merge = Callable[[list[dict[str, Any]], int, int], dict[str, Any]]
"""Returns what rank `rank` of `world` continues with, from the state_dicts of all old ranks, by rank."""


def check_merges(merges: Any, names: Sequence[str]) -> Mapping[str, Merge]:
    """Checks the `merge=` argument for objects of these names. UserError if it is wrong."""
    if not isinstance(merges, Mapping):
        raise UserError(f"register(merge={merges!r}): give the function by the object's name: merge={{'meter': fn}}")
    for name, merge in merges.items():
        if name not in names:
            raise UserError(f"register(merge=...): {name!r} is not registered by this call: {', '.join(names)}")
        if not callable(merge):
            raise UserError(f"register(merge={{{name!r}: {merge!r}}}): give a function fn(states, rank, world)")
    return merges


def check_size(name: str, state: dict[str, Any]) -> None:
    """UserError for a state that cannot be saved, or is too large to be saved by rank."""
    size = len(json.dumps(encode(state, name)))
    if size > LIMIT_BYTES:
        raise UserError(
            f"{name!r} is saved by rank, and has {size / 2**10:.0f} KiB on this one: more than {LIMIT_BYTES // 2**10} "
            f"KiB: keep less in it, or register it without merge="
        )


def merged(name: str, merge: Merge, parts: Sequence[Mapping[str, Any]], *, rank: int, world: int) -> dict[str, Any]:
    """What this rank continues with, of the object called `name` in `parts`: encoded, by rank. UserError names the
    function that fails, or what is missing."""
    lacking = [old for old, part in enumerate(parts) if name not in part]
    if lacking:
        raise UserError(f"rank {lacking[0]} has saved no state of {name!r}: register it with merge= on every rank")
    what = f"merge of {name!r} by {getattr(merge, '__qualname__', repr(merge))}, {len(parts)} ranks to {world}"
    states = [decode(part[name]) for part in parts]
    try:
        with untouched():  # a living run may stay as it is, and continue to draw
            found = merge(states, rank, world)
    except Exception as error:
        raise UserError(f"{what}: {error!r}") from error
    if not isinstance(found, dict):
        raise UserError(f"{what}: it gives a {type(found).__name__}: let it give a dict for load_state_dict")
    return found


def with_own(rank: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a rank in another world: None or what all ranks have alike, with these per-rank states."""
    return {"rng": {}, "asked": [], **(rank or {}), BY_RANK: own}


def parts_of(ranks: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The objects' states in each rank's own state, encoded."""
    return [(own or {}).get(BY_RANK, {}) for own in ranks]
