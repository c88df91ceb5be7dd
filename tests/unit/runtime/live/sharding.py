"""The trainers' script in test_sharded_live: a model that FSDP2 shards, as torch's documentation says."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import perdure
from perdure.agent.listeners import internet_listeners, socket_inode
from perdure.live import effects
from perdure.live.effects import Effects
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.scripts import Ended, await_exit, dies, take_part
from tests.unit.runtime.session.sharded import BATCH, OPTIMIZERS, Net, by_mesh, dataset, value

SECONDS = 60.0


def train(root: str, **arguments: Any) -> dict[str, Any]:
    """The same, and what a rank that was handed over has kept open while its script has the model and the mesh."""
    left: dict[str, Any] = {}
    try:
        return trains(root, left, **arguments)
    except Exit:
        return left if "leaves_at" in arguments else left | {"listens": listeners()}


def trains(
    root: str,
    left: dict[str, Any],
    *,
    optimizer: str = "foreach",
    epochs: int = 3,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    extras: bool = False,
    die: str = "",
    early: bool = False,
    leaves_at: int | None = None,
    begins: Mapping[str, Any] | None = None,
    keeps: bool = False,
    gathers: bool = False,
    sums: bool = False,
    rests: bool = False,
    checkpoints: bool = False,
    offloads: bool = False,
    saves_at: int | None = None,
    how: str = "fsdp",
    waits_for_end: bool = False,
    seeds: str = "",
) -> dict[str, Any]:
    """Trains to the end, with a hand-over in the step behind `wait_at`, or behind the one that an offer comes in.

    Behind the step `saves_at` it saves, and in step `leaves_at` it waits until it has to leave for a hand-over.

    One with `extras` has compiled blocks that compute in 16 bits and stay whole after a forward pass. `die` is where it
    kills itself, by the name of an act if it joins; with `waits_for_end` the step behind `wait_at` begins when a
    hand-over has come to nothing. `begins` is the commit that it begins from. One that is `early` makes a collective
    before its first batch, one that `keeps` has an average of its weights, which is not registered, and one that
    `gathers` begins to gather its parameters before it asks for the next batch. One that `sums` uses the gradients of
    four batches at once, and reduces only the sum. One that `rests` keeps gradients, and leaves its second block out of
    all steps but the first two. One that `checkpoints` computes its blocks again in the backward pass, and one that
    `offloads` has torch's policy for that. `how` is its mesh. One with `seeds` draws a number in each step: its ranks
    seed by the "share" of a batch that they get, or by "rank".
    """
    torch.set_num_threads(1)
    offers = dict(again)
    with Session.from_env(root, resume_from=begins) as session:
        mesh = meshed(how, session.world)
        torch.manual_seed(1)
        net = built(mesh, extras=extras, checkpoints=checkpoints, offloads=offloads)
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        steps_by = OPTIMIZERS[optimizer](trained)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(steps_by, [8, 14], 0.1)
        session.register(model=net, optimizer=steps_by, scheduler=scheduler)
        if early:
            dist.barrier()
        if die:
            die_in(die)
            perdure.restore(session)
        dies(die, "restored")
        ended = Ended()
        session._core.run.reporter.add(ended)
        average = [parameter.detach().clone() for parameter in trained] if keeps else []
        losses: dict[int, list[float]] = {}
        drawn: dict[int, float] = {}
        shared: Any = among(mesh) or mesh
        torch.manual_seed(shared.get_local_rank() if seeds == "share" else session.rank if seeds == "rank" else 1)
        first: list[int] | None = None
        began = None
        try:
            for _ in session.epochs(epochs):
                for (words,) in session.loader(dataset(), BATCH, mesh=among(mesh)):
                    began = session.steps_done if began is None else began
                    drawn |= {session.steps_done: torch.rand(()).item()} if seeds else {}
                    net.depth = 1 if rests and session.steps_done >= 2 else 2
                    loss = session.weighted(cross_entropy(net(words).float().flatten(0, 1), words.roll(1, 1).flatten()))
                    uses = not sums or session.steps_done % 4 == 3
                    net.set_requires_gradient_sync(uses)
                    loss.backward()
                    losses[session.steps_done] = [loss.item(), stepped(steps_by, trained, keeps=rests) if uses else 0.0]
                    first = first or (ids(net, steps_by, mesh) if uses else None)
                    if waits_for_end and session.steps_done == wait_at:
                        assert ended.once.wait(60)
                    else:
                        take_part(session, wait_at, offers)
                    await_exit(session, leaves_at)
                    begin_to_gather(net if gathers else None)
                    session.step()
                    scheduler.step()
                    if session.steps_done == saves_at:
                        session.save()
        except Exit:
            left |= {"left": session.steps_done, "began": began, "losses": losses, "drawn": drawn}
            raise
        return {
            "began": began,
            "rank": session.rank,
            "world": session.world,
            "steps": session.steps_done,
            "losses": losses,
            "drawn": drawn,
            "own": own(net, steps_by),
            "average": len(average),
            "rate": steps_by.param_groups[0]["lr"],
            "same objects": first == ids(net, steps_by, mesh),
            "run": perdure.progress(session).run,
        }


def built(mesh: Any, *, extras: bool, checkpoints: bool, offloads: bool) -> Any:
    """The sharded model."""
    samples_by = among(mesh)
    net, options = Net(22 if samples_by else 23), dict[str, Any]()
    if extras:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options = {"mp_policy": policy, "reshard_after_forward": False}
    if offloads:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for block in net.blocks:
        if samples_by:
            split: Any = {"a": ColwiseParallel(), "b": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], split, src_data_rank=None)
        if extras:
            block.compile(backend="eager")
        if checkpoints:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, mesh=samples_by or mesh, **options)
    return fully_shard(net, mesh=samples_by or mesh, **options)


def among(mesh: DeviceMesh) -> DeviceMesh | None:
    """The part of the mesh whose ranks have samples of their own; None if all have."""
    return mesh["dp"] if "tp" in (mesh.mesh_dim_names or ()) else None


def die_in(act: str) -> None:
    """This process kills itself when it begins that act of a hand-over."""
    owner = Effects if hasattr(Effects, act) else effects
    if hasattr(owner, act):
        setattr(owner, act, lambda *_, **__: dies(act, act))


def stepped(optimizer: torch.optim.Optimizer, trained: list[Tensor], *, keeps: bool) -> float:
    """The norm of the gradients, which are used, and are zeros then, or none."""
    found = sum(value(clip_grad_norm_(some, 1.0)) for some in by_mesh(trained))
    optimizer.step()
    optimizer.zero_grad(set_to_none=not keeps)
    return found


def listeners() -> list[int]:
    """The ports on which this process listens, when its threads have let go of what they had."""
    end = time.monotonic() + SECONDS
    while (found := _ports()) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return found


def _ports() -> list[int]:
    own = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            own.add(socket_inode(str(link.readlink())))
    return [port for _, inode, port in internet_listeners(Path("/proc/self/net")) if inode in own]


def meshed(how: str, world: int) -> DeviceMesh:
    """`how`: fsdp; hsdp, in which two ranks hold the shards, and others hold the same; or tp, in which two ranks split
    the work on a batch."""
    names = {"hsdp": ("replicate", "shard"), "tp": ("dp", "tp")}
    if how in names:
        return init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=names[how])
    return init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))


def begin_to_gather(net: Any | None) -> None:
    if net is not None:
        net.unshard(async_op=True)


def ids(net: nn.Module, optimizer: torch.optim.Optimizer, mesh: Any) -> list[int]:
    """The script's own objects."""
    reshard(net)
    state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, DTensor)]
    return list(map(id, (mesh, *net.parameters(), *optimizer.param_groups, *state)))


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
