"""What one rank writes of a commit, and real code whose clock and chance are the history's: wherever one is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from perdure.checkpoint import manifest
from perdure.log import entry, objects
from perdure.log.position import Position
from tests.simulation.gang import LOADER, Track
from tests.simulation.interface import MemberHost
from tests.simulation.store import Access, Call, Tape

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
SHARD_BLOCK: Final = 8 * 1024 * 1024


def position_of(track: Track) -> Position:
    """Where training stands, as a commit has it."""
    return Position(track.step, track.epoch, {LOADER: track.plan.cursor(track.epoch, track.consumed)})


def shard_of(run: int, step: int, rank: int) -> bytes:
    """A rank's state, in a few bytes."""
    return f"{run} {step} {rank}".encode()


async def put_part(access: Access, folder: str, run: int, position: Position, place: tuple[int, int]) -> dict[str, Any]:
    """One rank's shard and index, `place` is rank and world; returns the manifest's record of it."""
    rank, world = place
    data = shard_of(run, position.step, rank)
    key, crc = objects.shard_key(folder, rank, world), entry.checksum(data)
    shard = manifest.ShardObject(key, len(data), crc, SHARD_BLOCK, (crc,), ())
    index = manifest.index_body(manifest.Index(rank, shard, None, None))
    await access.perform(Call("put", key, data))
    text = manifest.write_index(index, run, position)
    await access.perform(Call("put", objects.index_key(folder, rank), text))
    return index


@contextmanager
def repeatable(module: ModuleType, tape: Tape, host: MemberHost) -> Iterator[None]:
    """Of a module that writes the log, the clock and the random numbers are the history's."""
    moment = EPOCH + timedelta(seconds=host.monotonic())
    shims = {
        "datetime": SimpleNamespace(now=lambda _zone: tape.once(lambda: moment)),
        "os": SimpleNamespace(urandom=lambda size: tape.once(lambda: host.rng.randbytes(size))),
        "secrets": SimpleNamespace(token_hex=lambda size: tape.once(lambda: host.rng.randbytes(size).hex())),
    }
    kept = {name: vars(module)[name] for name in shims if name in vars(module)}
    vars(module).update({name: shims[name] for name in kept})
    try:
        yield
    finally:
        vars(module).update(kept)


@contextmanager
def in_steps(module: ModuleType, tape: Tape) -> Iterator[None]:
    """A module that writes the parts of many ranks one after the other writes each once."""
    put = vars(module)["put_part"]
    vars(module)["put_part"] = lambda *given: tape.step(partial(put, *given))
    try:
        yield
    finally:
        vars(module)["put_part"] = put
