"""Code that blocks runs in virtual time: one thread at a time, stopped and ended with its process."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.simulation.pods import in_virtual_time
from tests.simulation.threads import ProcessThreads


def process() -> ProcessThreads:
    """One, with the history's clock."""
    return ProcessThreads(asyncio.get_running_loop().time)


def test_waits_cost_no_time_and_threads_take_turns_in_the_order_of_their_alarms() -> None:
    said = list[str]()

    async def story() -> float:
        threads = process()
        done = threads.inbox()

        def tick(name: str, seconds: float) -> None:
            for turn in range(2):
                threads.sleep(seconds)
                said.append(f"{name}{turn} at {threads.monotonic():g}")
            done.put(name)

        threads.start("slow", tick, "a", 100.0)
        threads.start("quick", tick, "b", 70.0)
        assert await threads.run("main", lambda: [done.get(), done.get()]) == ["b", "a"]
        return threads.monotonic()

    assert in_virtual_time(story) == 200.0
    assert said == ["b0 at 70", "a0 at 100", "b1 at 140", "a1 at 200"]


def test_a_flag_wakes_all_who_wait_for_it_and_others_go_on_when_time_is_up() -> None:
    async def story() -> list[tuple[bool, float]]:
        threads = process()
        flag, never = threads.flag(), threads.flag()
        asyncio.get_running_loop().call_later(5.0, flag.set)
        waits = [(flag, None), (flag, 9.0), (never, 3.0)]

        def wait(number: int) -> tuple[bool, float]:
            of, seconds = waits[number]
            return of.wait(seconds), threads.monotonic()

        return list(await asyncio.gather(*(threads.run("waits", wait, number) for number in range(3))))

    assert in_virtual_time(story) == [(True, 5.0), (True, 5.0), (False, 3.0)]


def test_a_stopped_process_does_nothing_and_then_all_that_it_missed() -> None:
    async def story() -> list[float]:
        threads, woken = process(), list[float]()

        def wake() -> None:
            for _ in range(2):
                threads.sleep(1.0)
                woken.append(threads.monotonic())

        threads.start("wakes", wake)
        await asyncio.sleep(0.5)
        threads.stop()
        await asyncio.sleep(10.0)
        assert woken == []
        threads.go_on()
        await asyncio.sleep(10.0)
        return woken

    assert in_virtual_time(story) == [10.5, 11.5]


@pytest.mark.parametrize("how", ["killed", "at the end of the history"])
def test_no_thread_outlives_its_process(how: str) -> None:
    before, said = set(threading.enumerate()), list[str]()

    async def story() -> None:
        threads = process()

        def wait() -> None:
            said.append("begun")
            threads.inbox().get()
            said.append("got what nobody sent")

        threads.start("waits", wait)
        await asyncio.sleep(1.0)
        if how == "killed":
            threads.end()
            threads.start("too late", wait)
            await asyncio.sleep(1.0)

    in_virtual_time(story)
    for thread in threading.enumerate():
        if thread.name == "waits":
            thread.join(60.0)
    assert said == ["begun"]
    assert set(threading.enumerate()) <= before, "a thread of an earlier test may have ended meanwhile"


def test_an_error_in_a_thread_reaches_who_waits_for_it_or_the_history() -> None:
    def fail() -> None:
        raise LookupError("nothing there")

    async def story() -> str:
        with pytest.raises(LookupError) as raised:
            await process().run("fails", fail)
        return str(raised.value)

    assert in_virtual_time(story) == "nothing there"

    async def unheard() -> None:
        process().start("fails", fail)
        await asyncio.sleep(1.0)

    with pytest.raises(AssertionError):
        in_virtual_time(unheard)
