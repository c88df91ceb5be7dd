"""How long a resync blocks the operator: the delay of a cordon seen meanwhile.

The operator's own reader, in this process, reads everything from a real API server: once as at its start, and again and
again as every five minutes, when it knows it all. Another task of the same loop records its delay.
"""

from __future__ import annotations

import asyncio
import itertools
import time

from e2e.bench.report import Figure
from e2e.bench.scale_plane import Plane
from e2e.prepare import Progress
from perdure_operator.cluster import kube
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.loop.heap import Heap

RESYNCS = 5
TARGET_SECONDS = 0.2


def figures(where: Plane, jobs: int, progress: Progress) -> list[Figure]:
    """With the existing jobs."""
    progress.say(f"  the operator reads {jobs} jobs and their pods, {RESYNCS} times again")
    first, *again = asyncio.run(_held_up(str(where.server.kubeconfig)))
    held = tuple(longest for longest, _ in again)
    return [
        Figure(f"{jobs} jobs: a resync keeps others waiting for", "s", held, TARGET_SECONDS, "the target, at worst"),
        Figure("  the whole of it", "s", tuple(whole for _, whole in again)),
        Figure("  the first, which parses everything, keeps others for", "s", (first[0],)),
    ]


async def _held_up(kubeconfig: str) -> list[tuple[float, float]]:
    """For each resync the longest delay of another task, and the total duration; seconds."""
    async with await kube.login(kubeconfig) as api:
        observer, heap = Observer(api, Cache()), Heap()
        return [await _resync(observer, heap) for _ in range(1 + RESYNCS)]


async def _whole(observer: Observer, heap: Heap) -> None:
    await observer.sync()
    heap.settle()


async def _resync(observer: Observer, heap: Heap) -> tuple[float, float]:
    work = asyncio.create_task(_whole(observer, heap))
    turns = [time.perf_counter()]
    while not work.done():
        await asyncio.sleep(0)
        turns.append(time.perf_counter())
    await work
    return max(later - sooner for sooner, later in itertools.pairwise(turns)), turns[-1] - turns[0]
