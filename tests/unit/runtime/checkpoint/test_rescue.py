"""The image of a leaver becomes its run's last commit, where the log still allows that, and nothing is written else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import stage
from perdure.checkpoint.codec import encode
from perdure.checkpoint.image_file import Image, Label, write_image
from perdure.checkpoint.load import load
from perdure.checkpoint.rescue import Superfluous, rescue
from perdure.checkpoint.state import Loaded
from perdure.errors import Fenced, HandoverRefused, StorageError
from perdure.group.peers import Peers
from perdure.log.images import ImageOffer, Stamp
from perdure.log.reader import Log
from perdure.log.takeover import TakeoverLog
from perdure.log.writer import Resume
from perdure.store import Store
from perdure.store.file import FileStore
from perdure.wire import Env
from tests.support.store import MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import (
    UID,
    on_ranks,
    opened,
    position,
    same_state,
    save_solo,
    state,
    story,
    writer,
)

STEP = 17
OF_LOST = "made up from the one that is left"


def left(
    folder: Path,
    rank: int,
    *,
    step: int = STEP,
    run: int = 1,
    uid: str = UID,
    crc: str = "a",
    ranks: tuple[str, ...] = (),
) -> Path:
    """An image that this rank of a run of three has left."""
    path = folder / f"image-{run}-{rank}-{step}"
    path.touch()
    label = Label(Stamp(uid, run, step, rank, 3), position(step), crc, ("torch",), encode(OF_LOST, "rank"), ranks)
    assert write_image(path, label, stage.stage(state(step, rank), 0, 1), lambda: True)
    return path


@pytest.fixture
def store() -> Store:
    """Run 1 has saved once, and trained on."""
    store = MemoryStore()
    save_solo(store, opened(store), 5)
    return store


def resumed(store: Store, world: int, run: int = 2) -> list[Loaded]:
    """What the ranks of the next run begin with."""

    def act(peers: Peers) -> Loaded | None:
        return load(store, peers, opened(store, run).commits() if peers.rank == 0 else None)

    found = on_ranks(world, act)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, Loaded)]


@pytest.mark.parametrize("ranks", [(1,), (0,), (2, 1)])
def test_the_next_run_continues_from_the_last_step_without_a_wait(
    tmp_path: Path, store: Store, ranks: Sequence[int]
) -> None:
    images = [Image(left(tmp_path, rank)) for rank in ranks]
    commit = rescue(store, UID, 1, images)
    assert (commit.step, story(store)) == (STEP, ["Opened 1", "Committed 1 @5", f"Committed 1 @{STEP}!"])
    found = resumed(store, 3)
    assert [(one.commit, one.position, one.world) for one in found] == [(commit, position(STEP), 3)] * 3
    assert all(same_state(one.state, state(STEP, min(ranks))) for one in found)
    own = [one.state.rank["rank"] if rank in ranks else one.state.rank for rank, one in enumerate(found)]
    assert own == [rank if rank in ranks else OF_LOST for rank in range(3)]


def in_parts(folder: Path, rank: int, step: int = STEP) -> Image:
    """The image of one of two parts that this rank of three has left."""
    path, part = folder / f"part-{rank}-{step}", rank % 2
    path.touch()
    stamp, lost = Stamp(UID, 1, step, rank, 3), encode(OF_LOST, "rank")
    label = Label(stamp, position(step), str(part), ("torch",), lost, (), part, 2, "l")
    assert write_image(path, label, stage.stage(state(step, rank), part, 2), lambda: True)
    return Image(path)


def test_a_pod_that_holds_one_part_of_a_sharded_model_commits_nothing(tmp_path: Path, store: Store) -> None:
    with pytest.raises(Superfluous, match="no image of some parts"):
        rescue(store, UID, 1, [in_parts(tmp_path, 0), in_parts(tmp_path, 2), in_parts(tmp_path, 1, STEP - 1)])
    assert story(store) == ["Opened 1", "Committed 1 @5"]


def test_one_that_holds_all_parts_commits_the_newest_step_that_is_whole(tmp_path: Path, store: Store) -> None:
    images = [in_parts(tmp_path, 1), in_parts(tmp_path, 2), in_parts(tmp_path, 2, STEP + 1)]
    assert rescue(store, UID, 1, images).step == STEP
    found = resumed(store, 3)
    assert all(same_state(one.state, state(STEP, 1)) for one in found)
    assert found[0].state.rank == OF_LOST


def test_nothing_of_a_ranks_own_is_lost_where_the_ranks_had_exchanged_it(tmp_path: Path, store: Store) -> None:
    rescue(store, UID, 1, [Image(left(tmp_path, 1, ranks=("0's", "1's", "2's")))])
    assert [one.state.rank for one in resumed(store, 3)][::2] == ["0's", "2's"]


def test_it_may_begin_with_any_number_of_ranks(tmp_path: Path, store: Store) -> None:
    rescue(store, UID, 1, [Image(left(tmp_path, 1))])
    assert [one.position for one in resumed(store, 2)] == [position(STEP)] * 2


def test_the_run_that_was_to_take_over_never_opens_behind_it(tmp_path: Path, store: Store) -> None:
    rescue(store, UID, 1, [Image(left(tmp_path, 1))], aborted=2)
    with pytest.raises(HandoverRefused):
        opened(store, 2)
    assert opened(store, 3).run == 3


def ended(store: Store) -> None:
    save_solo(store, opened(store, 2, wait_over=True), 9, final=True)


NOT_ALLOWED: dict[str, Callable[[Store], Any]] = {
    "run 2 has begun": lambda store: opened(store, 2, wait_over=True),
    "run 2 has ended": ended,
    "another job has the root": lambda store: opened(store, uid="other"),
}


@pytest.mark.parametrize("then", NOT_ALLOWED.values(), ids=NOT_ALLOWED)
def test_nothing_is_written_behind_another_run(tmp_path: Path, store: Store, then: Callable[[Store], Any]) -> None:
    then(store)
    before = story(store)
    with pytest.raises(Superfluous):
        rescue(store, UID, 1, [Image(left(tmp_path, 1))])
    assert story(store) == before


def test_nothing_is_written_behind_the_runs_own_last_word(tmp_path: Path) -> None:
    store = MemoryStore()
    save_solo(store, opened(store), 5, final=True)
    with pytest.raises(Superfluous, match="its own entry"):
        rescue(store, UID, 1, [Image(left(tmp_path, 1))])


def test_a_hand_over_that_is_in_the_log_has_taken_the_run_away(tmp_path: Path, store: Store) -> None:
    TakeoverLog(Log(store), uid=UID, run=1, next_run=2).open(3, STEP, "its writer")
    with pytest.raises(Superfluous, match="run 2 has begun"):
        rescue(store, UID, 1, [Image(left(tmp_path, 1))])


def took_over(store: Store, step: int = STEP) -> None:
    TakeoverLog(Log(store), uid=UID, run=1, next_run=2).open(1, step, "its writer")


def began_from_it(store: Store, step: int = STEP) -> None:
    offer = ImageOffer(0, Stamp(UID, 1, step, 1, 3), "a")
    assert isinstance(writer(store, 2).try_open(1, wait_over=True, images=[offer]), Resume)


@pytest.mark.parametrize("successor", [took_over, began_from_it])
def test_it_is_the_last_word_of_a_lost_run_that_has_begun_right_there(
    tmp_path: Path, store: Store, successor: Callable[[Store], None]
) -> None:
    successor(store)
    image = Image(left(tmp_path, 1, ranks=("0's", "1's", "2's")))
    commit = rescue(store, UID, 1, [image], successor=2)
    assert rescue(store, UID, 1, [image], successor=2) == commit
    assert story(store)[-1] == f"Committed 2 @{STEP}!"
    assert [(one.commit, one.position) for one in resumed(store, 3, 3)] == [(commit, position(STEP))] * 3


def followed(store: Store) -> None:
    took_over(store)
    opened(store, 3, wait_over=True)


HAS_COME_ELSEWHERE: dict[str, Callable[[Store], Any]] = {
    "at another step": lambda store: took_over(store, STEP - 1),
    "from another image": lambda store: began_from_it(store, STEP - 1),
    "from the newest commit": lambda store: opened(store, 2, wait_over=True),
    "and has saved since": lambda store: save_solo(store, opened(store, 2, wait_over=True), STEP + 1),
    "and another has followed": followed,
}


@pytest.mark.parametrize("then", HAS_COME_ELSEWHERE.values(), ids=HAS_COME_ELSEWHERE)
def test_but_not_of_one_that_has_come_elsewhere(tmp_path: Path, store: Store, then: Callable[[Store], Any]) -> None:
    then(store)
    before = story(store)
    with pytest.raises(Superfluous, match="has begun"):
        rescue(store, UID, 1, [Image(left(tmp_path, 1))], successor=2)
    assert story(store) == before


def test_one_that_was_refused_has_not_and_the_last_word_says_so(tmp_path: Path, store: Store) -> None:
    TakeoverLog(Log(store), uid=UID, run=1, next_run=2).refuse()
    commit = rescue(store, UID, 1, [Image(left(tmp_path, 1))])
    slot = Log(store).slot(commit.seq)
    assert slot
    assert slot.entry
    assert slot.entry.refused == 2


@pytest.mark.parametrize(
    "image",
    [{"step": 5}, {"step": 3}, {"run": 2}, {"uid": "other"}],
    ids=["in the newest commit", "before it", "of another run", "of another job"],
)
def test_an_image_that_leads_nowhere_is_let_go(tmp_path: Path, store: Store, image: dict[str, Any]) -> None:
    before = story(store)
    with pytest.raises(Superfluous):
        rescue(store, UID, 1, [Image(left(tmp_path, 1, **image))])
    assert story(store) == before


def test_ranks_that_have_come_apart_commit_nothing(tmp_path: Path, store: Store) -> None:
    images = [Image(left(tmp_path, 1, crc="a")), Image(left(tmp_path, 2, crc="b"))]
    with pytest.raises(Superfluous, match="come apart"):
        rescue(store, UID, 1, images)


def test_another_writer_meanwhile_is_first(tmp_path: Path, store: Store) -> None:
    def around(call: str, key: str, act: Callable[[], Any]) -> Any:
        if call == "put" and key.endswith("manifest.json"):
            opened(store, 2, wait_over=True)
        return act()

    with pytest.raises(Superfluous, match="run 2 has begun"):
        rescue(WatchedStore(store, around), UID, 1, [Image(left(tmp_path, 1))])
    assert story(store) == ["Opened 1", "Committed 1 @5", "Opened 2"]


def test_rank_0_may_live_and_is_fenced(tmp_path: Path) -> None:
    """Only cut off, say: what it wants to write comes behind the end of its run."""
    store = MemoryStore()
    log_writer = opened(store)
    rescue(store, UID, 1, [Image(left(tmp_path, 1))])
    with pytest.raises(Fenced):
        save_solo(store, log_writer, STEP + 1)


def test_a_store_that_does_not_answer_may_be_asked_again(tmp_path: Path, store: Store) -> None:
    failing = {"put"}

    def around(call: str, key: str, act: Callable[[], Any]) -> Any:
        if call in failing and key.startswith("log/"):
            failing.clear()
            act()
            raise StorageError("the answer is lost")
        return act()

    watched, images = WatchedStore(store, around), [Image(left(tmp_path, 1))]
    with pytest.raises(StorageError):
        rescue(watched, UID, 1, images)
    assert rescue(watched, UID, 1, images).step == STEP
    assert story(store) == ["Opened 1", "Committed 1 @5", f"Committed 1 @{STEP}!"]


def command(root: Path, *files: Path) -> dict[str, Any]:
    """What the process prints that an agent starts."""
    environ = {**os.environ, Env.ROOT: root.as_uri(), Env.UID: UID}
    words = [sys.executable, "-P", "-m", "perdure.checkpoint.rescue", "1", "0", "0", *map(str, files)]
    told: dict[str, Any] = json.loads(subprocess.run(words, env=environ, check=True, capture_output=True).stdout)
    return told


def test_the_agents_process_prints_the_commit_or_why_there_is_none(tmp_path: Path) -> None:
    root = tmp_path / "root"
    save_solo(FileStore(root), opened(FileStore(root)), 5)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"perdure1 and nothing else")
    assert command(root, damaged) == {"why": "no image is whole"}
    image = left(tmp_path, 1)
    assert command(root, image, damaged) == {"seq": 3, "step": STEP}
    assert command(root, left(tmp_path, 2)) == {"seq": 3, "step": STEP}, "another rank has committed it"
    opened(FileStore(root), 2)
    assert command(root, image) == {"why": "run 2 has begun"}
