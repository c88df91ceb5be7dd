"""Virtual time passes at once and in order; processes die between two instructions, freeze and thaw."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.clock import Process, Stuck, VirtualLoop


def ticking(loop: VirtualLoop, told: list[float]) -> Process:
    async def tick() -> None:
        try:
            while True:
                await asyncio.sleep(1.0)
                told.append(loop.time())
        finally:
            told.append(-1.0)

    process = Process(loop, "ticking")
    process.start(tick())
    return process


def test_time_jumps_to_the_next_timer() -> None:
    loop = VirtualLoop()

    async def live() -> float:
        await asyncio.sleep(86_400.0)
        return loop.time()

    assert loop.run(live()) == 86_400.0


def test_a_killed_process_runs_nothing_more_not_even_its_finally() -> None:
    loop, told = VirtualLoop(), list[float]()

    async def live() -> list[float]:
        process = ticking(loop, told)
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10.0)
        return list(told)

    assert loop.run(live()) == [1.0, 2.0]


def test_a_process_can_die_at_each_of_its_awaits() -> None:
    for steps in range(4):
        loop, told = VirtualLoop(), list[float]()

        async def live(loop: VirtualLoop = loop, told: list[float] = told, steps: int = steps) -> int:
            ticking(loop, told).crash_in = steps
            await asyncio.sleep(60.0)
            return len(told)

        assert loop.run(live()) <= steps


def test_what_a_frozen_process_has_missed_comes_when_it_thaws() -> None:
    loop, told = VirtualLoop(), list[float]()

    async def live() -> list[float]:
        process = ticking(loop, told)
        await asyncio.sleep(1.5)
        process.freeze(10.0)
        await asyncio.sleep(11.5)
        return list(told)

    assert loop.run(live()) == [1.0, 11.5, 12.5]


def test_a_timeout_is_virtual_too() -> None:
    loop = VirtualLoop()

    async def live() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.Event().wait()
        return loop.time()

    assert loop.run(live()) == 30.0


def test_waiting_for_nothing_is_reported_instead_of_hanging() -> None:
    loop = VirtualLoop()

    async def live() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        loop.run(live())
