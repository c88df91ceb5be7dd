"""The objects of a commit in the store: what they are called, and how one is fetched. No torch."""

from __future__ import annotations

import re
from typing import Final

from perdure.errors import Corrupt
from perdure.store import NoSuchKey, Store

FOLDER: Final = re.compile(r"data/(?P<run>[0-9]+)/(?P<step>[0-9]+)-[0-9a-f]{16}/")
"""Of one attempt at a commit. A root may be shared with a `data/` of somebody else's: nothing but this is ours."""


def shard_key(folder: str, rank: int, world: int) -> str:
    return f"{folder}shard-{rank:05d}-of-{world:05d}.safetensors"


def index_key(folder: str, rank: int) -> str:
    return f"{folder}index-{rank:05d}.json"


def manifest_key(folder: str) -> str:
    return f"{folder}manifest.json"


def fetch(store: Store, key: str, size: int) -> bytes:
    """An object of a commit; Corrupt if it is missing. One that is longer than `size` has one byte more."""
    try:
        return store.get(key, length=size + 1)  # the store should know how much it is asked for
    except NoSuchKey:
        raise Corrupt(f"{key} is missing") from None
