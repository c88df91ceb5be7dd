"""The training of `e2e.bench measuring`: a transformer, and the CPU time of what measures it, step by step.

`python -m e2e.bench.measured_training ROOT PARTS`. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from perdure import Session
from perdure.loop.measuring.gradient_norms import LoneNorms, RankNorms
from perdure.loop.measuring.measurements import EVERY, Measurements
from perdure.state.wrapping import Replica

WORDS, WIDTH, LAYERS, LENGTH, SEQUENCES = 8192, 512, 6, 256, 4
"""SEQUENCES: of one rank in one micro-batch."""
STEPS, WARM_UP, WINDOW = 20, 4, 2 * EVERY
"""All steps, the first ones that do not count, and those of one figure: not all of them are looked at."""


class Sentences(Dataset[Tensor]):
    """Of random words."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Tensor:
        return torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(number))


class Spent:
    """CPU time of all threads in some functions, none of which calls another."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def count(self, owner: Any, *names: str) -> None:
        """Counts these functions of a class."""
        for name in names:
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self._counting():
                found = function(*arguments, **named)
            return self._counted(found) if callable(found) else found

        return call

    @contextmanager
    def _counting(self) -> Iterator[None]:
        begun = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - begun


def network() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), layers, nn.Linear(WIDTH, WORDS))


def unsynchronised(model: nn.Module) -> AbstractContextManager[None]:
    """For a micro-batch that is not the last."""
    return model.no_sync() if isinstance(model, Replica) else nullcontext()


def windows(steps: list[float]) -> list[float]:
    """The sums of whole windows."""
    return [sum(steps[at : at + WINDOW]) for at in range(WARM_UP, len(steps) - WINDOW + 1, WINDOW)]


def main(root: str, parts: int) -> None:
    """Trains, and prints what each step has cost."""
    torch.set_num_threads(1)
    spent, own, whole = Spent(), list[float](), list[float]()
    spent.count(RankNorms, "before_mean")
    spent.count(LoneNorms, "_see_part", "_see_total")
    spent.count(Measurements, "batch_requested", "batch_handed_out", "stepped", "words", "heard")
    with Session.from_env(root) as session:
        net = network()
        model = session.wrap(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        session.register(model=model, optimizer=optimizer)
        sequences = SEQUENCES * session.world * parts
        session._core.run.measure(sequences)  # noqa: SLF001 - what a script asks for
        before = time.process_time()
        for _ in session.epochs(1):
            for number, words in enumerate(session.loader(Sentences(STEPS * sequences), sequences // parts), 1):
                with nullcontext() if number % parts == 0 else unsynchronised(model):
                    outputs = model(words[:, :-1])
                    (cross_entropy(outputs.flatten(0, 1), words[:, 1:].flatten()) / parts).backward()
                if number % parts:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                session.step()
                now = time.process_time()
                own.append(spent.seconds)
                whole.append(now - before)
                before, spent.seconds = now, 0.0
        found: dict[str, Any] = {"own": windows(own), "whole": windows(whole), "tokens": SEQUENCES * LENGTH}
        print(json.dumps(found | {"parameters": sum(one.numel() for one in net.parameters())}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
