"""Builders for the tests of checkpoints: ranks as threads, states, writers."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from perdure.checkpoint.load import load
from perdure.checkpoint.save import commit, stage_together
from perdure.checkpoint.state import Loaded, RankState, Saved
from perdure.errors import PeerLost
from perdure.group.peers import Peers, Solo, check_together
from perdure.log.entry import ManifestRef, checksum
from perdure.log.position import Position
from perdure.log.reader import Log
from perdure.log.writer import Resume, Writer
from perdure.store import Store

T = TypeVar("T")

UID = "8a6d"
MANIFEST = ManifestRef("data/1/1-aa/manifest.json", 2, "0" * 16)


class _Meeting:
    """Where the threads of one world exchange their JSON texts, one round per collective."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._rounds: dict[int, dict[int, str]] = defaultdict(dict)
        self._gone: set[int] = set()
        self._changed = threading.Condition()

    def exchange(self, number: int, rank: int, text: str) -> list[str]:
        """Every rank's text of round `number`. PeerLost if a rank left before it, or does not come."""
        with self._changed:
            texts = self._rounds[number]
            texts[rank] = text
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(texts) == self._world or self._gone, timeout=60)
            if len(texts) < self._world:
                raise PeerLost("another rank is gone")
            return [texts[each] for each in range(self._world)]

    def leave(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()


class Newer(Solo):
    """A rank of a newer version, which says more than this one knows."""

    def gather(self, doing: str, value: Any) -> list[Any]:
        return super().gather(doing, _with_more(value))


def _with_more(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_more(one) for one in value]
    return {**{name: _with_more(one) for name, one in value.items()}, "more": 1} if isinstance(value, dict) else value


@dataclass
class ThreadPeers:
    """One rank of a world of threads; see perdure.group.peers.Peers."""

    rank: int
    world: int
    meeting: _Meeting
    rounds: int = 0

    def gather(self, doing: str, value: Any) -> list[Any]:
        self.rounds += 1
        own = json.dumps([doing, value])
        told = [json.loads(text) for text in self.meeting.exchange(self.rounds, self.rank, own)]
        check_together([found for found, _ in told])
        return [found for _, found in told]

    def broadcast(self, doing: str, value: Any) -> Any:
        return self.gather(doing, value if self.rank == 0 else None)[0]


def on_ranks(world: int, act: Callable[[Peers], T]) -> list[T | BaseException]:
    """What `act` returned or raised on each rank, each in a thread of its own."""
    meeting = _Meeting(world)

    def rank(number: int) -> T | BaseException:
        try:
            return act(ThreadPeers(number, world, meeting))
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            return error
        finally:
            meeting.leave(number)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(rank, range(world)))


def state(step: int = 1, rank: int = 0) -> RankState:
    """Tensors of every awkward kind, equal on all ranks, and a rank state that is not."""
    maker = torch.Generator().manual_seed(step)
    shared = {f"layer{n}.weight": torch.rand(n + 1, 7, generator=maker) for n in range(5)}
    shared |= {
        "half": torch.rand(33, generator=maker).to(torch.bfloat16),
        "scalar": torch.tensor(float(step)),
        "empty": torch.empty(0, 3),
        "conjugate": torch.rand(3, generator=maker).to(torch.complex64).mul(1 + 2j).conj(),
        "transposed": torch.rand(4, 3, generator=maker).t(),
    }
    shared["tied"] = shared["layer0.weight"]
    replicated = {"running_mean": torch.full((4,), float(step)), "batches": torch.tensor(step)}
    objects = {"scheduler": {"milestones": {80: 1}, "last_lr": [0.1 * step]}, "step": step}
    return RankState(shared, replicated, objects, {"rng": torch.tensor([step, rank], dtype=torch.uint8), "rank": rank})


def same_state(a: RankState, b: RankState) -> bool:
    """Bit for bit, for any rank state."""
    return _same_tensors(a.shared, b.shared) and _same_tensors(a.replicated, b.replicated) and a.objects == b.objects


def _same_tensors(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def position(step: int, epoch: int = 0) -> Position:
    return Position(step, epoch, {"train": {"kind": "global", "consumed": 64 * step}})


def writer(store: Store, run: int | None = 1, *, uid: str = UID, lost: Collection[int] = ()) -> Writer:
    return Writer(Log(store), uid=uid, run=run, lost=lost)


def opened(store: Store, run: int | None = 1, *, uid: str = UID, wait_over: bool = False) -> Writer:
    """A writer whose run is open."""
    log_writer = writer(store, run, uid=uid)
    assert isinstance(log_writer.try_open(1, wait_over=wait_over), Resume)
    return log_writer


def save(
    store: Store,
    peers: Peers,
    log_writer: Writer | None,
    mine: RankState,
    where: Position,
    *,
    run: int,
    final: bool = False,
    reason: str = "test",
    pin: str | None = None,
) -> Saved:
    """One save from beginning to end."""
    staged, _ = stage_together(peers, mine)
    return commit(store, peers, log_writer, staged, where, run=run, final=final, reason=reason, pin=pin)


def save_solo(store: Store, log_writer: Writer, step: int, *, final: bool = False, pin: str | None = None) -> Saved:
    return save(
        store, Solo(), log_writer, state(step), position(step), run=log_writer.run, final=final, reason="test", pin=pin
    )


def load_solo(store: Store, log_writer: Writer) -> Loaded | None:
    return load(store, Solo(), log_writer.commits())


def rewritten(data: bytes, old: bytes, new: bytes) -> bytes:
    """A log entry's bytes with `new` for `old`, under the checksum that belongs to them."""
    text = data.rpartition(b',"crc":')[0].replace(old, new) + b"}"
    return text[:-1] + f',"crc":"{checksum(text)}"}}'.encode()


def story(store: Store) -> list[str]:
    """The log in short, oldest first: `Opened 1`, `Committed 1 @10`, `Committed 1 @20!` (final)."""
    log = Log(store)
    head = log.head()
    words = []
    for slot in log.entries(head.seq if head else 0):
        if slot.entry is None:
            words.append("unreadable")
            continue
        event = slot.entry.event
        at = getattr(event, "step", None)
        step = "" if at is None else f" @{at}"
        words.append(f"{type(event).__name__} {slot.entry.run}{step}{'!' if getattr(event, 'final', False) else ''}")
    return words[::-1]
