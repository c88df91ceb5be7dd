"""Workers wait for jobs that are due: each is handed out once, and news wake as many of them as there is work for."""

from __future__ import annotations

import asyncio

from perdure_operator.cluster.read.records import Key
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.schedule import Schedule


class Counted(Schedule[Key]):
    """Counts how often a worker has looked."""

    looks = 0

    def pop(self, now: float) -> Key | None:
        self.looks += 1
        return super().pop(now)


async def turns(count: int) -> None:
    """So many of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_job_that_becomes_due_is_looked_for_by_one_worker_however_many_wait() -> None:
    async def look() -> tuple[int, list[Key]]:
        schedule = Counted()
        queue = Queue(schedule, monotonic=lambda: 0.0)
        workers = [asyncio.create_task(queue.get()) for _ in range(8)]
        await turns(5)
        before = schedule.looks
        queue.add(("ns", "digits"))
        await turns(20)
        found = [worker.result() for worker in workers if worker.done()]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return schedule.looks - before, found

    looks, found = asyncio.run(look())
    assert found == [("ns", "digits")]
    assert looks == 2  # by the worker that has got it, and by the one that waits for the next


def test_jobs_that_are_due_together_go_to_as_many_workers() -> None:
    async def look() -> list[Key]:
        queue = Queue(monotonic=lambda: 0.0)
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await turns(5)
        for name in ("a", "b"):
            queue.add(("ns", name))
        await turns(20)
        found = [worker.result() for worker in workers if worker.done()]
        workers[-1].cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return found

    assert asyncio.run(look()) == [("ns", "a"), ("ns", "b")]


def test_a_worker_that_is_cancelled_while_it_waits_leaves_the_job_to_the_next() -> None:
    async def look() -> Key:
        queue = Queue(monotonic=lambda: 0.0)
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await turns(5)
        first.cancel()
        queue.add(("ns", "digits"))
        return await asyncio.wait_for(second, 10)

    assert asyncio.run(look()) == ("ns", "digits")
