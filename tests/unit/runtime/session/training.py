"""A small training on a session in this process: for the tests of this folder."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from perdure import Session
from perdure.loop.leaving import Exit
from tests.support.undrawn import Script

Join = Callable[..., Session]


def samples(size: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(size, 4, generator=generator), torch.arange(size))


def other_draws() -> tuple[float, float]:
    return random.random(), np.random.rand()  # noqa: S311


class Training:
    """A small training on a session; `stop` sends SIGTERM right before it reports that step."""

    def __init__(self, session: Session, *, seed: int = 0, loader: str | None = "train") -> None:
        self.session = session
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        session.register(net=self.net, optimizer=self.optimizer)
        if loader:
            self.batches = session.loader(samples(), 8, name=loader)
        self.begun: list[float] = []
        self.draws: list[tuple[float, float, float]] = []

    def run(self, epochs: int = 2, stop: int | None = None) -> Training:
        with self.session:
            for _ in self.session.epochs(epochs):
                self.begun.append(torch.rand(1).item())
                script = Script("Python", "NumPy", "torch")
                for inputs, _ in self.batches:
                    script.goes_on()
                    self.optimizer.zero_grad()
                    self.session.weighted(self.net(inputs).square().mean()).backward()
                    self.optimizer.step()
                    self.draws.append((torch.rand(1).item(), *other_draws()))
                    if stop == self.session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    script.calls()
                    self.session.step()
                script.goes_on()
        return self

    def left(self, **options: Any) -> Training:
        with pytest.raises(Exit) as exit_:
            self.run(**options)
        told = self.session._core.run.settings.report_fd is not None
        assert exit_.value.code == (0 if told else 75)  # an agent gets the outcome in words
        return self

    @property
    def weights(self) -> list[float]:
        return [value.item() for parameter in self.net.parameters() for value in parameter.flatten()]
