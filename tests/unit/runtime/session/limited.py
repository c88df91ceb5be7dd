"""A rank in a cgroup that has room for its live state and little more: it saves, restores, or saves beside training.

    python -m tests.unit.runtime.session.limited ACT MODEL MIB ROOT CGROUP

ACT is `save`, `restore`, `background`, `crowded` or `wide`, MODEL `whole` or `sharded`, MIB the size of the state.
Started by test_memory_limit.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.background import arena
from perdure.host.memory import free_memory
from perdure.session.functions import restore
from perdure.session.session import Session
from tests.support.memory_limit import MemoryGroup
from tests.unit.runtime.session.background import Uploads

MIB = 2**20
ROOM = 256 * MIB
"""What a save or a restore may need beyond the live state and the rank's part in an arena."""
OWN = ROOM // 4
"""For what the session itself takes between the measurement and the first save: threads, the trace, the log's entries.
23 MB were seen."""
LAYERS = 24
WIDTH = 1024
WEIGHT, AVERAGE, SQUARE = 3.0, 0.5, 0.25
WARM_STEPS = 2
STEPS = 2


class Trained:
    """A network of equal layers, with AdamW: a third of the state are weights."""

    def __init__(self, session: Session, mib: int, *, sharded: bool) -> None:
        rows = mib * MIB // 4 // 3 // LAYERS // WIDTH
        ends = [(WIDTH, rows), (rows, WIDTH)] * (LAYERS // 2)
        self.net = nn.Sequential(*(nn.Linear(*end, bias=False) for end in ends))
        if sharded:
            mesh = init_device_mesh("cpu", (session.world,))
            for part in (*self.net, self.net):
                fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.0)
        self.activations = 0
        """Bytes."""
        session.register(model=self.net, optimizer=self.optimizer)

    def step(self, inputs: Tensor) -> None:
        """As a script does; the gradients are there afterwards."""
        self.optimizer.zero_grad()
        loss, activations = self.net(inputs).square().mean(), torch.ones(self.activations, dtype=torch.uint8)
        loss.backward()
        del activations
        self.optimizer.step()

    def values(self) -> list[tuple[float, Tensor]]:
        """This rank's part of each tensor, and the value that it has everywhere when it is saved."""
        found = [(WEIGHT, parameter) for parameter in self.net.parameters()]
        for state in self.optimizer.state.values():
            found += [(AVERAGE, state["exp_avg"]), (SQUARE, state["exp_avg_sq"])]
        return [(value, boxes.local(tensor).detach()) for value, tensor in found]


def save(session: Session, trained: Trained, group: MemoryGroup, _: int) -> str:
    """A save for which training stands, and the one at the end."""
    for _ in session.epochs(1):
        for (inputs,) in session.loader(TensorDataset(torch.ones(2, WIDTH)), 2):
            trained.step(inputs)
            trained.optimizer.zero_grad()
            for value, tensor in trained.values():
                tensor.fill_(value)
            session.step()
        group.limit(group.used() + ROOM)
        session.save()
    return "saved"


def restored(session: Session, trained: Trained, group: MemoryGroup, part: int) -> str:
    """The optimizer's state is made by the restore."""
    group.limit(group.used() + part * 2 // 3 + ROOM)
    restore(session)
    wrong = [tuple(tensor.shape) for value, tensor in trained.values() if not bool((tensor == value).all())]
    return f"{len(trained.values())} tensors {wrong}"


def background(session: Session, trained: Trained, group: MemoryGroup, part: int) -> str:
    """Saves that go on beside the training. What that takes by itself is known before the first one takes memory."""
    inputs, trained.activations = torch.ones(2, WIDTH), part
    for _ in range(WARM_STEPS):
        trained.step(inputs)
    group.limit(group.most() + part + ROOM + OWN)
    return _in_background(session, trained, inputs)


def _in_background(session: Session, trained: Trained, inputs: Tensor) -> str:
    """Trains and saves. Returns the steps of the commits, and whether there was a copy of this rank's part."""
    told = list[int]()
    session.on("committed", lambda commit: told.append(commit.step))
    uploads, copies = Uploads(session), session._core.run.background._effects.copies
    for _ in session.epochs(1):
        for _ in session.steps(STEPS):
            trained.step(inputs)
            session.step()
            uploads.wait()
        held = copies._arena.held if copies._arena else 0
    own = sum(tensors.size_of(tensor) for _, tensor in trained.values())
    return f"{told} {held > own}"


def crowded(session: Session, trained: Trained, group: MemoryGroup, part: int) -> str:
    """As `background`, but the ranks have one cgroup, in which each rank alone has room for its part."""
    inputs = torch.ones(2, WIDTH)
    for _ in range(WARM_STEPS):
        trained.step(inputs)
    dist.barrier()
    group.limit(group.most() + part + ROOM + OWN)
    dist.barrier()
    return _in_background(session, trained, inputs)


def wide(session: Session, trained: Trained, group: MemoryGroup, part: int) -> str:
    """As `background`, but there is memory for a copy only until a step needs it."""
    inputs, trained.activations = torch.ones(2, WIDTH), part + 2 * ROOM
    for _ in range(WARM_STEPS):
        trained.step(inputs)
    group.limit(group.most() + ROOM)
    return _in_background(session, trained, inputs)


def main() -> None:
    act, model, size, root, folder = sys.argv[1:6]
    mib = int(size)
    group = MemoryGroup(Path(folder))
    group.join()
    torch.set_num_threads(1)
    vars(arena)["free_memory"] = partial(free_memory, group.as_in_container(Path(f"{root}-{os.getpid()}")))
    with Session.from_env(root) as session:
        trained = Trained(session, mib, sharded=model == "sharded")
        acts = {"save": save, "restore": restored, "background": background, "crowded": crowded, "wide": wide}
        found = acts[act](session, trained, group, mib * MIB // session.world)
    print(found, flush=True)


if __name__ == "__main__":
    main()
