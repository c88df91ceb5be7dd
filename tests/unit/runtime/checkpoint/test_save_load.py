"""Saving and loading by real ranks (threads) on real objects: any world size, whole or not at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint import upload
from perdure.checkpoint.load import load
from perdure.checkpoint.stage import share_of
from perdure.checkpoint.state import Loaded, RankState, Saved
from perdure.errors import Corrupt, Fenced, PeerLost, StorageError, UserError
from perdure.group.peers import Peers
from perdure.log.entry import Committed, checksum, key_of
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.store import Store, open_store
from perdure.wire import CommitRef
from tests.support.store import MemoryStore, WatchedStore, failing
from tests.unit.runtime.checkpoint.world import (
    load_solo,
    on_ranks,
    opened,
    position,
    rewritten,
    same_state,
    save,
    save_solo,
    state,
    story,
    writer,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/root", {})


def save_by(store: Store, world: int, log_writer: Writer, step: int, **changes: Any) -> list[Saved | BaseException]:
    def act(peers: Peers) -> Saved:
        mine = replace(state(step, peers.rank), **{name: change(peers.rank) for name, change in changes.items()})
        own = log_writer if peers.rank == 0 else None
        return save(store, peers, own, mine, position(step), run=log_writer.run, final=False, reason="test")

    return on_ranks(world, act)


def load_by(store: Store, world: int, log_writer: Writer) -> list[Loaded]:
    found = on_ranks(world, lambda peers: load(store, peers, log_writer.commits() if peers.rank == 0 else None))
    loaded = [each for each in found if isinstance(each, Loaded)]
    assert len(loaded) == world, found
    return loaded


def manifest_of(store: Store, seq: int) -> dict[str, Any]:
    slot = Log(store).slot(seq)
    assert slot
    assert slot.entry
    assert isinstance(slot.entry.event, Committed)
    body: dict[str, Any] = json.loads(store.get(slot.entry.event.manifest.key))
    return body


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (3, 2), (2, 3), (1, 3), (3, 1)])
def test_a_world_of_any_size_restores_what_any_other_saved(store: Store, before: int, after: int) -> None:
    log_writer = opened(store)
    saved = save_by(store, before, log_writer, 10)
    assert [each.commit for each in saved if isinstance(each, Saved)] == [CommitRef(2, 10)] * before, saved
    for rank, loaded in enumerate(load_by(store, after, log_writer)):
        assert same_state(loaded.state, state(10))
        assert (loaded.position, loaded.commit, loaded.world, loaded.skipped) == (
            position(10),
            CommitRef(2, 10),
            before,
            (),
        )
        if before == after:
            assert loaded.state.rank["rank"] == rank
            assert torch.equal(loaded.state.rank["rng"], torch.tensor([10, rank], dtype=torch.uint8))
        else:
            assert loaded.state.rank is None


@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_rank_reads_every_block_of_a_whole_model_once(
    store: Store, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 067 says why none reads for the others."""
    monkeypatch.setattr(upload, "BLOCK_BYTES", 256)
    log_writer = opened(store)
    save_by(store, 2, log_writer, 10)
    sizes = {key: info.size for key in store.list("data/") if key.endswith("safetensors") and (info := store.head(key))}
    asked = list[str]()

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        found = act()
        asked.extend([key] * found if verb == "get" and key in sizes else [])
        return found

    load_by(WatchedStore(store, around), world, log_writer)
    assert Counter(asked) == {key: world * size for key, size in sizes.items()}


def test_nothing_saved_is_nothing_to_load(store: Store) -> None:
    log_writer = opened(store)
    assert load_solo(store, log_writer) is None
    assert on_ranks(2, lambda peers: load(store, peers, log_writer.commits() if peers.rank == 0 else None)) == [
        None,
        None,
    ]


def test_a_commit_has_the_keys_and_files_that_the_format_names(store: Store) -> None:
    save_by(store, 3, opened(store, 4), 180)
    names = [key.split("/") for key in store.list("data/")]
    assert {(name[0], name[1]) for name in names} == {("data", "4")}
    assert {name[2].partition("-")[0] for name in names} == {"180"}
    ranks = range(3)
    expected = {f"shard-{rank:05d}-of-00003.safetensors" for rank in ranks} | {
        f"index-{rank:05d}.json" for rank in ranks
    }
    assert {name[3] for name in names} == expected | {"manifest.json"}


def test_buffers_and_objects_come_from_rank_0_and_nothing_is_written_twice(store: Store) -> None:
    log_writer = opened(store)
    save_by(
        store, 2, log_writer, 5, objects=lambda rank: {"from": rank}, replicated=lambda rank: {"n": torch.tensor(rank)}
    )
    loaded = load_by(store, 2, log_writer)[1].state
    assert (loaded.objects, loaded.replicated["n"].item()) == ({"from": 0}, 0)
    items = [item["name"] for index in manifest_of(store, 2)["indexes"] for item in index["shard"]["items"]]
    assert sorted(items) == sorted([*state(5).shared, "n"])


