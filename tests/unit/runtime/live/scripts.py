"""The trainers' script in the tests of this folder: an ordinary script on a Session, and its observations."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure
from perdure.group.old_groups import OldGroups
from perdure.loop.leaving import Exit
from perdure.loop.telemetry.events import Event
from perdure.session.core import Core
from perdure.session.session import Session
from perdure.wire.channel import HandoverEnded, TookOver
from tests.support.undrawn import Script

KERNELS: Mapping[str, dict[str, Any]] = {
    "": {},
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
}
SAMPLES = 102
BATCH = 16


def dataset(seed: int = 5) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(SAMPLES, 8, generator=generator)
    return TensorDataset(images, torch.randint(0, 3, (SAMPLES,), generator=generator))


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "turned":
        last = nn.Conv2d(2, 4, 2).to(memory_format=torch.channels_last)
        images = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), last, nn.Flatten(), turned(nn.Linear(4, 16)))
        return nn.Sequential(*images, nn.ReLU(), nn.Dropout(0.3), turned(nn.Linear(16, 3)))
    if kind == "columns":
        return nn.Sequential(turned(nn.Linear(8, 16)), nn.ReLU(), nn.Dropout(0.3), turned(nn.Linear(16, 3)))
    norm = [nn.BatchNorm1d(16)] if kind == "norm" else []
    return nn.Sequential(nn.Linear(8, 16), *norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def turned(linear: nn.Linear) -> nn.Linear:
    """With a weight that lies column by column."""
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    return linear


def digest(tensors: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def train(
    root: str,
    *,
    epochs: int = 3,
    model: str = "plain",
    deterministic: bool = False,
    workers: int = 0,
    options: dict[str, Any] | None = None,
    wait_at: int | None = None,
    slow_at: int | None = None,
    die: str = "",
    again: Sequence[tuple[int, str]] = (),
    group: bool = False,
    wait_for_end: bool = False,
    count_in: Sequence[int] = (),
    data: int = 5,
    leaves_at: int | None = None,
    amsgrad: bool = False,
    kernel: str = "",
) -> dict[str, Any]:
    """Trains to the end; at step `wait_at` every old rank waits until its part of the hand-over is ready, or
    with `wait_for_end` until it has come to nothing; at step `leaves_at` until it has to leave for it. `slow_at`:
    see `take_part`.

    With `group` it has one of its own. `die` is where this process kills itself, or raises; `again` are more
    offers, and the steps at which they come. In the runs `count_in` threads and files are counted. `data` is the
    seed of the samples. `kernel` is the optimizer's: fused, foreach, loop, or torch's choice.
    """
    torch.set_num_threads(1)
    dies(die, "cold")
    told: list[str] = []
    counted: dict[int, Any] = {}
    offers = dict(again)
    with Session.from_env(root, deterministic=deterministic) as session:
        if count_in:
            session._core.run.old_groups = OldGroups(grace=0)
        own = dist.new_group() if group and dist.is_initialized() else None
        net = network(model)
        torch.manual_seed(session.rank)  # dropout of its own on every rank
        wrapped = session.wrap(net, **(options or {}))
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-2, amsgrad=amsgrad, **KERNELS[kernel])
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [8, 14], 0.1)
        session.register(model=wrapped, optimizer=optimizer, scheduler=scheduler)
        session.on("resumed", lambda commit: told.append(f"resumed {commit.step}"))
        session.on("ranks", lambda: told.append(f"ranks {session.rank}/{session.world}"))
        last: list[int] = []
        perdure.report_every(session, 1e6, lambda: last.append(session.steps_done))
        ended, collecting, script = Ended(), Collecting(), Script("torch")
        session._core.run.reporter.add(ended)
        session._core.run.reporter.add(collecting)
        batches = session.loader(dataset(data), BATCH, num_workers=workers)
        began = None
        if die:
            perdure.restore(session)
        dies(die, "restored")
        if die == "error":
            raise ValueError("no data on this node")
        try:
            for _ in session.epochs(epochs):
                for inputs, labels in batches:
                    script.goes_on(session.world)
                    began = session.steps_done if began is None else began
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                    optimizer.step()
                    if session.rank == 0 and session.result is None:
                        session.result = {"began": perdure.progress(session).run}
                    if perdure.progress(session).run in count_in and perdure.progress(session).run not in counted:
                        counted[perdure.progress(session).run] = threads_and_files(session)
                    if wait_for_end and session.steps_done == wait_at:
                        ended.once.wait(60)
                    else:
                        take_part(session, wait_at, offers, slow_at)
                    await_exit(session, leaves_at)
                    script.calls()
                    session.step()
                    scheduler.step()
        except Exit:
            return {"left": session.steps_done, "began": began, "last": last}
        return {
            "began": began,
            "last": last,
            "rank": session.rank,
            "world": session.world,
            "steps": session.steps_done,
            "weights": digest(net.parameters()),
            "buffers": digest(net.buffers()),
            "optimizer": digest(value["exp_avg"] for value in optimizer.state_dict()["state"].values()),
            "rate": optimizer.param_groups[0]["lr"],
            "result": session.result,
            "random": torch.rand(1).item(),
            "told": told,
            "own": own is not None,
            "counted": counted,
            "collecting": [*collecting.in_stops, gc.isenabled()],
        }


class Collecting:
    """Notes at the end of each stop whether Python's collector may have run in it."""

    def __init__(self) -> None:
        self.in_stops: list[bool] = []

    def take(self, event: Event) -> None:
        if isinstance(event, TookOver):
            self.in_stops.append(gc.isenabled())


