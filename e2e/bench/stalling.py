"""Trains in one process, saves now and then in every way in turn, and prints what each save cost, as JSON.

    python -m e2e.bench.stalling FOLDER MIB ROUNDS

A save's stall is wall time against a control: all that it and the steps after it took until it was durable, less as
many steps without a save, measured in the same round right before and right after. Started by e2e.bench.stall.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save
from torch.nn import functional

from e2e.bench.saving import MIB, State
from perdure.checkpoint.background.arena import Arena
from perdure.checkpoint.background.uploading import PartUploaded, Uploader, UploadFailed
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.stage import stage
from perdure.group.peers import Solo
from perdure.log.position import Position
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import NoTrace
from perdure.state.registry import Registry
from perdure.store import open_store

STEP_SECONDS: Final = 0.25
STEPS: Final = 6
"""After each save at least; more until it is durable."""


class Training:
    """Steps of forward, backward and AdamW over the whole state, which take about STEP_SECONDS if AdamW leaves time."""

    def __init__(self, mib: int) -> None:
        self.state = State(mib, stepped=True)
        rows = 1
        while True:
            self._batch = torch.rand(rows, 1024)
            self.step()
            begun = time.perf_counter()
            self.step()
            if time.perf_counter() - begun >= STEP_SECONDS:
                return
            rows += 1 + rows // 4

    def step(self) -> None:
        loss = sum(functional.linear(self._batch, weight).square().mean() for weight in self.state.model)
        loss.backward()  # type: ignore[union-attr]
        self.state.optimizer.step()
        self.state.optimizer.zero_grad()


class Plain(Protocol):
    """What is saved."""

    def plain(self) -> dict[str, Any]:
        """As torch's own savers take it."""


class Way(Protocol):
    """A way to save."""

    def save(self, number: int) -> None:
        """Save; returns when training may continue."""

    def durable(self) -> float | None:
        """The seconds from the beginning of the save until it was durable; None until then."""

    def memory(self) -> int:
        """Bytes outside this process's own memory figures."""


class Blocking:
    """A way that returns when it is done."""

    def __init__(self, act: Callable[[int], object]) -> None:
        self._act = act
        self._took: float | None = None

    def save(self, number: int) -> None:
        begun = time.perf_counter()
        self._act(number)
        self._took = time.perf_counter() - begun

    def durable(self) -> float | None:
        return self._took

    def awaited(self) -> float:
        """The seconds that the last save took."""
        return self._took or 0.0

    def memory(self) -> int:
        return 0


class Dcp:
    """dcp.async_save, with its own stager each time or a reused one; over the ranks of a group if there is one.

    `process`: by another process, which needs a group, from shared memory, pinned if there is a device; plans are kept.
    """

    def __init__(
        self, state: Plain, folder: Path, *, kept: bool, process: bool = False, group: ProcessGroup | None = None
    ) -> None:
        self._state, self._folder = state, folder
        self._options: dict[str, Any] = {"process_group": group, "no_dist": group is None}
        if kept:
            pinned = process and torch.cuda.is_available()
            options = StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=process,
                use_async_staging=False,
                use_non_blocking_copy=pinned,
            )
            self._options["async_stager"] = DefaultStager(options)
        if process:
            self._options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
            self._options["planner"] = DefaultSavePlanner(enable_plan_caching=True)
        self._future: Future[Any] | None = None
        self._ended: float | None = None
        self._timed = threading.Event()
        """Set once `_ended` is known: a future's waiters may go on before its callbacks."""

    def save(self, number: int) -> None:
        begun, self._ended = time.perf_counter(), None
        self._timed.clear()

        def ended(_: Future[Any]) -> None:
            self._ended = time.perf_counter() - begun
            self._timed.set()

        where = self._folder / str(number)
        found = async_save(self._state.plain(), checkpoint_id=where, **self._options)
        if not isinstance(found, Future):
            raise TypeError("dcp.async_save has staged in the background")
        self._future = found
        self._future.add_done_callback(ended)

    def durable(self) -> float | None:
        if self._future and self._future.done():
            self._future.result()
        return self._ended

    def awaited(self) -> float:
        """The seconds until the last save was durable, which it waits for."""
        self._timed.wait()
        return self.durable() or 0.0

    def memory(self) -> int:
        return 0