def test_shards_are_plain_safetensors(store: Store) -> None:
    save_solo(store, opened(store), 1)
    shard = next(key for key in store.list("data/") if key.endswith(".safetensors"))
    tensors = safetensors.torch.load(store.get(shard))
    assert torch.equal(tensors["shared/half"], state(1).shared["half"])


def test_a_world_larger_than_the_model_writes_empty_shards(store: Store) -> None:
    log_writer = opened(store)
    save_by(store, 4, log_writer, 1, shared=lambda _: {"only": torch.ones(2)}, replicated=lambda _: {})
    assert torch.equal(load_by(store, 2, log_writer)[0].state.shared["only"], torch.ones(2))


def test_nothing_to_save_but_a_position_is_a_commit_too(store: Store) -> None:
    log_writer = opened(store)
    save_by(store, 2, log_writer, 0, shared=lambda _: {}, replicated=lambda _: {}, objects=lambda _: {})
    loaded = load_by(store, 2, log_writer)[0]
    assert (loaded.state.shared, loaded.state.replicated, loaded.state.objects) == ({}, {}, {})


def test_block_checksums_cover_the_object_and_combine_to_its_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "BLOCK_BYTES", 100)
    save_solo(store, opened(store), 1)
    shard = manifest_of(store, 2)["indexes"][0]["shard"]
    data = store.get(shard["key"])
    assert shard["blocks"] == [checksum(data[start : start + 100]) for start in range(0, len(data), 100)]
    assert (shard["crc"], shard["block_bytes"], shard["size"]) == (checksum(data), 100, len(data))


@pytest.mark.parametrize("block", [96, 100, 101, 128])
def test_tensors_that_lie_across_the_border_of_a_block_arrive_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(upload, "BLOCK_BYTES", block)
    log_writer = opened(store)
    named = {f"t{number:02}": torch.arange(float(number)) + number for number in range(40)}
    save_by(store, 1, log_writer, 1, shared=lambda _: named)
    (loaded,) = load_by(store, 1, log_writer)
    assert loaded.state.shared.keys() == named.keys()
    assert all(torch.equal(loaded.state.shared[name], tensor) for name, tensor in named.items())


