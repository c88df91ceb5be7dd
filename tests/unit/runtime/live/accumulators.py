"""A script that adds to accumulators above, between and below its batch loops, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure
from perdure.loop.leaving import Exit
from perdure.loop.position.accumulating import Accumulator
from perdure.session.session import Session
from tests.unit.runtime.live.scripts import network, take_part

VALID = 9


def numbered(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(size)
    return TensorDataset(torch.randn(size, 8, generator=generator), torch.arange(size))


def train(
    root: str,
    *,
    sizes: Sequence[int],
    batch: int = 6,
    epochs: int = 4,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    shards: bool = False,
) -> dict[str, Any]:
    """The values read at each place; `sizes` are those of the two datasets that an epoch trains on. With `shards` the
    model is sharded by FSDP2."""
    torch.set_num_threads(1)
    read: dict[str, Any] = {}
    offers = dict(again)
    with Session.from_env(root, deterministic=True) as session:
        net = network("plain")
        wrapped = sharded(net, session.world) if shards else session.wrap(net)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer)
        valid = session.loader(numbered(VALID), 4, name="valid", shuffle=False)
        scores, long = perdure.accumulator(session, "scores"), perdure.accumulator(session, "long")

        def evaluate() -> None:
            for _, ids in valid:
                count(ids, scores)

        with suppress(Exit):
            for epoch in session.epochs(epochs):
                evaluate()
                for number, size in enumerate(sizes):
                    for inputs, ids in session.loader(numbered(size), batch, name=f"train{number}"):
                        optimizer.zero_grad()
                        session.weighted(cross_entropy(wrapped(inputs), ids % 3)).backward()
                        optimizer.step()
                        count(ids, scores)
                        count(ids, long)
                        take_part(session, wait_at, offers)
                        session.step()
                    read[f"{epoch}/{number}"] = scores.sum()
                    evaluate()
                read[f"{epoch}/rest"] = scores.sum()
            read["end"] = long.sum()
    return {"read": read}


def sharded(net: nn.Module, world: int) -> nn.Module:
    fully_shard(net, mesh=init_device_mesh("cpu", (world,)))
    return net


def count(ids: torch.Tensor, scores: Accumulator) -> None:
    """Sample by sample, so that the sums do not depend on which rank has which."""
    for sample in ids.tolist():
        scores.add(loss=0.1 * sample, n=1)
