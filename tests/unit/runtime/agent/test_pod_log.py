"""The pod's log: nothing is lost while nobody reads it, up to a limit, and the agent never waits for a reader."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from perdure.agent.pod_log import Outlet


@pytest.fixture
def log_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def everything(reader: int, outlet: Outlet) -> bytes:
    """What a reader that has come back finds."""
    text = b""
    with suppress(BlockingIOError):
        while True:
            text += os.read(reader, 1 << 20)
            outlet.flush()
    return text


def test_what_there_is_no_room_for_is_written_later_and_in_order(log_pipe: tuple[int, int]) -> None:
    outlet = Outlet(log_pipe[1])
    lines = [f"perdure: line {number}" for number in range(20_000)]
    for line in lines:
        outlet.say(line.removeprefix("perdure: "))
    assert everything(log_pipe[0], outlet).decode().splitlines() == lines


def test_the_oldest_lines_are_dropped_whole_and_the_gap_is_reported(log_pipe: tuple[int, int]) -> None:
    outlet = Outlet(log_pipe[1])
    lines = [f"perdure: line {number}\n" for number in range(100_000)]
    for line in lines:
        outlet.write(line.encode())
    text = everything(log_pipe[0], outlet).decode()
    gap = re.search(r"\nperdure: (\d+) bytes of the log are missing here: it was not read in time\n", text)
    assert gap
    before, after = text[: gap.start()], text[gap.end() :]
    whole = "".join(lines)
    assert whole.startswith(before)
    assert whole.endswith("\n" + after)
    assert len(before) + int(gap[1]) + len(after) == len(whole)


def test_last_words_wait_for_a_reader(log_pipe: tuple[int, int]) -> None:
    outlet = Outlet(log_pipe[1])
    outlet.write(b"x" * 100_000)
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(outlet.flush, 60)
        text = b""
        while len(text) < 100_000:
            assert select.select([log_pipe[0]], [], [], 60)[0], "the last words have not come"
            text += os.read(log_pipe[0], 1 << 20)
        flushing.result(timeout=60)


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    Outlet(writer).say("to nobody")
    os.close(writer)
    Outlet(writer).say("to nothing")
