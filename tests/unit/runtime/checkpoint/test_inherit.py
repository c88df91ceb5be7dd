"""How a run begins from an image: real ranks (threads) commit it, and every one of them resumes that commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from perdure.checkpoint import checkpointer, stage
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.image_file import Image, Label, write_image
from perdure.checkpoint.inherit import Inheritance
from perdure.checkpoint.load import load
from perdure.checkpoint.opening import open_run
from perdure.checkpoint.rescue import rescue
from perdure.checkpoint.state import Loaded
from perdure.errors import StorageError
from perdure.group.peers import Peers, Solo
from perdure.log.images import Stamp
from perdure.log.position import Position
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import NoTrace
from perdure.state.registry import Registry
from perdure.store import Store
from perdure.wire.settings import Settings
from tests.support.store import MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import UID, Newer, on_ranks, opened, position, same_state, state, story

STEP = 17
OF_LOST = "made up from the others"


def left(
    folder: Path,
    rank: int,
    *,
    step: int = STEP,
    world: int = 2,
    crc: str = "a",
    ranks: tuple[str, ...] = (),
    at: Position | None = None,
) -> Path:
    """An image that this rank of run 1 has left."""
    path = folder / f"image-{rank}-{step}"
    path.touch()
    label = Label(Stamp(UID, 1, step, rank, world), at or position(step), crc, ("torch",), OF_LOST, ranks)
    assert write_image(path, label, stage.stage(state(step, rank), 0, 1), lambda: True)
    return path


def left_in_parts(folder: Path, rank: int, *steps: int) -> Path:
    """The images of these steps that this rank of four has left, of one of two parts."""
    path, end, part = folder / f"image-{rank}", 0, rank % 2
    path.touch()
    for step in steps:
        stamp = Stamp(UID, 1, step, rank, 4)
        label = Label(stamp, position(step), str(part), ("torch",), OF_LOST, (), part, 2, "l")
        end = write_image(path, label, stage.stage(state(step, rank), part, 2), lambda: True, end)
    return path


def of_lost(states: Sequence[Any], names: Collection[str]) -> Any:
    assert states
    assert list(names) == ["torch"]
    return OF_LOST


def begins(store: Store, held: Sequence[Path | Sequence[Path] | None], seconds: float = 0.0) -> list[Loaded]:
    """Run 2, of as many ranks, after run 1 was lost: what each of them resumes."""

    def act(peers: Peers) -> Loaded | None:
        files = held[peers.rank] or ()
        inheritance = Inheritance(peers, [files] if isinstance(files, Path) else files)
        settings = Settings("memory://", uid=UID, run=2, lost=(1,), rank=peers.rank, world=peers.world)
        opening = open_run(settings, store, peers, lambda: None, inheritance.offers)
        if opening.image:
            log_writer = Checkpointer(store, peers, opening.writer, 2, 3, NoTrace(), Timings(), state)
            assert inheritance.commit(opening.image, log_writer, of_lost, seconds) == inheritance.offers[0].stamp.world
        return load(store, peers, opening.writer.commits() if opening.writer else None)

    found = on_ranks(len(held), act)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, Loaded)]


@pytest.fixture
def store() -> Store:
    store = MemoryStore()
    opened(store)
    return store


@pytest.mark.parametrize("survivor", [0, 1])
def test_every_rank_resumes_where_the_survivor_stood(tmp_path: Path, store: Store, survivor: int) -> None:
    held = [left(tmp_path, rank) if rank == survivor else None for rank in range(2)]
    found = begins(store, held)
    assert [one.position for one in found] == [position(STEP)] * 2
    assert all(same_state(one.state, state(STEP, survivor)) for one in found)
    assert [one.state.rank for one in found][1 - survivor] == OF_LOST
    assert found[survivor].state.rank["rank"] == survivor
    assert story(store) == ["Opened 1", "Opened 2", f"Committed 2 @{STEP}"]


@pytest.mark.parametrize("elsewhere", ["", "another step", "another place of this step"])
def test_a_rank_goes_on_with_its_own_state_where_another_pod_has_made_the_commit(
    tmp_path: Path, store: Store, elsewhere: str
) -> None:
    """That pod has ended, and knew nothing of the other's own state."""
    made = rescue(store, UID, 1, [Image(left(tmp_path, 1))])
    ahead = left(tmp_path, 0, step=STEP - 1 if elsewhere == "another step" else STEP)
    if elsewhere == "another place of this step":
        ahead = left(tmp_path, 0, at=replace(position(STEP), epoch=99))

    def act(peers: Peers) -> tuple[Loaded, Any]:
        inheritance = Inheritance(peers, [ahead] if peers.rank == 0 else [])
        settings = Settings("memory://", uid=UID, run=2, lost=(1,), rank=peers.rank, world=peers.world)
        opening = open_run(settings, store, peers, lambda: None, inheritance.offers)
        assert opening.image is None
        loaded = load(store, peers, opening.writer.commits() if opening.writer else None)
        assert loaded
        return loaded, inheritance.own_state(loaded)

    found: Any = on_ranks(2, act)
    (first, own), (second, other) = found
    assert first.commit == second.commit == made
    assert first.state.rank == OF_LOST
    assert (own and own["rank"]) == (None if elsewhere else 0)
    assert (other, second.state.rank["rank"]) == (None, 1)


