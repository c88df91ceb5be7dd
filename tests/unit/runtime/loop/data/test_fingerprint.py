"""Another dataset under the same name: between runs and between ranks it is said, and looking changes nothing."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

from perdure import Session
from perdure.loop.data import fingerprint
from perdure.loop.leaving import Exit
from perdure.loop.position.datasets import STATE, Datasets
from tests.support.covering import covering
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.session.training import Join, samples

ANOTHER = "is another one than that of the checkpoint: positions then mean other samples: seed a random_split"


def split(seed: int) -> Subset[Any]:
    return random_split(samples(50), [40, 10], generator=torch.Generator().manual_seed(seed))[0]


def train(
    session: Session, dataset: Any, *, stop: int = 0, batch: int = 8, epochs: int = 2, seen: Any = None, **options: Any
) -> None:
    """Trains a small net; `seen` gets each batch."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with session:
        model = session.wrap(net)
        session.register(net=net, optimizer=optimizer)
        for _ in session.epochs(epochs):
            for inputs, *rest in session.loader(dataset, batch, **options):
                if seen is not None:
                    seen.append((inputs.tolist(), *rest, torch.rand(1).item(), random.random(), np.random.rand()))  # noqa: S311
                optimizer.zero_grad()
                session.weighted(model(inputs).square().mean()).backward()
                optimizer.step()
                if session.steps_done + 1 == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()


def said_of(capfd: pytest.CaptureFixture[str], word: str) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if word in line]


