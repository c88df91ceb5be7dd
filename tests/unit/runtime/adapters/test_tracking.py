"""A history in a tracker is one: no step twice and none missing, whatever ends the processes that write it."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import perdure
from perdure import UserError
from perdure.adapters import tracking
from perdure.adapters.tracking import MEMBERS, Tracker
from perdure.checkpoint.state import NewCommit
from perdure.loop.hooks import HookName
from perdure.loop.leaving import Exit
from perdure.session.session import core_of
from perdure.testing import processes
from tests.support.forked import forked_ranks, run_forked
from tests.unit.runtime.adapters.tracked_training import EPOCHS, STEPS, train
from tests.unit.runtime.live.jobs import EVERY, Job
from tests.unit.runtime.live.nursery import Nursery
from tests.unit.runtime.session.training import Join, samples

SECONDS = 120.0
History = dict[str, list[tuple[int, float]]]


def tensorboard_history(folder: Path) -> History:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def mlflow_history(folder: Path) -> History:
    """The files of MLflow's file store: a line for each value, `TIME VALUE STEP`."""
    (run,) = (path.parent for path in folder.glob("[0-9]*/*/metrics"))
    return {
        path.name: [(int(line.split()[2]), float(line.split()[1])) for line in path.read_text().splitlines()]
        for path in (run / "metrics").iterdir()
    }


def wandb_history(folder: Path) -> History:
    """What wandb would send later: a file of each process of the training, in the format of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len({file.stem for file in files}) == 1, "one run"
    found: History = {}
    for record in (Record.FromString(record) for file in files for record in _records(file.read_bytes())):
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append((items["_step"], value))
    return found


def _records(log: bytes, block: int = 1 << 15, head: int = 7) -> Iterator[bytes]:
    """After wandb's own head: checksum, length and kind of each part (whole, first, middle or last) of a record."""
    at, parts = head, b""
    while at + head <= len(log):
        if block - at % block < head:
            at += block - at % block
        _, length, kind = struct.unpack_from("<IHB", log, at)
        parts += log[at + head : at + head + length]
        at += head + length
        if kind in (1, 4):
            yield parts
            parts = b""


READERS = {"tensorboard": tensorboard_history, "mlflow": mlflow_history, "wandb": wandb_history}


def program(folder: Path, kind: str, killed: str = "") -> int:
    """One process of the training; returns its exit status."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ |= {"PERDURE_EVERY_STEPS": "3", "OMP_NUM_THREADS": "1"}
    command = ["-m", "tests.unit.runtime.adapters.tracked_training", str(folder / "root"), f"{kind} {folder}/history"]
    done = run_forked([*command, killed], cwd=Path.cwd(), env=environ, seconds=SECONDS)
    assert done.returncode in {0, 75, -9}, done.stderr
    return done.returncode


@pytest.mark.parametrize(
    ("kind", "troubles"),
    [
        ("tensorboard", ["3", "6 before", "9", "11 asked"]),
        pytest.param("tensorboard", ["5 asked", "10", "15"], marks=pytest.mark.chaos),
        ("mlflow", ["3 before", "6", "8 asked", "15"]),
    ],
)
def test_a_history_has_each_step_once_over_kills_and_leaves(tmp_path: Path, kind: str, troubles: list[str]) -> None:
    for trouble in troubles:
        assert program(tmp_path, kind, trouble) == (75 if trouble.endswith("asked") else -9)
    assert program(tmp_path, kind) == 0
    found = READERS[kind](tmp_path / "history")
    assert {name: [step for step, _ in values] for name, values in found.items()} == {
        "loss": list(range(1, STEPS + 1)),
        "done": list(range(1, STEPS + 1)),
        "epoch": [STEPS // EPOCHS * number for number in range(1, EPOCHS + 1)],
    }
    assert found["done"] == [(step, float(step)) for step in range(1, STEPS + 1)]
    assert program(tmp_path, kind) == 0, "a finished training adds nothing"
    assert READERS[kind](tmp_path / "history") == found


def test_the_ranks_of_a_run_and_of_a_smaller_one_write_one_history(tmp_path: Path) -> None:
    arguments = ("-m", "tests.unit.runtime.adapters.tracked_training")
    place = f"tensorboard {tmp_path}/history"
    with forked_ranks():
        for ranks, exit_at in ((2, 4), (1, None)):
            ended = processes(ranks, *arguments, "unused", place, "", root=tmp_path / "root", exit_at=exit_at)
    assert ended.outcome == "completed"
    found = tensorboard_history(tmp_path / "history")
    assert found["done"] == [(step, float(step)) for step in range(1, ended.step + 1)]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    package = "tests.unit.runtime.adapters"
    modules = ("perdure.session.session", f"{package}.tracked_training")
    nursery = Nursery(tmp_path_factory.mktemp("live"), package, modules, seconds=SECONDS)
    yield nursery
    nursery.close()


@pytest.mark.parametrize("kind", READERS)
def test_a_history_has_each_step_once_over_live_hand_overs(nursery: Nursery, kind: str) -> None:
    """Rank 0 is replaced twice, by a newcomer that joins between two commits."""
    history, environ = nursery.folder / kind, {"PERDURE_EVERY_STEPS": "3"}
    history.mkdir()
    script, place = "tracked_training.moved", f"{kind} {history}"
    job = Job(nursery, f"tracked-{kind}", 2, environ=environ, script=script, place=place, again=[])
    results = job.replaced(0, 1, 0).begin().end()
    assert [entry.get("takesOver") for entry in job.log if entry["kind"] == "Opened"] == [None, 1, 2, 3]
    assert {name: found["left"] // EVERY for name, found in results.items() if "left" in found} == {
        "old0": 1,
        "old1": 2,
        "new2": 3,
    }
    found = READERS[kind](history)
    for name in ("loss", "done"):
        assert [step for step, _ in found[name]] == list(range(1, len(found[name]) + 1)), name
    assert found["done"] == [(step, float(step)) for step in range(1, len(found["loss"]) + 1)]
    assert [value for _, value in found["epoch"]] == list(range(EPOCHS))


class Kept:
    """A sink of a user's own, in memory, which cannot be reached for a while."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.history: list[tuple[int, Mapping[str, float | str]]] = []
        self.keys: list[str] = []

    def open(self, key: str) -> None:
        self.keys.append(key)

    def last_step(self, name: str) -> int:
        return max((step for step, values in self.history if name in values), default=-1)

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the server is away")
        self.history.append((step, dict(values)))

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_what_a_tracker_cannot_take_waits_for_a_later_commit(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.0)
    kept = Kept(fails=2)
    train(join(EVERY_STEPS="3"), kept)
    assert [step for step, _ in kept.history] == list(range(1, STEPS + 1))


