"""A training whose gradient noise is known: y = w.x + noise, with weights that stay where they are.

What ranks do in the tests of this folder. Played by tests.unit.runtime.session.ranks.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import perdure
from perdure.group.agreement import CheckpointCall
from perdure.loop.leaving import Exit
from perdure.loop.measuring.measurements import Measurements
from perdure.state.wrapping import Replica
from tests.unit.runtime.session.scenarios import joined

INPUTS = 12
SAMPLES = 16384
BATCH = 256


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    truth, noise = torch.linspace(-1, 1, INPUTS), torch.randn(SAMPLES, generator=generator)
    return TensorDataset(inputs, inputs @ truth + noise)


def network(frozen: bool = False) -> nn.Module:
    net = nn.Linear(INPUTS, 1)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    net.bias.requires_grad_(not frozen)
    return net


def known_scale() -> float:
    """tr S / |G|^2 of the loss's gradient with respect to the weight and the bias, over all samples."""
    inputs, targets = (tensor.double() for tensor in dataset().tensors)
    features = torch.cat([inputs, torch.ones(SAMPLES, 1)], dim=1)
    gradients = -2 * targets[:, None] * features
    mean = gradients.mean(0)
    return float((gradients - mean).square().sum(1).mean() / mean.square().sum())


def train(
    root: str,
    *,
    measures: bool = True,
    batch: int = BATCH,
    epochs: int = 2,
    parts: int = 1,
    scaler: float = 0.0,
    overflows: Sequence[int] = (),
    rate: float = 0.0,
    deterministic: bool = False,
    leaves_at: int | None = None,
    fails_at: int | None = None,
    groups: bool = False,
    beside: bool = False,
    shards: bool = False,
    every: int = 1,
    adapts: bool = False,
) -> dict[str, Any]:
    """Trains, or leaves or fails at a step.

    `parts`: micro-batches of a step. `scaler`: how a GradScaler begins; in the steps `overflows` the loss is infinite.
    `groups`: weight and bias are in groups of their own. `beside`: the model has a layer that no optimizer owns, with a
    gradient a thousand times as large. `shards`: the model is sharded by FSDP2.
    `adapts`: the loader hands out the parts, of which some have one sample more.
    """
    torch.set_num_threads(1)
    with joined(root, deterministic=deterministic) as session:
        net = network()
        model = sharded(net) if shards else session.wrap(Both(net) if beside else net)
        own = [{"params": [net.weight]}, {"params": [net.bias]}] if groups else net.parameters()
        optimizer = torch.optim.SGD(own, lr=rate)
        scaling = torch.amp.GradScaler("cpu", init_scale=scaler, growth_interval=50) if scaler else None
        session.register(model=model, optimizer=optimizer)
        if scaling:
            session.register(scaler=scaling)
        measurements = session._core.run.measure(batch, every) if measures else None
        per_rank = (1, -(-batch // parts))
        batches = (
            session.loader(dataset(), batch, adapt=perdure.Adapt(up_to=batch, per_rank=per_rank))
            if adapts
            else session.loader(dataset(), batch // parts)
        )
        noises: list[float | None] = []
        with suppress(Exit):
            for _ in session.epochs(epochs):
                optimizer.zero_grad()
                for number, (inputs, targets) in enumerate(batches, batches.batch_index + 1):
                    last = number % parts == 0
                    with nullcontext() if last else unsynchronised(model):
                        found = loss(model(inputs), targets)
                        if session.steps_done + 1 in overflows:
                            found = found * float("inf")
                        found = session.weighted(found) / (1 if adapts else parts)
                        (scaling.scale(found) if scaling else found).backward()
                    if not last:
                        continue
                    if scaling:
                        scaling.step(optimizer)
                        scaling.update()
                    else:
                        optimizer.step()
                    optimizer.zero_grad()
                    if session.rank == 0 and leaves_at == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    if fails_at == session.steps_done + 1:
                        raise ValueError("sample 17 has no label")
                    session.step()
                    noises.append(measurements.noise() if measurements else None)
        return {
            **(told(measurements) if measurements else {}),
            "first": noises[0],
            "weights": digest(net),
            "words": len(session._core.run.agreement._vector((0, CheckpointCall.STEP))),
            "hooked": any(bool(one._backward_hooks) for one in net.parameters()),
            "saved": sorted(session._core.run._own_state.state_dict()),
        }


def told(measurements: Measurements) -> dict[str, Any]:
    meter, speed = measurements.meter, measurements.speed()
    kinds = [[one.nodes, one.ranks, one.micro, one.accumulation] for one in measurements.profile.times()]
    groups = [list(pair) for pair in zip(meter.noise_by_group, meter.signal_by_group, strict=True)]
    return {
        "noise": measurements.noise(),
        "steps": meter.steps,
        "groups": groups,
        "kinds": kinds,
        "profiled": speed and speed.profiled,
    }


def sharded(net: nn.Module) -> nn.Module:
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return net


def digest(net: nn.Module) -> str:
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in net.parameters()]
    return hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in parts)).hexdigest()


def unsynchronised(model: nn.Module) -> AbstractContextManager[None]:
    return model.no_sync() if isinstance(model, Replica) else nullcontext()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - targets).square().mean()


class Both(nn.Module):
    """Calls a layer beside the regression whose gradient is large."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.other = net, nn.Linear(INPUTS, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs) + 1e3 * (self.other(inputs) - self.other(inputs).detach())
        return outputs
