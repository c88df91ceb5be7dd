"""Scripts of other kinds for the tests of this folder: what people add to a training loop, or had better not."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import init_process_group as by_name
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import perdure
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.scripts import BATCH, Ended, await_exit, await_ready, dataset, digest, network, take_part

UNFROZEN = {"registered late": 0, "registered meanwhile": 1}
"""By kind, the epoch in which an optimizer is made and registered; each has six steps, behind which ranks change."""
DRAWN_ALIKE = 11
"""The seed of what all ranks draw alike."""


class Kit:
    """What a variant trains with; each of them is registered."""

    def __init__(self, session: Session, kind: str) -> None:
        self.session, self.kind = session, kind
        self.compilations = 0
        self.scores: list[tuple[int, int, int, int]] = []
        """Of each batch of an evaluation the run, the step, the pass, and how many were left."""
        net = network("plain")
        torch.manual_seed(session.rank)
        self.net, self.body = net, net.get_submodule("0")
        inner: Any = torch.compile(net, backend=self.compiled) if kind == "compiled inside" else net
        views = {"gradient_as_bucket_view": True} if kind == "views of four" else {}
        self.wrapped: Any = session.wrap(inner, **views)
        outer: Any = torch.compile(self.wrapped, backend=self.compiled) if kind == "compiled outside" else self.wrapped
        self.model: Callable[[Tensor], Tensor] = outer
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        self.late: torch.optim.Optimizer | None = None
        if kind in UNFROZEN:
            self.body.requires_grad_(requires_grad=False)
            self.optimizer = torch.optim.Adam(net.get_submodule("3").parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        self.ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        session.register(model=self.wrapped, optimizer=self.optimizer, scaler=self.scaler, ema=self.ema)

    def unfreeze(self) -> None:
        """From here on all is trained."""
        self.body.requires_grad_(requires_grad=True)
        self.late = torch.optim.Adam(self.body.parameters(), lr=1e-3)
        self.session.register(late=self.late)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer, self.late] if self.late else [self.optimizer]

    def compiled(self, graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        """Counts how often something is compiled."""
        self.compilations += 1
        return graph.forward

    def backward(self, batch: list[Tensor], *, last: bool = True) -> None:
        """Adds up gradients; those of all ranks behind the `last` batch of a step."""
        inputs, labels = batch
        with nullcontext() if last else self.wrapped.no_sync():
            self.scaler.scale(self.loss(self.model(inputs), labels)).backward()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """As it counts; by tokens where some labels are ignored."""
        if self.kind != "by tokens":
            return self.session.weighted(cross_entropy(outputs, labels))
        return self.session.weighted(cross_entropy(outputs, labels, ignore_index=0), (labels != 0).sum())

    def step(self) -> None:
        """One optimizer step."""
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        self.ema.update_parameters(self.net)
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def train(
    root: str,
    *,
    kind: str = "",
    deterministic: bool = False,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    epochs: int = 3,
    forgets: bool = False,
) -> dict[str, Any]:
    """Trains to the end, with a hand-over in the step behind `wait_at`, or behind the one that an offer comes in.

    One that `forgets` unfreezes nothing.
    """
    torch.set_num_threads(1)
    offers = dict(again)
    with Session.from_env(root, deterministic=deterministic) as session:
        kit = Kit(session, kind)
        steps = {
            "evaluated": evaluated(offers),
            "two loaders": in_turn,
            "side by side": side_by_side,
            "accumulated": accumulated,
        }.get(kind, plain)
        seen: list[float] = session.state.get("seen", [])
        try:
            for epoch in session.epochs(epochs):
                if epoch >= UNFROZEN.get(kind, epochs) and not kit.late and not forgets:
                    kit.unfreeze()
                for _ in steps(kit):
                    kit.step()
                    if kind == "own values":
                        seen = session.state["seen"] = [*session.state.get("seen", []), torch.rand(1).item()][-3:]
                    if kind == "own orders" and session.steps_done == 0:
                        session.state.update(in_own_orders(session.steps_done))
                    if kind == "asked by one rank" and (session.rank, session.steps_done) == (1, 2):
                        session.stop("enough")
                    take_part(session, wait_at, {} if kind == "evaluated" else offers)
                    session.step()
                    if kind == "pinned":
                        session.save(pin="last")
        except Exit:
            return {"left": session.steps_done, "scores": kit.scores}
        return {
            "rank": session.rank,
            "scores": kit.scores,
            "steps": session.steps_done,
            "weights": digest(kit.net.parameters()),
            "buffers": digest(kit.ema.state_dict().values()),
            "optimizer": [digest(state["exp_avg"] for state in one.state.values()) for one in kit.optimizers],
            "rate": [kit.scaler.get_scale(), (seen, session.state.get("score")) if session.rank == 0 else None],
            "random": torch.rand(1).item(),
            "compilations": kit.compilations,
            "orders": {name: strides_of(kept) for name, kept in session.state.items() if hasattr(kept, "dtype")},
        }


def in_own_orders(step: int) -> dict[str, Any]:
    """What a script keeps itself, column by column: what lies with the tensors, and what is small."""
    cube = np.arange(8 * 9 * 10, dtype=np.float32).reshape(8, 9, 10) + step
    return {
        "columns": (torch.arange(2000.0) + step).reshape(40, 50).t(),
        "few columns": (torch.arange(6.0) + step).reshape(2, 3).t(),
        "fortran": np.asfortranarray(cube),
        "small fortran": np.asfortranarray(cube[:2, :2, :2]),
    }


def strides_of(kept: Any) -> tuple[int, ...]:
    return kept.stride() if isinstance(kept, Tensor) else kept.strides


def plain(kit: Kit) -> Iterator[None]:
    for batch in kit.session.loader(dataset(), BATCH + (kit.kind in UNFROZEN)):
        kit.backward(batch)
        yield


def evaluated(offers: dict[Any, str]) -> Callable[[Kit], Iterator[None]]:
    """Each epoch ends with two passes over an evaluation; in the middle of the first one's second comes the offer."""

    def steps(kit: Kit) -> Iterator[None]:
        yield from plain(kit)
        session = kit.session
        valid = session.loader(dataset(), BATCH, name="valid", train=False)
        for number in range(2):
            for inputs, _ in valid:
                with torch.no_grad():
                    score = kit.model(inputs).sum().item()
                kit.scores.append((perdure.progress(session).run, session.steps_done, number, valid.remaining))
                session.state["score"] = session.state.get("score", 0.0) + score
                if kit.scores[-1] == (1, 7, 1, 4):
                    take_part(session, None, offers)

    return steps


