"""Where the ranks of a run were when it began: an object beside the data, which the run's Opened entry names.

An entry has 4 KiB, and a run may have hundreds of members. The object is for people, and for tools that need the node
that a checkpoint came from. Nothing depends on it: a hand-over that cannot write it begins the run without it. Like the
log it is never deleted. No torch, because the command line reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from perdure.errors import Corrupt
from perdure.log.entry import ObjectRef, checksum
from perdure.log.objects import fetch
from perdure.store import Store
from perdure.wire.settings import Member


def put_members(store: Store, run: int, members: Sequence[Member]) -> ObjectRef:
    """Writes where each rank of this run runs, in order; returns the reference for the entry."""
    data = json.dumps({"run": run, "members": [asdict(member) for member in members]}, separators=(",", ":")).encode()
    key = f"members/{run}-{os.urandom(8).hex()}.json"
    store.put(key, data)
    return ObjectRef(key, len(data), checksum(data))


def fetch_members(store: Store, ref: ObjectRef) -> tuple[Member, ...]:
    """Where each rank ran. Corrupt if the object is missing or was changed."""
    data = fetch(store, ref.key, ref.size)
    if len(data) != ref.size or checksum(data) != ref.crc:
        raise Corrupt(f"{ref.key} is not what the log says: it was changed after it was written")
    return tuple(Member(str(found["name"]), str(found["node"])) for found in json.loads(data)["members"])