class Ended:
    """Listens for an attempt that has come to nothing."""

    def __init__(self) -> None:
        self.once = threading.Event()

    def take(self, event: Event) -> None:
        if isinstance(event, HandoverEnded):
            self.once.set()


def threads_and_files(session: Session) -> dict[str, int]:
    """How many this process has, once all that older runs have left is gone."""
    assert session._core.run.old_groups.wait(60)
    for thread in threading.enumerate():
        if thread.name.startswith(("perdure-handover", "perdure-old-groups")):
            thread.join(60)
    await_the_ends_of_threads()
    return {kind: len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd")}


def await_the_ends_of_threads() -> None:
    """A thread that is joined has left Python, but not yet the process."""
    own, until = Path("/proc/self/comm").read_text(), time.monotonic() + 60
    while threading.active_count() != sum(name == own for name in names_of_tasks()):
        assert time.monotonic() < until
        os.sched_yield()


def names_of_tasks() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended just now
            yield (task / "comm").read_text()


def dies(die: str, here: str) -> None:
    if die == here:
        os.kill(os.getpid(), signal.SIGKILL)


def take_part(session: Session, wait_at: int | None, offers: dict[Any, str], slow_at: int | None = None) -> None:
    """In a step: takes the offer that comes in it, or in its run, and waits for one that has to be ready by its end.

    In run 1 step `slow_at` takes as long as an offer needs that is known by then.
    """
    step, run = session.steps_done, perdure.progress(session).run
    if (step, run) == (slow_at, 1) and Path(os.environ["PERDURE_HANDOVER_FILE"]).exists():
        await_ready(session._core)
    offer = offers.pop(step, "") or offers.pop(f"run {run}", "")
    if offer:
        Path(os.environ["PERDURE_HANDOVER_FILE"]).write_text(offer)
    if offer or (step, run) == (wait_at, 1):
        await_ready(session._core)


def await_exit(session: Session, at: int | None) -> None:
    """At this step of run 1: returns once a hand-over has failed for which this rank has to save and leave.

    Otherwise the training may be done before that.
    """
    if (session.steps_done, perdure.progress(session).run) != (at, 1):
        return
    handing, deadline = session._core.boundary.live_handover, time.monotonic() + 60
    handing.look()
    while not handing.exit_wanted:
        if time.monotonic() > deadline:
            raise TimeoutError("no hand-over has failed")
        time.sleep(0.01)


def await_ready(core: Core) -> None:
    """Returns when this rank would vote for the hand-over that it was offered."""
    core.boundary.live_handover.look()
    if not core.boundary.live_handover.ready.wait(60):
        raise TimeoutError("the hand-over was never ready")