def read_on(kit: Kit) -> Iterator[None]:
    """An epoch goes on where the one before has left the dataset."""
    for batch in kit.session.loader(dataset(), BATCH, per_epoch=40, rewind=False):
        kit.backward(batch)
        yield


def in_turn(kit: Kit) -> Iterator[None]:
    """One loader behind the other."""
    for name, size in (("first", BATCH), ("second", 2 * BATCH)):
        for batch in kit.session.loader(dataset(), size, name=name):
            kit.backward(batch)
            yield


def side_by_side(kit: Kit) -> Iterator[None]:
    """Two at a time."""
    loaders = (kit.session.loader(dataset(), BATCH, name=name, seed=seed) for seed, name in enumerate(("a", "b")))
    for one, other in zip(*loaders, strict=True):
        kit.backward(one)
        kit.backward(other)
        yield


def accumulated(kit: Kit) -> Iterator[None]:
    """Two batches a step."""
    loader = kit.session.loader(dataset(), BATCH, drop_last=True)
    for index, batch in enumerate(loader, loader.batch_index):
        last = index % 2 == 1
        kit.backward(batch, last=last)
        if last:
            yield


def drawing(root: str, *, wait_at: int | None = None) -> dict[str, Any]:
    """All ranks draw alike from one generator, as where it decides what a step does, and apart from another."""
    torch.set_num_threads(1)
    random.seed(DRAWN_ALIKE)
    drawn: list[tuple[int, float, float]] = []
    with Session.from_env(root) as session:
        kit = Kit(session, "")
        with suppress(Exit):
            for _ in session.epochs(3):
                for _ in plain(kit):
                    kit.step()
                    drawn.append((session.steps_done, random.random(), torch.rand(1).item()))  # noqa: S311
                    take_part(session, wait_at, {})
                    session.step()
        return {"drawn": drawn}


def stubborn(root: str, *, wait_at: int | None = None) -> dict[str, Any]:
    """It catches every error, and its hook ends the process by itself."""
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        kit = Kit(session, "")
        session.on("leaving", lambda cause: sys.exit(f"my own end: {cause}"))
        try:
            for _ in session.epochs(3):
                with suppress(BaseException):
                    for _ in plain(kit):
                        kit.step()
                        take_part(session, wait_at, {})
                        session.step()
        except Exit:
            return {"left": session.steps_done}
        return {"rank": session.rank, "steps": session.steps_done}


def forgetful(root: str, *, wait_at: int | None = None) -> dict[str, Any]:
    """A variable of its own decides what a step does."""
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        kit, mine = Kit(session, ""), 0
        try:
            for _ in session.epochs(3):
                for _ in plain(kit):
                    mine += 1
                    kit.optimizer.param_groups[0]["lr"] = 0.01 / mine
                    kit.step()
                    take_part(session, wait_at, {})
                    session.step()
        except Exit:
            return {"left": session.steps_done}
        return {"rank": session.rank}


def hasty(root: str, *, makes: str, wait_at: int | None = None) -> dict[str, Any]:
    """Something of its own that needs a process group, before the first batch."""
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        net = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(net=net, optimizer=optimizer)
        if perdure.progress(session).run == 2:
            perdure.restore(session)
            DistributedDataParallel(net) if makes == "ddp" else dist.new_group()
        model = session.wrap(net)
        for _ in session.epochs(3):
            for inputs, labels in session.loader(dataset(), BATCH):
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                optimizer.step()
                optimizer.zero_grad()
                take_part(session, wait_at, {})
                session.step()
        return {"rank": session.rank}