class Behind:
    """A copy into the arena, and an upload by another process. Its commit, a manifest and an entry of the log, is not
    included: nothing joins the parts of all ranks yet."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        self._registry = registry
        self.arena = Arena()
        self._uploader = Uploader(self.arena, folder.as_uri())
        self._uploader.start()
        self._copied = 0.0
        self._took: float | None = None

    def save(self, number: int) -> None:
        begun, self._took = time.perf_counter(), None
        staged = stage(self._registry.state(None), 0, 1)
        part = self.arena.fill(staged, uid="u", run=1, name=str(number), position=Position(number, 0))
        self._uploader.order(f"data/1/{number}-{number:016x}/", part)
        self._copied = time.perf_counter() - begun

    def durable(self) -> float | None:
        for word in self._uploader.words():
            if isinstance(word, UploadFailed):
                raise RuntimeError(word.why)
            if isinstance(word, PartUploaded):
                self._took = self._copied + word.seconds
        return self._took

    def memory(self) -> int:
        return self.arena.held + memory_of("VmHWM", self._uploader.pid)

    def close(self) -> None:
        self._uploader.close()
        self.arena.close()


def main() -> None:
    torch.set_num_threads(1)
    folder, mib, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    training = Training(mib)
    registry = Registry()
    registry.add("model", training.state.model)
    registry.add("optimizer", training.state.optimizer)
    copies = first_copies(registry)
    behind = Behind(registry, folder / "behind")
    behind.arena.prepare(mib * MIB + MIB)
    behind.arena.prepared()
    ways: dict[str, Way] = {
        "Perdure, blocking": Blocking(blocking_save(registry, folder / "blocking")),
        "Perdure, behind": behind,
        "dcp.async_save": Dcp(training.state, folder / "dcp", kept=False),
        "dcp.async_save, its stager kept": Dcp(training.state, folder / "kept", kept=True),
        "torch.save": Blocking(lambda number: torch_save(training.state, folder / f"{number}.pt")),
    }
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    control, peak = [steps(training)], memory_of("VmHWM")
    names = list(ways)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            costs = save(training, ways[name], number + 1)
            control.append(steps(training))
            if number:  # in the first round, each way's memory is new
                found[name].append(against(costs, statistics.mean(control[-2] + control[-1]), peak))
            peak = memory_of("VmHWM")
            for old in (folder / "dcp", folder / "kept", *folder.glob("*.pt"), folder / "behind" / "data"):
                shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    behind.close()
    print(json.dumps({"ways": found, "step": [seconds for block in control for seconds in block], "copies": copies}))


def first_copies(registry: Registry) -> dict[str, float]:
    """Seconds of a copy into an arena: with new memory, with memory that was prepared, and again."""
    staged, seconds = stage(registry.state(None), 0, 1), {}
    for kind in ("new", "prepared"):
        arena = Arena()
        if kind == "prepared":
            arena.prepare(staged.size)
            arena.prepared()
        for again in ("", " again"):
            begun = time.perf_counter()
            arena.fill(staged, uid="u", run=1, name="aa", position=Position(1, 0))
            seconds[kind + again] = time.perf_counter() - begun
        arena.close()
    return seconds


def blocking_save(registry: Registry, folder: Path) -> Callable[[int], object]:
    store = open_store(folder.as_uri(), {})
    writer = Writer(Log(store), uid="u", run=None)
    writer.try_open(1, wait_over=True)
    made = Checkpointer(store, Solo(), writer, 1, 2, NoTrace(), Timings(), lambda: registry.state(None))
    return lambda number: made.periodic(Position(number, 0), "bench")


def torch_save(state: State, file: Path) -> None:
    with file.open("wb") as opened:
        torch.save(state.plain(), opened)
        opened.flush()
        os.fsync(opened.fileno())


def steps(training: Training) -> list[float]:
    """Seconds of each of some steps without a save."""
    os.sync()  # earlier writes of others must not count
    new_peak()
    found = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        training.step()
        found.append(time.perf_counter() - begun)
    return found


def save(training: Training, way: Way, number: int) -> dict[str, Any]:
    """A save, and steps until it is durable."""
    os.sync()
    new_peak()
    begun = time.perf_counter()
    way.save(number)
    held, after = time.perf_counter() - begun, 0
    during: list[float] = []
    while len(during) + after < STEPS or way.durable() is None:
        under_way, then = way.durable() is None, time.perf_counter()
        training.step()
        if under_way:
            during.append(time.perf_counter() - then)
        else:
            after += 1
    wall = time.perf_counter() - begun
    return {
        "held": held,
        "wall": wall,
        "steps": len(during) + after,
        "durable": way.durable(),
        "during": during[:-1] or during,  # in the last one it has become durable
        "peak": memory_of("VmHWM") + way.memory(),
    }


def against(costs: dict[str, Any], step: float, peak: int) -> dict[str, float]:
    """The cost of a save, compared with steps of so many seconds and so much peak memory."""
    during = statistics.mean(costs["during"]) / step if costs["during"] else 1.0
    stall, extra = costs["wall"] - costs["steps"] * step, (costs["peak"] - peak) / MIB
    return {"held": costs["held"], "durable": costs["durable"], "stall": stall, "during": during, "extra": extra}


def new_peak() -> None:
    """Reset this process's peak memory."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_of(what: str, pid: int | str | None = "self") -> int:
    """Bytes, as the kernel reports them for a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


if __name__ == "__main__":
    main()
