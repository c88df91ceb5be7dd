"""A script of test_sharded_live: a large model whose ranks change again and again; it weighs what that takes."""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import perdure
from perdure.group.old_groups import OldGroups
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.scripts import take_part, threads_and_files
from tests.unit.runtime.session.sharded import memory, reset_peak

WIDE = 1024
M_MMAP_THRESHOLD = -3
"""Of the C library: what is larger goes back to the system when it is freed, so that it can be weighed what is held."""
SAMPLES = 72
BATCH = 12


def heavy(
    root: str, *, mib: int, epochs: int, again: Sequence[tuple[int, str]] = (), wait_at: int | None = None
) -> dict[str, Any]:
    """Its state is about so many MiB in all. For each move: the rank's part before and behind it, how much memory the
    move took at most beyond what the rank held before it, and how much the rank took anew while it stood still; and
    for each run, what the rank holds and has open when all that older runs have left is gone. All memory in MiB."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    offers = dict(again)
    found: dict[str, Any] = {"moves": [], "held": {}}
    with Session.from_env(root) as session:
        session._core.run.old_groups = OldGroups(grace=0)
        mesh = init_device_mesh("cpu", (session.world,))
        net: Any = nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(mib // (3 * 4))))
        for part in (*net, net):
            fully_shard(part, mesh=mesh)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-6, foreach=False)
        session.register(model=net, optimizer=optimizer)
        run = part_before = before = faults = 0
        try:
            for _ in session.epochs(epochs):
                for (inputs,) in session.loader(TensorDataset(torch.randn(SAMPLES, WIDE)), BATCH):
                    now = perdure.progress(session).run
                    if now > run > 0:
                        taken = {"part": [part_before, part_of(net)], "extra": memory("VmHWM") // 1024 - before}
                        found["moves"].append({**taken, "anew": anew() - faults})
                    begins = now > run
                    if begins:
                        gc.collect()
                        held = {**threads_and_files(session), "memory": memory("VmRSS") // 1024 - part_of(net)}
                        found["held"][f"{now}"] = held
                    run, part_before = now, part_of(net)
                    session.weighted(net(inputs).square().mean()).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if begins or session.steps_done in offers:  # a newer run is prepared from now on
                        before = memory("VmRSS") // 1024
                    take_part(session, wait_at, offers)
                    reset_peak()
                    faults = anew()
                    session.step()
        except Exit:
            return found | {"left": session.steps_done}
        return found | {"rank": session.rank}


def part_of(net: Any) -> int:
    """The rank's part of parameters and optimizer state."""
    nbytes: int = sum(parameter.to_local().nbytes for parameter in net.parameters())
    return 3 * nbytes // 2**20


def anew() -> int:
    """Memory that this process has got page by page so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize() // 2**20
