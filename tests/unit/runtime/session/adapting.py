"""Scenarios of test_acting, for several ranks: see tests.unit.runtime.session.ranks."""

# No `from __future__ import annotations`: register_comm_hook compares the hook's annotations with the classes.
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import perdure
from perdure import Session
from perdure.loop.leaving import Exit
from tests.unit.runtime.known_measures import know
from tests.unit.runtime.whole_numbers import Weights, losses, optimizer_of, round_gradients, samples

BATCH = 8


def train(
    root: str,
    *,
    decisions: Sequence[Mapping[str, Any]] | None = None,
    most: int = 5,
    epochs: int = 3,
    terminate: tuple[int, int] | None = None,
    workers: int = 0,
    noise: float | None = None,
) -> dict[str, Any]:
    """Trains to the end, or until rank terminate[0] gets SIGTERM right before it reports its own step terminate[1].

    In its first step it gets to know this `noise`, and that steps take equally long, if it is to measure that.
    """
    adapt = perdure.Adapt(up_to=40, per_rank=(1, most), decisions=decisions)
    steps: list[dict[str, Any]] = []
    with Session.from_env(root) as session:
        net = Weights()
        model = session.wrap(net)
        optimizer = optimizer_of(net)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(samples(), BATCH, adapt=adapt, num_workers=workers)
        try:
            for epoch in session.epochs(epochs):
                own: list[int] = []
                parts = 0
                for inputs, wanted, numbers in batches:
                    own, parts = own + numbers.tolist(), parts + 1
                    with session.micro() as last:
                        session.weighted(losses(model(inputs), wanted).mean()).backward()
                    if not last:
                        continue
                    round_gradients(net)
                    optimizer.step()
                    optimizer.zero_grad()
                    if terminate and list(terminate) == [session.rank, len(steps) + 1]:
                        os.kill(os.getpid(), signal.SIGTERM)
                    if noise is not None and session.steps_done == 0:
                        know(session, noise, BATCH // 4, BATCH // 2)
                    steps.append({"epoch": epoch, "parts": parts, "ids": own})
                    own, parts = [], 0
                    session.step()
                    scheduler.step()
        except Exit:
            pass
        return {
            "steps": steps,
            "done": session.steps_done,
            "weights": net.fields.tolist(),
            "momentum": optimizer.state_dict()["state"][0]["momentum_buffer"].tolist(),
            "rate": optimizer.param_groups[0]["lr"],
            "progress": perdure.progress(session).samples,
            "decisions": batches.decisions,
        }


def gradient(
    root: str,
    *,
    batch: int,
    accumulation: int,
    shards: bool = False,
    late_hook: bool = False,
    static_graph: str = "",
    parts_of_mesh: bool = False,
) -> dict[str, Any]:
    """The gradient of the first step, of one batch, that all ranks have; and its samples on this rank. `shards`: the
    model is sharded by FSDP2. `late_hook`: the script's hook comes after the loader, which measures. `static_graph`:
    who wraps the model, which has one. `parts_of_mesh`: all ranks have the same samples."""
    decision = {"epoch": 0, "consumed": 0, "batch": batch, "accumulation": accumulation}
    lines = Lines()
    with Session.from_env(root) as session:
        net = network()
        model, registered = _modelled(session, net, shards=shards, static_graph=static_graph)
        session.register(model=registered)
        averaged: list[int] = []
        """The session's steps in which the ranks have averaged their gradients."""

        def counted(_state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
            averaged.append(session.steps_done)
            return allreduce_hook(dist.distributed_c10d._get_default_group(), bucket)

        hooked = session.world > 1 and not (shards or static_graph or parts_of_mesh)
        if hooked and not late_hook:
            model.register_comm_hook(None, counted)
        adapt = perdure.Adapt(up_to=60, decisions=[decision])
        if late_hook or parts_of_mesh:
            adapt = perdure.Adapt(up_to=BATCH, per_rank=(1, BATCH // session.world // (accumulation + 1)))
        mesh = init_device_mesh("cpu", (1, session.world), mesh_dim_names=("dp", "tp"))["dp"] if parts_of_mesh else None
        batches = session.loader(samples(), BATCH, adapt=adapt, mesh=mesh)
        if hooked and late_hook:
            model.register_comm_hook(None, counted)
        own: list[int] = []
        parts, found = 0, list[float]()
        reduced: list[bool] = []
        """Of each part of the first step whether the parameters have gradients; with shards only reduced ones."""
        for _ in session.epochs(1):
            for inputs, wanted, numbers in batches:
                with session.micro() as last:
                    session.weighted(losses(model(inputs).squeeze(-1), wanted).mean()).backward()
                if not found:
                    own, parts = own + numbers.tolist(), parts + 1
                    reduced.append(all(one.grad is not None for one in net.parameters()))
                if last and not found:
                    found = gradient_of(net)
                if last:
                    session.step()
        return {
            "ids": own,
            "parts": parts,
            "gradient": found,
            "averaged": averaged,
            "reduced": reduced,
            "steps": session.steps_done,
            "lines": lines.told,
            "measured": (measurements := session._core.run.measurements) and measurements.meter.steps,
        }


def _modelled(session: Session, net: nn.Module, *, shards: bool, static_graph: str) -> tuple[Any, nn.Module]:
    """The model as training calls it, and what is registered."""
    if shards:
        sharded: Any = fully_shard(net, mesh=init_device_mesh("cpu", (session.world,)))
        return sharded, sharded
    if static_graph == "script":
        return DistributedDataParallel(net, static_graph=True), net
    wrapped = session.wrap(net, **({"static_graph": True} if static_graph else {}))
    return wrapped, wrapped


class Lines(logging.Handler):
    """What the session says."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        logger = logging.getLogger("perdure")
        logger.handlers = [self]
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def gradient_of(net: nn.Module) -> list[float]:
    grads = [one.grad for one in net.parameters() if one.grad is not None]
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in grads]
    return [value for one in whole for value in one.flatten().tolist()]
