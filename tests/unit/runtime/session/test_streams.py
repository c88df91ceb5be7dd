"""Streams of a script's own beside a loader: zip() asks from left to right, so the loader has to stand first."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from perdure import Session
from perdure.errors import UserError
from perdure.loop.data.loader import Loader
from perdure.loop.leaving import Exit
from tests.unit.runtime.session.training import Join, samples


class Words:
    """Numbers, from where it stands; its own iterator."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Generated(Words):
    """Its iterator is a generator's."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield next(self)


class Kept(Words):
    """It keeps its iterator, as torchdata's StatefulDataLoader does."""

    def __iter__(self) -> Iterator[int]:
        self._iterator = iter(map(self._counted, itertools.repeat(1)))
        return self._iterator

    def _counted(self, _: int) -> int:
        return next(self)


def drawn(stream: Words) -> Iterator[int]:
    while True:
        yield next(stream)


Together = Callable[[Words, Loader], Any]
LATE: dict[str, Together] = {
    "zip": zip,
    "zip_longest": lambda stream, loader: itertools.islice(itertools.zip_longest(stream, loader), 5),
    "enumerate": lambda stream, loader: (pair for _, pair in enumerate(zip(stream, loader, strict=False))),
    "of-a-map": lambda stream, loader: zip(map(int, stream), loader, strict=False),
    "inner": lambda stream, loader: zip(zip(range(99), stream, strict=False), loader, strict=False),
    "of-a-function": lambda stream, loader: zip(drawn(stream), loader, strict=False),
}


def train(session: Session, stream: Words, together: Together, *, stop: int = 0) -> list[tuple[int, int]]:
    """The pairs of a step's first sample and the stream's number."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    pairs: list[tuple[int, int]] = []
    with session:
        session.register(net=net, optimizer=optimizer, stream=stream)
        loader = session.loader(samples(), 8)
        for _ in session.epochs(1):
            for both in together(stream, loader):
                (inputs, numbers), number = both if isinstance(both[0], list) else (both[1], both[0])
                optimizer.zero_grad()
                net(inputs).square().mean().backward()
                optimizer.step()
                pairs.append((int(numbers[0]), int(number)))
                if len(pairs) == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
    return pairs


@pytest.mark.parametrize("stream", [Words, Generated, Kept])
@pytest.mark.parametrize("together", LATE.values(), ids=LATE)
def test_a_stream_that_zip_asks_before_the_loader_is_refused_by_name(
    join: Join, stream: type[Words], together: Together
) -> None:
    with pytest.raises(UserError, match=r"'stream' comes before loader 'train' in zip\(\).*put loader 'train' first"):
        train(join(), stream(), together)


@pytest.mark.parametrize("stream", [Words, Generated, Kept])
def test_a_stream_behind_the_loader_goes_on_where_the_run_has_stopped(join: Join, stream: type[Words]) -> None:
    def behind(words: Words, loader: Loader) -> Any:
        return zip(loader, words, strict=False)

    pairs: list[tuple[int, int]] = []

    def noted(words: Words, loader: Loader) -> Iterator[Any]:
        for both in behind(words, loader):
            pairs.append((int(both[0][1][0]), int(both[1])))
            yield both

    with pytest.raises(Exit):
        train(join(), stream(), noted, stop=2)
    train(join(), stream(), noted)
    assert [number for _, number in pairs] == [1, 2, 3, 4, 5]
    assert len({sample for sample, _ in pairs}) == 5


def test_an_unregistered_iterator_beside_the_loader_is_not_reported(join: Join) -> None:
    other = Words()
    assert len(train(join(), Words(), lambda _, loader: zip(other, loader, strict=False))) == 5


class Scale:
    """As torch's GradScaler and schedulers: nothing to iterate, and attributes that are None."""

    def __init__(self) -> None:
        self.cached = None
        self.scale = 1.0

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


def scaled(loader: Loader, scale: Scale) -> Iterator[Any]:
    for inputs, numbers in loader:
        yield inputs * scale.scale, numbers


@pytest.mark.parametrize("kind", ["one", "of-a-function", "with-a-stream"])
def test_two_loaders_side_by_side_stop_at_the_first_and_nothing_else_is_ahead(join: Join, kind: str) -> None:
    triples: list[tuple[int, int, int]] = []

    def train_both(*, stop: int = 0) -> None:
        session, stream, scale = join(), Words(), Scale()
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        with session:
            session.register(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), scale=scale, stream=stream)
            left = session.loader(samples(), 8, name="left", shuffle=False)
            right = session.loader(samples(), 8, name="right", shuffle=False)
            between = stream if kind == "with-a-stream" else itertools.repeat(0)
            first = left if kind == "one" else scaled(left, scale)
            for _ in session.epochs(1):
                for (_, ones), number, (_, others) in zip(first, between, right, strict=False):
                    triples.append((int(ones[0]), int(number), int(others[0])))
                    if len(triples) == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()

    with pytest.raises(Exit):
        train_both(stop=2)
    train_both()
    numbers = range(1, 6) if kind == "with-a-stream" else [0] * 5
    assert triples == [(8 * step, number, 8 * step) for step, number in enumerate(numbers)]
