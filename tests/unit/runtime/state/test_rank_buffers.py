"""Buffers that two ranks have computed, each from its own samples: whether their difference is reported."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from perdure import Session
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.session.training import samples

Wrap = Callable[[Session, nn.Module], nn.Module]
STATISTICS = "net.1.running_mean, net.1.running_var: a resumed run gets rank 0's"
AVERAGED = "average.module.1.running_mean, average.module.1.running_var: a resumed run gets rank 0's"
WRAPS: dict[str, tuple[Wrap, str]] = {
    "wrapped": (lambda session, net: session.wrap(net), ""),
    "of-the-scripts-own": (lambda _, net: DistributedDataParallel(net), ""),
    "not-spread": (lambda session, net: session.wrap(net, broadcast_buffers=False), STATISTICS),
    "not-spread-of-the-scripts-own": (lambda _, net: DistributedDataParallel(net, broadcast_buffers=False), STATISTICS),
    "averaged": (lambda session, net: session.wrap(net), AVERAGED),
}


def train(root: str, kind: str) -> list[str]:
    """Trains and saves three times; returns the messages about buffers."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), Session.from_env(root) as session:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
        model = WRAPS[kind][0](session, net)
        average = AveragedModel(net) if kind == "averaged" else None
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        session.register(net=net, optimizer=optimizer)
        if average:
            session.register(average=average)
        for _ in session.epochs(1):
            for inputs, _ in session.loader(samples(), 16, drop_last=True):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                if average:
                    average.update_parameters(net)
                session.step()
                session.save()
    return [line for line in said.getvalue().splitlines() if "differ" in line]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder: Path = tmp_path_factory.mktemp("buffers")
    return play(
        folder, [Scene(kind, "train", 2, {"root": str(folder / kind), "kind": kind}, {}, __name__) for kind in WRAPS]
    )


@pytest.mark.parametrize("kind", WRAPS)
def test_buffers_that_differ_are_named_once_unless_the_forward_pass_spreads_them(
    played: dict[str, list[Any]], kind: str
) -> None:
    said, words = played[kind], WRAPS[kind][1]
    assert len(said[0]) == bool(words), said
    assert all(f"between rank 0 and rank 1 these differ: {words}" in line for line in said[0])
    assert all("by a broadcast from rank 0; on GPUs SyncBatchNorm" in line for line in said[0])
    assert said[1] == []
