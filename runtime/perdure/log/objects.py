"""The objects of a commit in the store: their keys, and how to fetch one. No torch."""

from __future__ import annotations

import re
from typing import Final

from perdure.errors import Corrupt
from perdure.store import NoSuchKey, Store

FOLDER: Final = re.compile(r"data/(?P<run>[0-9]+)/(?P<step>[0-9]+)-[0-9a-f]{16}/")
"""The folder of one attempt at a commit. Others may share a root's `data/`: only folders with such names are
Perdure's."""
_OTHERS: Final = re.compile(
    r"log/[0-9]{16}\.json|members/[0-9]+-[0-9a-f]{16}\.json|pins/[0-9]{16}\.|trace/[^/]+-[0-9]+-[0-9]+-[0-9]{5,}\.jsonl"
    r"|probe/[0-9a-f]{32}|store-check-[0-9a-f]{8}/"
)


def is_perdures(key: str) -> bool:
    """Whether the key has a form that Perdure writes. Other programs may write below the same root."""
    return bool(FOLDER.match(key) or _OTHERS.match(key))


def shard_key(folder: str, rank: int, world: int) -> str:
    return f"{folder}shard-{rank:05d}-of-{world:05d}.safetensors"


def index_key(folder: str, rank: int) -> str:
    return f"{folder}index-{rank:05d}.json"


def manifest_key(folder: str) -> str:
    return f"{folder}manifest.json"


def fetch(store: Store, key: str, size: int) -> bytes:
    """An object of a commit; Corrupt if it is missing. Reads one byte more than `size`, to notice a longer object."""
    try:
        return store.get(key, length=size + 1)  # the length limits what the store sends
    except NoSuchKey:
        raise Corrupt(f"{key} is missing") from None
