"""A commit pinned by a user is kept, even if a training deletes at the same moment."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint.copying import copy
from perdure.checkpoint.garbage import gc
from perdure.checkpoint.history import history
from perdure.checkpoint.pinning import pin, unpin
from perdure.checkpoint.retention import retire
from perdure.cli.main import main
from perdure.errors import StorageError, UserError
from perdure.log.kept import mark_deletion, read_kept
from perdure.store import Store, open_store
from perdure.wire import CommitSelector
from tests.support.store import Died, MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import load_solo, opened, save_solo

FIRST = CommitSelector(step=1)
DEADLINE = 30


def saved(store: Store, steps: range = range(1, 4)) -> Any:
    writer = opened(store)
    for step in steps:
        save_solo(store, writer, step)
    return writer


def whole(store: Store) -> list[int]:
    """Steps of the commits that can be loaded."""
    return [one.commit.step for one in history(store)]


def test_a_commit_that_is_pinned_outlives_those_around_it_until_it_is_unpinned() -> None:
    store = MemoryStore()
    writer = saved(store)
    (line,) = pin(store, FIRST)
    assert (line.data["step"], line.data["pinned"]) == (1, True)
    retire(store, writer, 1)
    assert whole(store) == [3, 1]
    assert [one.commit.pinned_by_hand for one in history(store)] == [False, True]
    for step in (4, 5):
        save_solo(store, writer, step)
    retire(store, writer, 1)
    assert whole(store) == [5, 1]
    (line,) = unpin(store, FIRST)
    assert line.data["pinned"] is False
    assert whole(store) == [5, 1]
    retire(store, writer, 1)
    assert whole(store) == [5]
    assert store.list("pins/") == []
    assert store.list("data/1/1-") == []


def test_pins_do_not_count_among_those_that_are_kept() -> None:
    store = MemoryStore()
    writer = saved(store, range(1, 6))
    list(pin(store, CommitSelector(step=4)))
    retire(store, writer, 2)
    assert whole(store) == [5, 4]
    save_solo(store, writer, 6)
    retire(store, writer, 2)
    assert whole(store) == [6, 5, 4]


def test_a_commit_that_was_unpinned_while_it_is_among_the_newest_goes_in_its_turn() -> None:
    store = MemoryStore()
    writer = saved(store)
    list(pin(store, CommitSelector()))
    list(unpin(store, CommitSelector()))
    retire(store, writer, 1)
    assert whole(store) == [3]
    save_solo(store, writer, 4)
    retire(store, writer, 1)
    assert whole(store) == [4]
    assert store.list("pins/") == []


def test_one_that_is_pinned_twice_is_pinned_once() -> None:
    store = MemoryStore()
    saved(store)
    list(pin(store, FIRST))
    list(pin(store, FIRST))
    list(unpin(store, FIRST))
    list(pin(store, FIRST))
    assert len(store.list("pins/")) == 1
    list(unpin(store, FIRST))
    with pytest.raises(UserError, match="is not pinned by hand"):
        list(unpin(store, FIRST))


def test_a_pin_of_the_script_is_not_taken_for_one_by_hand() -> None:
    store = MemoryStore()
    writer = opened(store)
    save_solo(store, writer, 1, pin="best")
    with pytest.raises(UserError, match="not pinned by hand: its pin best is the script's"):
        list(unpin(store, FIRST))
    list(pin(store, FIRST))
    for step in (2, 3):
        save_solo(store, writer, step, pin="best")
    retire(store, writer, 1)
    assert whole(store) == [3, 1]
    list(unpin(store, FIRST))
    retire(store, writer, 1)
    assert whole(store) == [3]


def test_a_start_takes_no_retired_commit_above_a_pinned_one_for_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    writer = saved(store, range(1, 6))
    list(pin(store, CommitSelector(step=2)))
    retire(store, writer, 1)
    store.delete([key for key in store.list("data/1/5-") if key.endswith("manifest.json")])
    loaded = load_solo(store, writer)
    assert loaded
    assert loaded.commit.step == 2
    assert [skipped.partition(":")[0] for skipped in loaded.skipped] == ["commit 6 of step 5"]
    assert capsys.readouterr().out == ""


def test_verify_log_and_show_know_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = f"file://{tmp_path}/root"
    store = open_store(root, {})
    writer = saved(store)
    assert main(["pin", f"{tmp_path}/root@2"]) == 0
    assert "entry 2, step 1: pinned" in capsys.readouterr().out
    retire(store, writer, 1)
    assert main(["verify", f"{tmp_path}/root"]) == 0
    told = capsys.readouterr().out
    assert "commit 2 of step 1: whole" in told
    assert "commit 3 of step 2: retired" in told
    assert main(["log", f"{tmp_path}/root"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "pinned by hand" in line] == ["2"]
    assert main(["show", "--json", f"{tmp_path}/root@2"]) == 0
    assert json.loads(capsys.readouterr().out)["pinned_by_hand"] is True
    assert main(["unpin", "--json", f"{tmp_path}/root@2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"seq": 2, "step": 1, "pinned": False}
    assert main(["unpin", f"{tmp_path}/root@2"]) == 2
    assert main(["pin", f"{tmp_path}/root@3"]) == 2
    assert "there are entry 4 (step 3, epoch 0), entry 2" in capsys.readouterr().err


def test_what_is_pinned_and_lost_is_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(f"file://{tmp_path}/root", {})
    writer = saved(store)
    list(pin(store, FIRST))
    list(pin(store, CommitSelector(step=2)))
    retire(store, writer, 1)
    store.delete([key for key in store.list("data/1/2-") if key.endswith("manifest.json")])
    assert main(["verify", f"{tmp_path}/root"]) == 1
    assert "commit 3 of step 2: DAMAGED" in capsys.readouterr().out


def test_a_copy_has_the_pins() -> None:
    store, other = MemoryStore(), MemoryStore()
    saved(store)
    list(pin(store, FIRST))
    list(copy(store, other))
    assert read_kept(other) == read_kept(store)


def test_a_deleting_process_is_waited_for_and_named_where_it_does_not_continue() -> None:
    store = MemoryStore()
    saved(store)
    folder = next(one.event.manifest.folder for one in history(store) if one.commit.step == 1)
    mark = mark_deletion(store, folder)
    with pytest.raises(StorageError, match=r"entry 2 .* is pinned, but a training was about to delete it"):
        list(pin(store, FIRST, seconds=0))
    assert read_kept(store).pinned == {2}
    store.written[mark] -= 25 * 3600  # dead for more than a day
    assert list(pin(store, FIRST, seconds=0))


def test_one_that_was_pinned_before_its_deletion_began_is_not_said_to_be_about_to_be_deleted() -> None:
    store = MemoryStore()
    writer = saved(store)

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == "put" and "data/1/1-" in key:
            list(pin(store, FIRST))
        return act()

    retire(WatchedStore(store, around), writer, 1)
    assert whole(store) == [3, 1]
    assert list(pin(store, FIRST, seconds=0))


@dataclass
class Stepped:
    """Threads whose relevant store calls run one at a time, in an order that the test decides."""

    inner: Store
    folder: str
    names: dict[int, str] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    """How each has ended."""
    turn: str = ""
    dies: str = ""

    def start(self, name: str, act: Callable[[Store], object]) -> None:
        def run() -> None:
            self.names[threading.get_ident()] = name
            how = "done"
            try:
                act(WatchedStore(self.inner, self._around))
            except (Died, StorageError, UserError) as error:
                how = type(error).__name__
            with self.changed:
                self.ended[name] = how
                self.changed.notify_all()

        threading.Thread(target=run, daemon=True).start()
        self._settle(name)

    def step(self, name: str, *, dies: bool = False) -> bool:
        """Lets it make one call, or die instead; False if it has ended."""
        if name in self.ended:
            return False
        with self.changed:
            self.waiting.discard(name)
            self.turn, self.dies = name, name if dies else ""
            self.changed.notify_all()
        self._settle(name)
        return True

    def _settle(self, name: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.waiting or name in self.ended, DEADLINE)

    def _around(self, verb: str, key: str, act: Callable[[], Any]) -> Any:  # noqa: ARG002
        if not key.startswith(("pins/", self.folder)):
            return act()
        name = self.names[threading.get_ident()]
        with self.changed:
            self.waiting.add(name)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.turn == name, DEADLINE)
            self.turn = ""
            if self.dies == name:
                raise Died
        return act()


@cache
def first_saved() -> tuple[MemoryStore, Any]:
    store = MemoryStore()
    return store, saved(store)


def saved_once() -> tuple[MemoryStore, Any]:
    """A store and its writer, as `saved` leaves them: three saves take longer than what is played with them."""
    first, writer = first_saved()
    store = MemoryStore()
    store.objects |= first.objects
    store.written |= first.written
    return store, deepcopy(writer, {id(first): store})


def played(order: str, *, two: bool = False, dies: tuple[str, int] = ("", 0)) -> set[str]:
    """Pins a commit while one or two delete it, in this order; returns the observations."""
    store, writer = saved_once()
    folder = next(one.event.manifest.folder for one in history(store) if one.commit.step == 1)
    world = Stepped(store, folder)
    world.start("r", lambda own: retire(own, writer, 1))
    if two:
        world.start("g", lambda own: list(gc(own, keep=1, deletes=True)))
    world.start("p", lambda own: list(pin(own, FIRST, seconds=0)))
    made = dict.fromkeys("prg", 0)
    for name in [*order, *"p" * 9, *"r" * 20, *"g" * 20]:
        if name != "g" or two:
            world.step(name, dies=(name, made[name]) == dies)
            made[name] += 1
    assert set(world.ended) == {*("prg" if two else "pr")}
    here = 1 in whole(store)
    how = world.ended["p"]
    if how == "done":
        assert here, f"{order}: it was pinned, and deleted"
    if how == "UserError":
        assert not here, f"{order}: it was said to be gone, and is there"
        assert read_kept(store).pinned == set()
    if how == "StorageError":
        with suppress(UserError, StorageError):
            list(pin(store, FIRST, seconds=0))
            assert 1 in whole(store)
    save_solo(store, writer, 4)
    retire(store, writer, 1)
    assert (1 in whole(store)) == (here and 2 in read_kept(store).pinned), f"{order}: {how}"
    return {how, "here" if here else "gone"}


def test_in_each_order_of_two_who_pin_and_delete_the_commit_is_there_where_it_is_said_to_be_pinned() -> None:
    found = {
        frozenset(played("".join("p" if at in places else "r" for at in range(12))))
        for places in combinations(range(12), 5)
    }
    assert found == {
        frozenset({"done", "here"}),
        frozenset({"UserError", "gone"}),
        frozenset({"StorageError", "here"}),
        frozenset({"StorageError", "gone"}),
    }


@pytest.mark.parametrize("first", range(8))
def test_a_process_that_decides_not_to_delete_hides_none_that_does(first: int) -> None:
    for second in range(8):
        played("r" * first + "g" * second + "pp" + "g" * 6 + "ppp", two=True)


def test_so_it_is_where_one_of_them_dies_or_a_third_deletes_too(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - it has to be repeatable
    for _ in range(150):
        two = draw.random() < 0.5
        order = "".join(draw.choices("prg" if two else "pr", k=26))
        dies = draw.choice([("", 0), ("p", draw.randrange(5)), ("r", draw.randrange(7))])
        played(order, two=two, dies=dies)
