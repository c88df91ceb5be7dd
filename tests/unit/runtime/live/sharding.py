"""The trainers' script in test_sharded_live: a model that FSDP2 shards, as torch's documentation says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import perdure
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.scripts import Ended, take_part
from tests.unit.runtime.session.sharded import BATCH, OPTIMIZERS, Net, dataset


def train(
    root: str,
    *,
    optimizer: str = "foreach",
    epochs: int = 3,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains to the end, with a hand-over in the step behind `wait_at`, or behind the one that an offer comes in."""
    torch.set_num_threads(1)
    offers = dict(again)
    with Session.from_env(root) as session:
        mesh = init_device_mesh("cpu", (session.world,), mesh_dim_names=("dp",))
        torch.manual_seed(1)
        net: Any = Net(23)
        for block in net.blocks:
            fully_shard(block, mesh=mesh, **(options or {}))
        fully_shard(net, mesh=mesh, **(options or {}))
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        steps_by = OPTIMIZERS[optimizer](trained)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(steps_by, [8, 14], 0.1)
        session.register(model=net, optimizer=steps_by, scheduler=scheduler)
        ended = Ended()
        session._core.run.reporter.add(ended)
        losses: dict[int, list[float]] = {}
        first: list[int] | None = None
        began = None
        try:
            for _ in session.epochs(epochs):
                for (words,) in session.loader(dataset(), BATCH):
                    began = session.steps_done if began is None else began
                    first = first or ids(net, steps_by, mesh)
                    loss = session.weighted(cross_entropy(net(words).flatten(0, 1), words.roll(1, 1).flatten()))
                    loss.backward()
                    norm: Any = clip_grad_norm_(trained, 1.0)
                    steps_by.step()
                    steps_by.zero_grad()
                    losses[session.steps_done] = [loss.item(), norm.full_tensor().item()]
                    take_part(session, wait_at, offers)
                    session.step()
                    scheduler.step()
        except Exit:
            return {"left": session.steps_done, "began": began, "losses": losses}
        return {
            "began": began,
            "rank": session.rank,
            "world": session.world,
            "steps": session.steps_done,
            "losses": losses,
            "own": own(net, steps_by),
            "rate": steps_by.param_groups[0]["lr"],
            "same objects": first == ids(net, steps_by, mesh),
            "run": perdure.progress(session).run,
        }


def ids(net: nn.Module, optimizer: torch.optim.Optimizer, mesh: Any) -> list[int]:
    """The script's own objects."""
    reshard(net)
    return list(map(id, (mesh, *net.parameters(), *optimizer.param_groups)))


def own(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A hash of all that this rank holds, and of where it lies in the whole."""
    reshard(net)
    state = [value for values in optimizer.state.values() for value in values.values()]
    found = hashlib.sha256()
    for tensor in (*net.parameters(), *net.buffers(), *state):
        local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        found.update(f"{tuple(tensor.shape)} {tuple(local.shape)}".encode())
        found.update(local.detach().contiguous().view(-1).numpy().tobytes())
    return found.hexdigest()[:16]


def reshard(net: nn.Module) -> None:
    for part in net.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