def meshed(root: str, *, makes: str, leaves_at: int | None = None, wait_at: int | None = None) -> dict[str, Any]:
    """It makes a device mesh before its first batch, or its newcomers alone make a process group, or both: `makes`.
    Or it makes a mistake."""
    torch.set_num_threads(1)
    ended = Ended()
    with Session.from_env(root) as session:
        if "a mistake" in makes:
            raise FileNotFoundError("no data on this node")
        session._core.run.reporter.add(ended)
        if "group" in makes and not dist.is_initialized():
            (by_name if "by name" in makes else dist.init_process_group)("gloo")
        if "mesh" in makes:
            mesh = init_device_mesh("cpu", (session.world,))  # noqa: F841 - kept, as a sharded model keeps it
        kit = Kit(session, "")
        try:
            for _ in session.epochs(3):
                for _ in plain(kit):
                    kit.step()
                    await_exit(session, leaves_at)
                    if session.steps_done == wait_at:
                        ended.once.wait(60)
                    session.step()
        except Exit:
            return {"left": session.steps_done}
        return {"rank": session.rank, "weights": digest(kit.net.parameters())}


class SlowToSave:
    """Once a hand-over has ended, its state is there only when this text is in this file, or after a minute."""

    def __init__(self, ended: Ended, file: str, text: str) -> None:
        self.ended, self.file, self.text = ended, Path(file), text

    def state_dict(self) -> dict[str, Any]:
        """It has none of its own."""
        deadline = time.monotonic() + 60 * self.ended.once.is_set()
        while time.monotonic() < deadline and self.text not in self.file.read_text():
            time.sleep(0.01)
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to do."""


def keeping(
    root: str, *, slow: tuple[str, str] | None = None, leaves_at: int | None = None, wait_at: int | None = None
) -> dict[str, Any]:
    """It keeps the group of all ranks, and does not even use it; `slow` are the file and the text of SlowToSave."""
    torch.set_num_threads(1)
    ended = Ended()
    with Session.from_env(root) as session:
        kept = dist.group.WORLD  # noqa: F841 - as people do it: `group = dist.group.WORLD`
        kit = Kit(session, "")
        if slow:
            session._core.run.reporter.add(ended)
            session.register(slow=SlowToSave(ended, *slow))
        try:
            for _ in session.epochs(3):
                for _ in plain(kit):
                    kit.step()
                    await_exit(session, leaves_at)
                    session.step()
        except Exit:
            return {"left": session.steps_done}
        return {"rank": session.rank, "weights": digest(kit.net.parameters())}


def apart(root: str, *, wait_at: int | None = None) -> dict[str, Any]:
    """One element of one weight is another one on rank 1."""
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        kit = Kit(session, "")
        for _ in session.epochs(3):
            for _ in plain(kit):
                kit.step()
                if (session.rank, session.steps_done) == (1, 1):
                    next(iter(kit.net.parameters())).data[0, 0] += 1e-6
                take_part(session, wait_at, {})
                session.step()
        return {"rank": session.rank}


def heavy(root: str, *, mib: int, wait_at: int | None = None) -> dict[str, Any]:
    """Its state is about so many MiB; it reports what a stayer needs beyond that while it hands over.

    It also reports how much memory a newcomer has, after its script's own allocations, and when all are ready: these
    old ranks wait for that at once, because `wait_at` is late for steps that take so long.
    """
    torch.set_num_threads(1)
    width = 1024
    joining = Path(f"{root}.newcomer")
    with Session.from_env(root) as session:
        layers = [nn.Linear(width, width, bias=False) for _ in range(mib // (3 * 4))]
        net = nn.Sequential(nn.Linear(8, width), *layers, nn.Linear(width, 3))
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
        session.register(model=wrapped, optimizer=optimizer)
        extra: dict[int, int] = {}
        before = ready = 0
        if perdure.progress(session).run == 2:
            joining.write_text(str(os.getpid()))
        made = _memory("VmRSS")
        for _ in session.epochs(1):
            for inputs, labels in session.loader(dataset(), BATCH):
                if perdure.progress(session).run not in extra:
                    extra[perdure.progress(session).run] = _memory("VmHWM") - before
                session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if wait_at and session.steps_done == 0:
                    await_ready(session._core)
                    ready = _memory("VmRSS", joining.read_text())
                Path("/proc/self/clear_refs").write_text("5")  # reset the peak
                before = _memory("VmRSS")
                session.step()
        size = 3 * sum(p.nbytes for p in net.parameters()) / 2**20
        return {"rank": session.rank, "state": size, "extra": extra, "made": made, "ready": ready}


def _memory(field: str, process: str = "self") -> int:
    """In MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{field}:"))