def test_a_block_is_8_mib() -> None:
    assert upload.BLOCK_BYTES == 8 * 1024 * 1024


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_sharing_out_is_complete_deterministic_and_even(sizes: list[int], world: int) -> None:
    tensors = {f"t{n}": torch.empty(size, dtype=torch.uint8) for n, size in enumerate(sizes)}
    shared, turned = (
        [list(share_of(rank, named, world)) for rank in range(world)]
        for named in (tensors, dict(reversed(tensors.items())))
    )
    assert shared == turned
    assert sorted(name for written in shared for name, _ in written) == sorted(tensors)
    loads = [sum(tensors[name].numel() for name, _ in written) for written in shared]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_ranks_with_different_tensors_are_refused_before_anything_is_written(store: Store) -> None:
    found = save_by(store, 3, opened(store), 1, shared=lambda rank: {"w": torch.ones(2 + rank // 2)})
    assert {type(each) for each in found} == {UserError}
    assert "ranks 0 and 2 hold different parameters" in str(found[1])
    assert store.list("data/") == []


def test_ranks_that_share_out_a_commit_by_other_rules_are_refused_before_anything_is_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rank of another version would: what each leaves to the other, nobody would write."""
    versions = iter(("2", "1"))
    monkeypatch.setattr("perdure.checkpoint.save._fingerprint", lambda _: next(versions))
    found = save_by(store, 2, opened(store), 1)
    assert {type(each) for each in found} == {UserError}
    assert "by different rules: start all members with one image" in str(found[0])
    assert store.list("data/") == []


def test_ranks_with_different_memory_layouts_are_refused_before_anything_is_written(store: Store) -> None:
    grids = torch.ones(2, 3), torch.ones(3, 2).t()
    found = save_by(store, 2, opened(store), 1, shared=lambda rank: {"w": grids[rank]})
    assert {type(each) for each in found} == {UserError}
    told = "w is float32 [2, 3] on rank 0 and float32 [2, 3] with its dimensions in memory as [1, 0] on rank 1"
    assert told in str(found[1])
    assert store.list("data/") == []


def test_an_object_outside_the_codec_on_another_rank_fails_all_ranks_too(store: Store) -> None:
    found = save_by(store, 2, opened(store), 1, objects=lambda rank: {"hook": print if rank else None})
    assert {type(each) for each in found} == {UserError}
    assert "rank 1: objects['hook'] is a builtins.builtin_function_or_method" in str(found[0])


def test_an_object_outside_the_codec_fails_all_ranks_with_its_path(store: Store) -> None:
    found = save_by(store, 2, opened(store), 1, objects=lambda _: {"hook": print})
    assert {type(each) for each in found} == {UserError}
    assert "rank 0: objects['hook'] is a builtins.builtin_function_or_method" in str(found[1])
    assert store.list("data/") == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2).to_sparse(),
        torch.ones(2).as_subclass(type("Piece", (torch.Tensor,), {})),
    ],
    ids=["sparse", "piece of a sharded tensor"],
)
def test_a_tensor_that_cannot_be_stored_is_the_users_to_change(store: Store, tensor: torch.Tensor) -> None:
    found = save_by(store, 2, opened(store), 1, shared=lambda _: {"odd": tensor})
    assert {type(each) for each in found} == {UserError}
    assert "odd" in str(found[1])


def test_an_upload_that_fails_on_one_rank_is_a_storage_error_on_all_and_the_next_attempt_is_a_new_one(
    store: Store,
) -> None:
    log_writer = opened(store)

    def act(peers: Peers) -> Saved:
        mine = failing(store, 0, after=False) if peers.rank == 1 else store
        own = log_writer if peers.rank == 0 else None
        return save(mine, peers, own, state(1, peers.rank), position(1), run=1, final=True, reason="test")

    found = on_ranks(3, act)
    assert {type(each) for each in found} == {StorageError}
    assert "rank 1: cannot put" in str(found[2])
    assert story(store) == ["Opened 1"]
    (failed,) = {key.split("/")[2] for key in store.list("data/")}
    assert {type(each) for each in save_by(store, 3, log_writer, 1)} == {Saved}
    (made,) = {key.split("/")[2] for key in store.list("data/")}
    assert made != failed


def test_a_fenced_writer_fences_all_its_ranks(store: Store) -> None:
    log_writer = opened(store)
    opened(store, 7, wait_over=True)
    found = save_by(store, 2, log_writer, 1)
    assert [(type(each), getattr(each, "opened", 0)) for each in found] == [(Fenced, 7), (Fenced, 7)]


def test_a_rank_that_goes_away_is_a_lost_peer_for_the_others(store: Store) -> None:
    def broken(rank: int) -> dict[str, Any]:
        if rank == 1:
            raise RuntimeError("killed")
        return {}

    found = save_by(store, 2, opened(store), 1, objects=broken)
    assert [type(each) for each in found] == [PeerLost, RuntimeError]


def test_a_commit_whose_answer_was_lost_is_not_made_again(store: Store) -> None:
    log_writer = opened(store)
    lost: list[str] = []

    def around(verb: str, key: str, act: Any) -> Any:
        result = act()
        if verb == "put" and key == key_of(2) and not lost:
            lost.append(key)
            raise StorageError("the answer was lost")
        return result

    log_writer.log = Log(WatchedStore(store, around))
    found = save_by(store, 2, log_writer, 1)
    assert {type(each) for each in found} == {StorageError}
    again = save_by(store, 2, log_writer, 1)
    assert [each.commit.seq for each in again if isinstance(each, Saved)] == [2, 2]
    assert story(store) == ["Opened 1", "Committed 1 @1"]
    assert log_writer.abandoned == set()
    assert len({key.split("/")[2] for key in store.list("data/")}) == 1


def damage(store: Store, key: str, how: str) -> None:
    data = bytearray(store.get(key))
    match how:
        case "flipped":
            data[len(data) // 2] ^= 1
        case "short":
            del data[-1]
        case "missing":
            store.delete([key])
            return
    store.put(key, bytes(data))


def behind(loaded: Loaded) -> tuple[CommitRef, str]:
    """The newest commit, which could not be used, and why."""
    assert loaded.behind
    return loaded.behind.commit, loaded.behind.why


@pytest.mark.parametrize("how", ["flipped", "short", "missing"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_damaged_shard_is_reported_and_its_commit_skipped_by_all_ranks(store: Store, how: str, rank: int) -> None:
    log_writer = opened(store)
    save_by(store, 3, log_writer, 10)
    save_by(store, 3, log_writer, 20)
    damage(store, manifest_of(store, 3)["indexes"][rank]["shard"]["key"], how)
    for loaded in load_by(store, 2, log_writer):
        assert loaded.commit.step == 10
        assert same_state(loaded.state, state(10))
        assert len(loaded.skipped) == 1
        assert "commit 3 of step 20: data/1/20-" in loaded.skipped[0]
        assert f"shard-{rank:05d}" in loaded.skipped[0]
        commit, why = behind(loaded)
        assert (commit, f"commit 3 of step 20: {why}") == (CommitRef(3, 20), loaded.skipped[0])


@pytest.mark.parametrize("how", ["flipped", "short"])
def test_a_damaged_manifest_is_reported_and_its_commit_skipped(store: Store, how: str) -> None:
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    save_solo(store, log_writer, 20)
    damage(store, next(key for key in store.list("data/1/20-") if key.endswith("manifest.json")), how)
    loaded = load_by(store, 2, log_writer)[1]
    assert loaded.commit.step == 10
    assert "manifest.json is not what the log says" in loaded.skipped[0]
    assert behind(loaded) == (CommitRef(3, 20), loaded.skipped[0].partition(": ")[2])


def test_the_newest_of_several_that_cannot_be_used_is_what_it_falls_back_behind(store: Store) -> None:
    log_writer = opened(store)
    for step in (10, 20, 30, 40):
        save_solo(store, log_writer, step)
    store.delete([next(key for key in store.list("data/1/40-") if key.endswith("manifest.json"))])
    damage(store, next(key for key in store.list("data/1/30-") if "shard" in key), "flipped")
    loaded = load_by(store, 2, log_writer)[1]
    commit, why = behind(loaded)
    assert (loaded.commit.step, len(loaded.skipped), commit.step) == (20, 2, 40)
    assert why == loaded.skipped[0].partition(": ")[2]


def test_a_run_that_begins_with_the_newest_commit_falls_back_behind_none(store: Store) -> None:
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    assert load_by(store, 2, log_writer)[1].behind is None


def test_damage_that_only_one_rank_meets_makes_all_ranks_fall_back(store: Store) -> None:
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    save_solo(store, log_writer, 20)

    def flip(verb: str, key: str, act: Any) -> Any:
        return act() if verb != "get" or "data/1/20-" not in key else bytes(act())[:-1] + b"x"

    def act(peers: Peers) -> Loaded | None:
        mine = WatchedStore(store, flip) if peers.rank == 1 else store
        return load(mine, peers, log_writer.commits() if peers.rank == 0 else None)

    assert [each.commit.step for each in on_ranks(3, act) if isinstance(each, Loaded)] == [10, 10, 10]


def test_an_altered_log_entry_does_not_change_where_training_goes_on(store: Store) -> None:
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    save_solo(store, log_writer, 20)
    store.put(key_of(3), store.get(key_of(3)).replace(b'"consumed":1280', b'"consumed":1216'))
    loaded = load_solo(store, log_writer)
    assert loaded
    assert loaded.position == position(10)


def test_when_no_commit_is_usable_the_reasons_are_reported_on_all_ranks(store: Store) -> None:
    log_writer = opened(store)
    for step in (10, 20):
        save_solo(store, log_writer, step)
        damage(store, next(key for key in store.list(f"data/1/{step}-") if "shard" in key), "flipped")
    found = on_ranks(2, lambda peers: load(store, peers, log_writer.commits() if peers.rank == 0 else None))
    assert {type(each) for each in found} == {Corrupt}
    assert "step 20" in str(found[1])
    assert "step 10" in str(found[1])
    assert "another root" in str(found[1])


@pytest.mark.parametrize("call", [0, 1], ids=["manifest", "shard"])
def test_a_store_that_does_not_answer_skips_nothing(store: Store, call: int) -> None:
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    save_solo(store, log_writer, 20)
    commits = log_writer.commits()
    flaky = failing(store, call, after=False)

    def act(peers: Peers) -> Loaded | None:
        return load(flaky if peers.rank == 1 else store, peers, commits if peers.rank == 0 else None)

    assert {type(each) for each in on_ranks(2, act)} == {StorageError}
    assert [each.commit.step for each in on_ranks(2, act) if isinstance(each, Loaded)] == [20, 20]


def test_a_newer_format_is_reported_and_not_skipped(store: Store) -> None:
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    store.put(key_of(2), rewritten(store.get(key_of(2)), b'"version":1', b'"version":2'))
    found = on_ranks(2, lambda peers: load(store, peers, log_writer.commits() if peers.rank == 0 else None))
    assert {type(each) for each in found} == {UserError}
    with pytest.raises(UserError, match="use a newer Perdure"):
        writer(store, 2).try_open(1, wait_over=True)


def test_what_is_written_is_what_its_checksum_was_taken_of_even_if_the_tensor_changes_meanwhile() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    weight = torch.zeros(3)

    def around(verb: str, key: str, act: Any) -> Any:
        weight.add_(1)
        return act()

    mine = RankState({"w": weight}, {}, {}, None)
    save_by(WatchedStore(store, around), 1, log_writer, 1, shared=lambda _: mine.shared)
    loaded = load_solo(store, log_writer)
    assert loaded
    assert loaded.skipped == ()
    assert len(set(loaded.state.shared["w"].tolist())) == 1


def test_no_tensor_is_ever_pickled(store: Store) -> None:
    save_by(store, 2, opened(store), 1)
    for key in store.list(""):
        assert not store.get(key).startswith((b"\x80", b"PK"))