@pytest.mark.parametrize("stop", [2, 5], ids=["within-an-epoch", "at-its-end"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_gets_another_split_than_the_one_before_says_so_once(
    join: Join, capfd: pytest.CaptureFixture[str], stop: int, workers: int
) -> None:
    with pytest.raises(Exit):
        train(join(), split(1), stop=stop, num_workers=workers)
    assert said_of(capfd, "sample") == []
    train(join(), split(2), num_workers=workers)
    (line,) = said_of(capfd, "another one")
    assert "loader 'train': sample 0 " in line
    assert ANOTHER in line


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"fingerprint": False}], ids=str)
def test_nothing_is_reported_of_the_same_dataset_or_where_reports_are_off(
    join: Join, capfd: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    with pytest.raises(Exit):
        train(join(), split(1), stop=2, **options)
    train(join(), split(2 if "fingerprint" in options else 1), **options)
    assert said_of(capfd, "another one") == []


class Grows(Dataset[Any]):
    """Its samples are of another size in each epoch, as in progressive resizing."""

    def __init__(self) -> None:
        self.size = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        return torch.full((4,), float(number + self.size))


@pytest.mark.parametrize(("stop", "workers"), covering([5, 6, 7, 8, 9], [0, 1]))
def test_nothing_is_said_of_a_dataset_that_the_script_sets_by_the_epoch(
    join: Join, capfd: pytest.CaptureFixture[str], stop: int, workers: int
) -> None:
    """Only at the end of the first epoch it cannot be known yet."""
    for leave in (stop, None):
        with contextlib.suppress(Exit), join() as session:
            session.register(net=nn.Linear(4, 1))
            grows = Grows()
            for epoch in session.epochs(4):
                grows.size = epoch
                for _ in session.loader(grows, 8, num_workers=workers):
                    if leave == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
    assert session.steps_done == 12
    assert said_of(capfd, "another one") == []


@pytest.mark.parametrize(("when", "kept"), covering([(3, 0), (3, 1), (6, 0), (9, 1)], [False, True]))
def test_a_dataset_that_a_body_changes_for_the_next_epochs_is_reported_where_a_resumed_run_begins_with_another(
    join: Join, capfd: pytest.CaptureFixture[str], when: tuple[int, int], *, kept: bool
) -> None:
    """As pseudo-labels and curricula do, after the first of three epochs or more; it leaves between two epochs."""
    stop, workers = when
    for leave in (stop, None):
        with contextlib.suppress(Exit), join() as session:
            session.register(net=nn.Linear(4, 1))
            grows = Grows()
            for epoch in session.epochs(4):
                if kept:
                    grows.size = session.state.get("size", 0)
                for _ in session.loader(grows, 8, num_workers=workers):
                    session.step()
                if not epoch:
                    grows.size = session.state["size"] = 5
                if leave == session.steps_done:
                    os.kill(os.getpid(), signal.SIGTERM)
    assert session.steps_done == 12
    said = said_of(capfd, "another one")
    assert len(said) == (not kept)
    assert all("is another one than that of the checkpoint: the script changes this dataset" in line for line in said)


def test_nothing_is_said_of_a_dataset_that_a_body_changes_and_each_epoch_sets_again(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    """At the end of the first epoch it cannot be known yet."""
    for leave in (6, None):
        with contextlib.suppress(Exit), join() as session:
            session.register(net=nn.Linear(4, 1))
            grows = Grows()
            for _ in session.epochs(4):
                grows.size = 0
                for _ in session.loader(grows, 8):
                    session.step()
                    grows.size += 1
                if leave == session.steps_done:
                    os.kill(os.getpid(), signal.SIGTERM)
    assert session.steps_done == 12
    assert said_of(capfd, "another one") == []


@pytest.mark.parametrize("stop", [3, 6])
def test_nothing_is_said_of_samples_that_are_redrawn_in_each_epoch(
    join: Join, capfd: pytest.CaptureFixture[str], stop: int
) -> None:
    for leave in (stop, None):
        with contextlib.suppress(Exit):
            train(join(), Augmented(), stop=leave or 0)
    assert said_of(capfd, "another one") == []


@pytest.mark.parametrize("above", [True, False], ids=["above-the-loop", "in-each-step"])
def test_a_dataset_that_the_script_changes_by_the_step_is_reported_with_its_own_remedy(
    join: Join, capfd: pytest.CaptureFixture[str], above: bool
) -> None:
    """It leaves in the middle of its second epoch; values set above the batch loop read as they did there, too."""
    for leave in (5, None):
        with contextlib.suppress(Exit), join() as session:
            session.register(net=nn.Linear(4, 1))
            grows = Grows()
            for epoch in session.epochs(4):
                if above:
                    grows.size = 3 * epoch
                for _ in session.loader(grows, 8):
                    if leave == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                    grows.size = session.steps_done
    assert session.steps_done == 12
    said = said_of(capfd, "another one")
    assert len(said) == (not above)
    assert all("is another one than that of the checkpoint: the script changes this dataset" in line for line in said)


class Augmented(Dataset[Any]):
    """Its samples are other ones each time that they are read."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        return (torch.rand(4) + number,)


class Drawn(Dataset[Any]):
    """Draws what it adds from all three generators."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        return torch.rand(4) + number, random.random(), np.random.rand()  # noqa: S311


class DrawnOfItsOwn(Dataset[Any]):
    """Draws from a generator that no other code knows."""

    def __init__(self) -> None:
        self.rng = random.Random(0)  # noqa: S311

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        return torch.ones(4) * number, self.rng.random()


@pytest.mark.parametrize(("kind", "workers"), [(Drawn, 0), (Drawn, 2), (DrawnOfItsOwn, 0)])
def test_looking_draws_nothing_that_training_would_have_drawn(
    join: Join, tmp_path: Path, kind: type[Dataset[Any]], workers: int
) -> None:
    found: list[list[Any]] = [[], []]
    for seen, looks in zip(found, (True, False), strict=True):
        session = join(ROOT=f"file://{tmp_path}/{looks}")
        train(session, kind(), seen=seen, num_workers=workers, fingerprint=looks)
    assert str(found[0]) == str(found[1])


class Opened(Dataset[Any]):
    """Opens its file where it is read first, as those that must not be shared between processes do."""

    def __init__(self, noted: Path) -> None:
        self._noted = noted

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        with self._noted.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return torch.ones(4) * number, number


def test_a_worker_looks_where_workers_read(join: Join, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    train(join(), Opened(noted), num_workers=1)
    assert str(os.getpid()) not in noted.read_text().split()


def test_a_process_that_others_wait_for_reads_nothing_before_its_first_batch(join: Join, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    reads: list[int] = []
    with join() as session:
        net = nn.Linear(4, 1)
        session.register(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01))
        loader = session.loader(Opened(noted), 8)
        loader.postpone_look()
        for _ in session.epochs(2):
            for number, _ in enumerate(loader):
                if not number:
                    reads.append(len(noted.read_text().splitlines()))
                session.step()
    assert reads == [8, 24 + 2 * fingerprint.PROBES + 8]


def test_a_training_looks_at_its_dataset_in_each_epoch_and_an_evaluation_once(join: Join, tmp_path: Path) -> None:
    with join() as session:
        session.register(net=nn.Linear(4, 1))
        train, valid = (session.loader(Opened(tmp_path / name), 8, name=name, train=name == "t") for name in ("t", "v"))
        for _ in session.epochs(3):
            for _ in train:
                session.step()
            for _ in valid:
                pass
    reads = {name: len((tmp_path / name).read_text().splitlines()) for name in ("t", "v")}
    assert reads == {"t": 3 * (24 + 2 * fingerprint.PROBES), "v": 3 * 24 + 2 * fingerprint.PROBES}


def test_another_batch_size_in_the_middle_of_an_epoch_is_reported(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exit):
        train(join(), samples(), stop=2)
    train(join(), samples(), batch=4)
    (line,) = said_of(capfd, "batch_size is")
    assert "loader 'train': batch_size is 4, and was 8 for the first 16 samples of this epoch" in line


def test_another_batch_size_from_an_epoch_on_is_the_scripts_business(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exit):
        train(join(), samples(), stop=5)
    train(join(), samples(), batch=4)
    assert said_of(capfd, "batch_size is") == []


# What a sample may be.


class Point:
    """An unknown class: only that it is a generator is visible."""


KINDS: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (lambda: torch.arange(4), lambda: torch.arange(4) + 1),
    (lambda: torch.arange(6).view(2, 3).t(), lambda: torch.arange(6).view(3, 2)),
    (lambda: torch.zeros(2, dtype=torch.bfloat16), lambda: torch.zeros(2, dtype=torch.half)),
    (lambda: torch.zeros(()), lambda: torch.zeros(1)),
    (lambda: torch.zeros(2, 0), lambda: torch.zeros(0, 2)),
    (lambda: np.arange(4), lambda: np.arange(4.0)),
    (lambda: np.float32(1), lambda: np.float64(1)),
    (lambda: np.array(["a", None], dtype=object), lambda: np.array(["a"], dtype=object)),
    (lambda: "a", lambda: b"a"),
    (lambda: "\ud800", lambda: "\ud801"),
    (lambda: float("nan"), lambda: float("inf")),
    (lambda: {"a": 1, "b": [2, 3]}, lambda: {"a": 1, "b": [2, 4]}),
    (lambda: (1, 2), lambda: [1, 2]),
    (lambda: [[1], 2], lambda: [[1, 2]]),
    (lambda: (None, True), lambda: (None, 1)),
    (Point, object),
]


@pytest.mark.parametrize(("one", "other"), KINDS)
def test_a_sample_has_one_digest_and_another_one_has_another(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    found = [fingerprint.take(lambda _: make(), [0]) for make in (one, one, other)]  # noqa: B023 - called at once
    assert found[0] == found[1] != {}
    assert fingerprint.different(found[0], found[2]) == "0"


def test_what_reads_differently_each_time_or_not_at_all_is_left_out() -> None:
    counted = itertools.count()

    def read(number: int) -> Any:
        if number == 1:
            raise ValueError("a broken file")
        return next(counted) if number == 2 else number

    assert fingerprint.take(read, [0, 1, 2, 3]).keys() == {"0", "3"}


def test_a_slow_dataset_is_read_once_and_then_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    assert fingerprint.take(str, [0, 1, 2]).keys() == {"0"}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 1000])
def test_the_samples_that_are_looked_at_are_of_the_dataset_and_its_ends_are_among_them(count: int) -> None:
    found = fingerprint.probes(count)
    assert len(found) == len(set(found)) == min(count, fingerprint.PROBES)
    assert (found[0], found[-1]) == (0, count - 1)


# Between ranks.


def on_ranks(root: str, kind: str) -> list[str]:
    """The messages about datasets in a training that saves twice."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(Exit):
        session = Session.from_env(root)
        every = split(1)
        own: dict[str, Any] = {
            "same": every,
            "split": split(session.rank),
            "parts": TensorDataset(*(part[: 40 - 8 * session.rank] for part in samples().tensors)),
        }
        train(session, own[kind], stop=2, batch=16)
    return [line for line in said.getvalue().splitlines() if "loader" in line]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("fingerprints")
    environ = {"PERDURE_CHECK_SECONDS": "0", "PERDURE_EVERY_STEPS": "1"}
    return play(
        folder,
        [
            Scene(kind, "on_ranks", 2, {"root": str(folder / kind), "kind": kind}, environ, __name__)
            for kind in ("same", "split", "parts")
        ],
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("same", ""),
        ("split", "loader 'train': sample 0 is another one on rank 1 than on rank 0: positions then mean"),
    ],
)
def test_ranks_with_different_datasets_are_reported_once(played: dict[str, list[Any]], kind: str, words: str) -> None:
    said = played[kind]
    assert len(said[0]) == bool(words), said
    assert all(words in line for line in said[0])
    assert said[1] == []


def test_a_rank_with_only_its_part_of_the_dataset_is_reported(played: dict[str, list[Any]]) -> None:
    words = (
        "loader 'train': the dataset has 40 samples on rank 0 and 32 on rank 1: give the whole dataset on every rank"
    )
    assert [found["raised"] for found in played["parts"]] == ["UserError"] * 2
    assert all(words in found["message"] for found in played["parts"])


def test_what_a_checkpoint_holds_of_a_loader_not_made_yet_is_kept_on() -> None:
    saved = {STATE: {"later": {"seen": {"0": "digest"}}}}
    datasets = Datasets()
    datasets.load_state_dict(saved)
    assert datasets.state_dict() == saved