def test_what_a_commit_that_is_made_in_the_background_does_not_hold_is_not_written_with_it(join: Join) -> None:
    kept = Kept()
    session = join(EVERY_STEPS="3", BACKGROUND_BYTES="0")
    newest: list[tuple[int, int, int]] = []

    def committed(commit: NewCommit) -> None:
        newest.append((max(step for step, _ in kept.history), commit.step, session.steps_done))

    train(session, kept, committed=committed)
    assert any(step < done for _, step, done in newest), "a step was done beside an upload"
    assert all(written == step for written, step, _ in newest)


def test_a_tracker_that_fails_is_left_alone_for_a_minute_and_asked_once_more_at_the_end(join: Join) -> None:
    kept, seen = Kept(fails=1), list[int]()
    train(join(EVERY_STEPS="3"), kept, committed=lambda commit: seen.append(len(kept.history)))
    assert seen == [0] * len(seen)
    assert [step for step, _ in kept.history] == list(range(1, STEPS + 1))


def test_what_waits_is_bounded(join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tracking, "MOST_IN_ALL", 100)
    tracker = Tracker(join(), Kept())
    for number in range(100):
        tracker.log(loss=float(number))
    waiting = tracker.state_dict()["waiting"]
    assert len(waiting) <= 100
    assert waiting.endswith('{"loss": 99.0}]\n')
    assert "oldest" in caplog.text


def test_a_live_hand_over_without_a_commit_writes_nothing(join: Join) -> None:
    """The hooks `leaving` are called, and the steps since the newest commit may still be made again."""
    kept, session = Kept(), join()
    tracker = Tracker(session, kept)
    with session:
        for _ in session.epochs(1):
            for _ in session.loader(samples(), 8):
                session.step()
                tracker.log(done=session.steps_done)
                core_of(session).run.hooks.run(HookName.LEAVING, "handed over")
                assert kept.history == []


def test_a_key_that_perdure_has_not_made_is_refused(join: Join) -> None:
    tracker = Tracker(join(), Kept())
    with pytest.raises(UserError, match="has not made"):
        tracker.load_state_dict({"key": "' OR '1'='1", "waiting": "", "members": ""})


def test_nothing_is_written_before_its_commit(join: Join) -> None:
    kept = Kept()
    seen: list[tuple[int, int]] = []
    session = join(EVERY_STEPS="4")
    session.on("committed", lambda commit: seen.append((commit.step, len(kept.history))))
    train(session, kept)
    assert seen == [(4, 0), (8, 4), (12, 8), (15, 12)]


def test_a_resumed_run_continues_the_same_history_and_marks_where_members_changed(join: Join) -> None:
    kept = Kept()
    for member, node, asked in (("a-0", "n1", "4 asked"), ("a-1", "n2", "")):
        try:
            train(join(EVERY_STEPS="3", MEMBER=member, NODE=node), kept, asked)
        except Exit:
            assert asked
    assert len(set(kept.keys)) == 1
    marks = [(step, values[MEMBERS]) for step, values in kept.history if MEMBERS in values]
    assert marks == [(6, "left: a-0 on n1; joined: a-1 on n2")]


@pytest.mark.parametrize(("values", "words"), [({"loss": "low"}, "is no number"), ({}, "nothing is given")])
def test_what_is_no_number_is_refused(join: Join, values: dict[str, Any], words: str) -> None:
    tracker = Tracker(join(), Kept())
    with pytest.raises(UserError, match=words):
        tracker.log(**values)


def test_a_checkpoint_without_a_tracker_begins_a_history(join: Join) -> None:
    def run(session: perdure.Session, after_step: Callable[[], None]) -> None:
        with session:
            for _ in session.epochs(1):
                for _ in session.loader(samples(), 8):
                    session.step()
                    after_step()

    with pytest.raises(Exit):
        run(join(), lambda: os.kill(os.getpid(), signal.SIGTERM))
    kept, session = Kept(), join()
    tracker = Tracker(session, kept)
    run(session, lambda: tracker.log(done=session.steps_done))
    assert [step for step, _ in kept.history] == [3, 4, 5]


def test_wandb_offline_gets_one_run_id(join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from perdure.adapters.tracking.wandb import WandB

    monkeypatch.setenv("WANDB_SILENT", "true")
    for asked in ("4 asked", ""):
        into = WandB("perdure", mode="offline", dir=str(tmp_path / "files"))
        try:
            train(join(EVERY_STEPS="3"), into, asked)
        except Exit:
            assert asked
    wandb.teardown()  # its own process would stay as long as this one
    runs = sorted((tmp_path / "files" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert len({path.name.split("-")[3] for path in runs}) == 1