class Kept:
    """State of a script's own."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def test_what_a_script_keeps_itself_lies_as_it_lay(tmp_path: Path, store: Store) -> None:
    cube = np.asfortranarray(np.arange(720.0).reshape(8, 9, 10))
    kept: dict[str, Any] = {
        "columns": torch.arange(2000.0).reshape(40, 50).t(),
        "few": torch.ones(2, 3).t(),
        "fortran": cube,
        "small": np.asfortranarray(cube[:2, :2, :2]),
    }
    registry, path = Registry(), tmp_path / "image"
    registry.add("kept", Kept(kept))
    path.touch()
    label = Label(Stamp(UID, 1, STEP, 1, 2), position(STEP), "a", ("torch",), OF_LOST, ())
    assert write_image(path, label, stage.stage(registry.state(None), 0, 1), lambda: True)
    for one in begins(store, [None, path]):
        into, found = Registry(), Kept({})
        into.add("kept", found)
        into.load(replace(one.state, rank=None))
        for name, value in kept.items():
            assert np.array_equal(found.values[name], value)
            assert np.asarray(found.values[name]).strides == np.asarray(value).strides, name


def test_each_survivor_goes_on_with_its_own(tmp_path: Path, store: Store) -> None:
    found = begins(store, [left(tmp_path, 0, world=3), None, left(tmp_path, 2, world=3)])
    ranks = [one.state.rank for one in found]
    assert (ranks[0]["rank"], ranks[1], ranks[2]["rank"]) == (0, OF_LOST, 2)


def test_a_lost_rank_whose_state_the_others_have_continues_with_its_own(tmp_path: Path, store: Store) -> None:
    told = ("0's", "1's", "2's")
    found = begins(store, [None, left(tmp_path, 1, world=3, ranks=told), None])
    assert [one.state.rank if rank != 1 else None for rank, one in enumerate(found)] == ["0's", None, "2's"]


def test_a_rank_that_was_a_step_behind_gives_nothing_but_goes_on_too(tmp_path: Path, store: Store) -> None:
    found = begins(store, [left(tmp_path, 0, step=STEP - 1, world=3), None, left(tmp_path, 2, world=3)])
    assert [one.position for one in found] == [position(STEP)] * 3
    assert [one.state.rank == OF_LOST for one in found] == [True, True, False]


def test_the_survivors_put_the_parts_of_a_sharded_model_together(tmp_path: Path, store: Store) -> None:
    """Rank 3 is lost. Rank 0 has passed the meeting, ranks 1 and 2 have lost it."""
    held = [left_in_parts(tmp_path, 0, 18), left_in_parts(tmp_path, 1, 17, 18), left_in_parts(tmp_path, 2, 17, 18)]
    found = begins(store, [*held, None])
    assert [one.position for one in found] == [position(18)] * 4
    assert all(same_state(one.state, state(18)) for one in found)
    assert [one.state.rank == OF_LOST for one in found] == [False, False, False, True]


def mirrored(folder: Path, rank: int, step: int, *, bound: bool = False) -> tuple[Path, Path]:
    """The snapshot of one of three parts that this rank took, and the one that its buddy keeps."""
    own, kept = folder / f"own-{rank}-{step}", folder / f"kept-{rank}-{step}"
    own.touch()
    label = Label(Stamp(UID, 1, step, rank, 3), position(step), "", ("torch",), OF_LOST, (), rank, 3, "l", bound)
    assert write_image(own, label, stage.stage(state(step, rank), rank, 3), lambda: True)
    kept.write_bytes(own.read_bytes())
    return own, kept


def test_a_survivor_commits_its_own_part_and_the_one_that_it_mirrored(tmp_path: Path, store: Store) -> None:
    """Rank 1 is lost before all of its newest snapshot is at rank 2: the one before counts."""
    files = {(rank, step): mirrored(tmp_path, rank, step) for rank in range(3) for step in (17, 18)}
    own, kept = ({place: pair[number] for place, pair in files.items()} for number in (0, 1))
    kept[1, 18].write_bytes(bytes(8) + kept[1, 18].read_bytes()[8:])
    of_0 = [own[0, 17], own[0, 18], kept[2, 17], kept[2, 18]]
    of_2 = [own[2, 17], own[2, 18], kept[1, 17], kept[1, 18]]
    found = begins(store, [of_0, None, of_2])
    assert [one.position for one in found] == [position(17)] * 3
    for rank, one in enumerate(found):
        assert same_state(replace(one.state, rank=None), replace(state(17, rank), rank=None))
        assert one.state.rank["rank"] == rank, "the lost rank's own state was mirrored, too"


def test_what_each_rank_has_accumulated_counts_in_a_world_of_the_same_size_alone(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    of_0, of_1, of_2 = (mirrored(tmp_path, rank, 17, bound=True) for rank in range(3))
    assert begins(store, [of_0, [*of_2, *of_1]]) == []
    assert "accumulators hold values of each of 3 ranks, and this run has 2" in capsys.readouterr().err
    other = MemoryStore()
    opened(other)
    assert [one.position for one in begins(other, [of_0, [*of_2, *of_1], None])] == [position(17)] * 3


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_parts_that_one_rank_commits_are_one_safetensors_file(tmp_path: Path, store: Store) -> None:
    begins(store, [[*mirrored(tmp_path, 0, 17)], [*mirrored(tmp_path, 2, 17), mirrored(tmp_path, 1, 17)[1]], None])
    shards = [key for key in store.list("data/2") if key.endswith(".safetensors")]
    whole, found = {**state(17).shared, **state(17).replicated}, set[str]()
    for key in shards:
        for name, tensor in safetensors.torch.load(store.get(key)).items():
            found.add(name.partition("/")[2])
            assert as_bytes(tensor) == as_bytes(whole[name.partition("/")[2]])
    assert found == set(whole)


def test_of_a_step_that_lacks_a_part_nothing_is_taken(tmp_path: Path, store: Store) -> None:
    held = [left_in_parts(tmp_path, 0, 17, 18), left_in_parts(tmp_path, 1, 17), left_in_parts(tmp_path, 2, 17)]
    found = begins(store, [*held, None])
    assert [one.position for one in found] == [position(17)] * 4
    assert all(same_state(one.state, state(17)) for one in found)


def test_without_a_step_that_has_all_parts_the_newest_commit_counts(tmp_path: Path, store: Store) -> None:
    assert begins(store, [left_in_parts(tmp_path, 0, 18), left_in_parts(tmp_path, 1, 17), None, None]) == []
    assert story(store) == ["Opened 1", "Opened 2"]


def test_in_a_world_of_another_size_no_rank_has_a_state_of_its_own_but_what_all_had_alike(
    tmp_path: Path, store: Store
) -> None:
    found = begins(store, [left(tmp_path, 1, world=3), None])
    assert [one.state.rank for one in found] == [OF_LOST, OF_LOST]
    assert all(same_state(one.state, state(STEP, 1)) for one in found)


def test_of_an_image_that_is_damaged_nothing_is_said_to_be_there(tmp_path: Path, store: Store) -> None:
    path = left(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    assert begins(store, [path, None]) == []
    assert story(store) == ["Opened 1", "Opened 2"]


def test_a_store_that_fails_is_asked_again_and_then_the_run_ends_for_its_entry_names_the_image(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "AGAIN_SECONDS", 0.0)
    failures = iter([True])

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        part = key.startswith("data/")
        if verb.startswith("put") and part and next(failures, False):
            raise StorageError("no route to the store")
        return act()

    held = [left(tmp_path, 0), None]
    with pytest.raises(StorageError):
        begins(WatchedStore(store, around), held)
    assert story(store) == ["Opened 1", "Opened 2"]
    store = MemoryStore()
    opened(store)
    failures = iter([True])
    assert [one.position for one in begins(WatchedStore(store, around), held, seconds=60.0)] == [position(STEP)] * 2


def test_what_a_rank_of_a_newer_version_offers_beside_an_image_is_ignored(tmp_path: Path) -> None:
    image = left(tmp_path, 0, world=1)
    assert Inheritance(Newer(), [image]).offers == Inheritance(Solo(), [image]).offers
