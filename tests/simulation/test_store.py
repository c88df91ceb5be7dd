"""The simulated storage keeps the promises of a store, fails as a real one may, and runs synchronous code in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from perdure.errors import StorageError, StorageRefused
from perdure.store import KeyExists, Store
from tests.simulation.interface import Bucket
from tests.simulation.pods import ROOT, Wires, in_virtual_time
from tests.simulation.store import Access, AtOnce, Call, Tape
from tests.unit.runtime.store.test_contract import (
    test_a_conditional_put_leaves_what_is_there,
    test_a_deleted_object_can_be_written_again,
    test_a_memoryview_is_written_like_bytes,
    test_a_missing_object_is_distinguished_from_a_failure,
    test_a_plain_put_replaces,
    test_a_range_is_cut_like_a_slice,
    test_an_empty_object_is_an_object,
    test_an_object_is_read_as_it_was_written,
    test_deleting_takes_what_is_there_and_nothing_else,
    test_head_tells_size_and_if_it_can_the_checksum,
    test_listing_is_sorted_and_honours_prefix_after_and_limit,
)

__all__ = [
    "test_a_conditional_put_leaves_what_is_there",
    "test_a_deleted_object_can_be_written_again",
    "test_a_memoryview_is_written_like_bytes",
    "test_a_missing_object_is_distinguished_from_a_failure",
    "test_a_plain_put_replaces",
    "test_a_range_is_cut_like_a_slice",
    "test_an_empty_object_is_an_object",
    "test_an_object_is_read_as_it_was_written",
    "test_deleting_takes_what_is_there_and_nothing_else",
    "test_head_tells_size_and_if_it_can_the_checksum",
    "test_listing_is_sorted_and_honours_prefix_after_and_limit",
]


def access(bucket: Bucket, seed: int = 1, ip: str = "10.0.0.1", wires: Wires | None = None) -> Access:
    network = wires or Wires()
    network.shared.setdefault(("unordered", ROOT), False)
    return Access(bucket, ROOT, network, ip, random.Random(seed))  # noqa: S311


@pytest.fixture
def store() -> Store:
    bucket = Bucket()
    return AtOnce(access(bucket), random.Random(1), bucket)  # noqa: S311


def test_of_several_conditional_puts_on_their_way_exactly_one_wins() -> None:
    bucket = Bucket(slow_seconds=1.0)

    async def story() -> list[int]:
        calls = (access(bucket, n).perform(Call("put", "log/1", b"%d" % n, if_absent=True)) for n in range(8))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [n for n, answer in enumerate(answers) if not isinstance(answer, KeyExists)]

    (winner,) = in_virtual_time(story)
    assert bucket.objects == {f"{ROOT}/log/1": b"%d" % winner}


def test_a_root_without_rights_is_refused_and_no_other() -> None:
    bucket, call = Bucket(refused={ROOT}), Call("put", "a", b"1")
    with pytest.raises(StorageRefused, match="403"):
        in_virtual_time(lambda: access(bucket).perform(call))
    assert bucket.objects == {}
    bucket.refused = {f"{ROOT}/other"}
    in_virtual_time(lambda: access(bucket).perform(call))
    assert bucket.objects == {f"{ROOT}/a": b"1"}


def test_a_request_arrives_although_its_sender_is_dead() -> None:
    bucket = Bucket()

    async def story() -> None:
        sender = asyncio.create_task(access(bucket).perform(Call("put", "a", b"1")))
        await asyncio.sleep(0.001)
        sender.cancel()
        assert bucket.objects == {}
        await asyncio.sleep(1)

    in_virtual_time(story)
    assert bucket.objects == {f"{ROOT}/a": b"1"}


def test_an_answer_that_is_lost_is_asked_for_again_and_finds_its_own_object() -> None:
    bucket = Bucket(lost_answer_rate=1.0)

    async def story() -> None:
        first = access(bucket, seed=3)
        put = asyncio.create_task(first.perform(Call("put", "log/1", b"1", if_absent=True)))
        await asyncio.sleep(1)
        bucket.lost_answer_rate = 0.0
        with pytest.raises(KeyExists):
            await put

    in_virtual_time(story)
    assert bucket.objects == {f"{ROOT}/log/1": b"1"}


def test_some_writes_arrive_when_their_writer_no_longer_waits() -> None:
    arrived_late = 0

    async def story() -> None:
        nonlocal arrived_late
        for seed in range(12):
            bucket = Bucket(lost_answer_rate=1.0)
            with pytest.raises((StorageError, KeyExists)):
                await access(bucket, seed).perform(Call("put", "log/1", b"1", if_absent=True))
            missing = not bucket.objects
            await asyncio.sleep(200)
            assert bucket.objects
            arrived_late += missing

    in_virtual_time(story)
    assert arrived_late


@pytest.mark.parametrize("cut", [False, True])
def test_an_outage_is_an_error_after_all_tries(cut: bool) -> None:
    bucket, wires = Bucket(down=not cut), Wires(stores_cut={"10.0.0.1"} if cut else set())

    async def story() -> float:
        with pytest.raises(StorageError, match="no answer"):
            await access(bucket, wires=wires).perform(Call("get", "a"))
        return asyncio.get_running_loop().time()

    assert 5 < in_virtual_time(story) < 15


class Counter:
    """An object that the code under the tape changes."""

    def __init__(self) -> None:
        self.count = 0


def test_code_under_the_tape_makes_each_call_once_and_its_objects_change_once() -> None:
    bucket, counter = Bucket(), Counter()

    async def story() -> list[str]:
        tape = Tape(access(bucket))

        def work() -> list[str]:
            counter.count += 1
            for name in ("a", "b"):
                tape.put(name, b"", if_absent=True)
                counter.count += 10
            with pytest.raises(KeyExists):
                tape.put("a", b"", if_absent=True)
            return tape.list("")

        found: list[str] = await tape.run(work, counter)
        return found

    assert in_virtual_time(story) == ["a", "b"]
    assert counter.count == 21


def test_a_step_under_the_tape_is_played_until_it_is_done_and_the_code_goes_on_behind_it() -> None:
    bucket, begun = Bucket(), list[str]()

    async def story() -> list[str]:
        tape = Tape(access(bucket))

        def put(name: str) -> str:
            begun.append(name)
            tape.put(name, b"", if_absent=True)
            tape.put(f"{name}-index", tape.once(name.encode))
            return name

        def work() -> list[str]:
            parts = [tape.step(lambda name=name: put(name)) for name in ("a", "b")]  # type: ignore[misc]
            with pytest.raises(KeyExists):
                tape.step(lambda: put("a"))
            return [*parts, *tape.list("")]

        found: list[str] = await tape.run(work)
        return found

    assert in_virtual_time(story) == ["a", "b", "a", "a-index", "b", "b-index"]
    assert begun == ["a"] * 3 + ["b"] * 3 + ["a"] * 3
    assert bucket.objects == {
        f"{ROOT}/{name}": name[:1].encode() * name.endswith("-index") for name in ("a", "a-index", "b", "b-index")
    }


def test_between_two_calls_of_code_under_the_tape_others_have_their_turn() -> None:
    bucket = Bucket()

    async def story() -> None:
        tape = Tape(access(bucket))

        def work() -> None:
            assert tape.list("") == []
            asyncio.get_running_loop().call_soon(bucket.objects.setdefault, f"{ROOT}/a", b"theirs")
            with pytest.raises(KeyExists):
                tape.put("a", b"mine", if_absent=True)

        await tape.run(work)

    in_virtual_time(story)
    assert bucket.objects == {f"{ROOT}/a": b"theirs"}


def test_what_a_finally_does_under_the_tape_comes_after_what_it_waits_for() -> None:
    bucket = Bucket()

    async def story() -> None:
        tape = Tape(access(bucket))

        def work() -> None:
            try:
                tape.put("a", b"")
            finally:
                tape.delete(["a"])

        await tape.run(work)

    in_virtual_time(story)
    assert bucket.objects == {}


def test_code_that_dies_under_the_tape_leaves_its_objects_as_they_were() -> None:
    counter = Counter()

    async def story() -> None:
        tape = Tape(access(Bucket()))

        def work() -> None:
            counter.count += 1
            tape.put("a", b"")

        task = asyncio.create_task(tape.run(work, counter))
        await asyncio.sleep(0.001)
        assert counter.count == 1
        task.cancel()
        await asyncio.wait([task])

    in_virtual_time(story)
    assert counter.count == 0
