"""What ranks do for the checks of AdaptDL and MindSpore: small trainings as a user would write them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import perdure
from perdure import Session, UserError
from perdure.loop.leaving import Exit


@contextmanager
def joined(root: str, **options: Any) -> Iterator[Session]:
    """A run that may be left: its process plays the next scene."""
    session = Session.from_env(root, **options)
    try:
        with suppress(Exit), session:
            yield session
    finally:
        session.close()


class Numbers(Dataset[int]):
    """Samples that are their own numbers."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> int:
        return number


class Value:
    """A state object with one value."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def states(root: str) -> dict[str, Any]:
    """Two state objects are restored, then changed, on each rank in another way."""
    first, second = Value(10), Value(20)
    found = {}
    with joined(root) as session:
        session.register(first=first, second=second)
        perdure.restore(session)
        found["begun"] = [first.value, second.value]
        for _ in session.epochs(2):
            for _ in session.steps(3):
                first.value += 1 + session.rank
                session.step()
    return found


def accumulated(root: str) -> list[dict[str, float]]:
    """The values read from an accumulator above the steps of an epoch, and below them."""
    read = []
    with joined(root) as session:
        session.register(state=Value(0))
        accumulator = perdure.accumulator(session)
        for _ in session.epochs(1):
            accumulator["a"] += 15
            accumulator["b"] -= 5
            read.append(accumulator.sum())
            for _ in session.steps(6):
                accumulator["a"] += session.rank + 1
                session.step()
            read.append(accumulator.sum())
    return read


def epochs(root: str, *, leave: int | None = None) -> list[tuple[int, int | None, int]]:
    """Of each epoch that is trained, and behind them: its number, the current one and how many are finished."""
    seen = []
    with joined(root) as session:
        for epoch in perdure.remaining_epochs_until(10):
            seen.append((epoch, perdure.current_epoch(), perdure.finished_epochs()))
            for _ in session.steps(3):
                session.step()
                if epoch == leave:
                    os.kill(os.getpid(), signal.SIGTERM)
        seen.append((-1, perdure.current_epoch(), perdure.finished_epochs()))
    return seen


def batches(root: str, *, size: int) -> list[list[int]]:
    """The numbers in each batch that this rank has trained on, of one epoch of 100."""
    seen = []
    with joined(root) as session:
        for _ in session.epochs(1):
            for numbers in session.loader(Numbers(100), size):
                seen.append(numbers.tolist())
                session.step()
    return seen


def broken(root: str) -> dict[str, Any]:
    """How many batches there are after a loop that was left by break; with steps the samples it had are used."""
    found: dict[str, Any] = {}
    with joined(root) as session:
        for epoch in session.epochs(2):
            look, train = session.loader(Numbers(100), 10, name="look"), session.loader(Numbers(100), 10)
            next(iter(look))
            found["looked"] = len(list(look))
            if epoch == 0:
                for _ in train:
                    session.step()
                    break
            count = f"epoch {epoch}"
            for found[count], _ in enumerate(train, 1):
                session.step()
    return found


SIZES = (9, 15, 25)


def samples(root: str) -> list[dict[int, list[int]]]:
    """The numbers that this rank gets of data sets of several sizes, one at a time, in each of two epochs."""
    seen: list[dict[int, list[int]]] = []
    with joined(root) as session:
        for _ in session.epochs(2):
            seen.append({})
            for size in SIZES:
                seen[-1][size] = []
                for numbers in session.loader(Numbers(size), session.world, name=f"of-{size}"):
                    seen[-1][size] += numbers.tolist()
                    session.step()
    return seen


def collectives(root: str) -> dict[str, Any]:
    with joined(root) as session:
        rank = session.rank
        told = [perdure.gather(session, [which, rank]) for which in range(3)]
        return {
            "sum": perdure.all_reduce(session, rank),
            "union": sorted(set().union(*perdure.gather(session, [rank, rank + 1]))),
            "told": told[::-1],
            "first": perdure.gather(session, f"of rank {rank}")[0],
        }


def profile(root: str, *, fails: int | None = None) -> dict[str, Any]:
    """Which steps each number of ranks has done, as the script itself keeps it."""
    with suppress(ValueError), joined(root) as session:
        for _ in session.epochs(1):
            for i in session.steps(8):
                own = session.state.setdefault(str(session.world), [])
                own.append(i)
                if i == fails:
                    raise ValueError("the node is gone")
                session.step()
        return dict(session.state)
    return {}


class Lines(logging.Handler):
    """Keeps the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record.getMessage())


def requested(root: str, *, file: str) -> dict[str, Any]:
    """A training whose file asks from its first step on."""
    lines, log = Lines(), logging.getLogger("perdure")
    Path(file).write_text('{"GracefulExit": 1}')
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        with joined(root, exit_file=file) as session:
            torch.manual_seed(0)
            model = session.wrap(nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            session.register(model=model, optimizer=optimizer)
            for _ in session.epochs(100):
                for _ in session.steps(4):
                    optimizer.zero_grad()
                    model(torch.ones(2, 4)).sum().backward()
                    optimizer.step()
                    session.step()
        return {"left": session.steps_done, "said": lines.kept}
    finally:
        log.removeHandler(lines)


def named_twice(root: str) -> str:
    with joined(root) as session:
        session.register(state=Value(1))
        try:
            session.register(state=Value(2))
        except UserError as error:
            return str(error)
    return "nothing"
