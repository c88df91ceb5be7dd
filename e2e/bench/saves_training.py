"""Trains as one rank, saves now and then in one way, and prints what each save cost this rank, as JSON.

    python -m e2e.bench.saves_training WAY ROOT KIND MIB SECONDS ROUNDS
    python -m e2e.bench.saves_training WAY ROOT KIND MIB restore

WAY is `perdure`, `control` (it never saves), `dcp` (async_save with a kept stager), `dcp-process` (the same with
another process, shared memory and plans that are kept), `torch-checkpointing`, or one that training waits for:
`dcp-save`, `torch`, `safetensors`. ROOT is the root's URI, or the others' folder. KIND is `whole`, `lora` (all but one
layer is frozen) or `fsdp2`. A step takes about SECONDS; that of fsdp2 as long as it takes. Half of the steps between
two saves bear the save, the other half are the control. With `restore` it loads what was saved, in a new process.
Started by e2e.bench.saves.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import perdure
from e2e.bench.commits import Commits
from e2e.bench.stalling import Blocking, Dcp, memory_of
from e2e.bench.torch_checkpointing_way import TorchCheckpointing
from perdure.checkpoint import boxes

LAYER_MIB: Final = 4
WIDTH: Final = 1024
STATES: Final = 3
"""A trained tensor and AdamW's two averages of it."""
HALF_SECONDS: Final = 6.0
"""A save of 1 GiB is durable within the half of the steps that bear it."""
HALF_STEPS: Final = 8
"""At least."""
PEAK_STEPS: Final = 4
"""Its memory is looked at after so many steps."""


class Training:
    """Steps that take about so many seconds, with the same results on every rank."""

    def __init__(self, kind: str, mib: int, seconds: float) -> None:
        self.sharded = kind == "fsdp2"
        trained = 1 if kind == "lora" else mib // LAYER_MIB // STATES
        frozen = mib // LAYER_MIB - STATES if kind == "lora" else 0
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(frozen + trained)))
        for layer in self.model[:frozen]:
            layer.requires_grad_(requires_grad=False)
        if self.sharded:
            mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
            for part in (*self.model, self.model):
                fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.AdamW([one for one in self.model.parameters() if one.requires_grad], lr=1e-5)
        for parameter in () if self.sharded else self.optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, 1e-3)
        self._batch = torch.rand(64, WIDTH)
        self._work, self._scratch = 0, torch.rand(256, 256)
        self.window = 0.0
        """Seconds of the last step until its optimizer stepped."""
        self.update_guard: Callable[[], AbstractContextManager[object]] = nullcontext
        """The optimizer steps within it."""
        if seconds:
            self._calibrate(seconds)

    def _calibrate(self, seconds: float) -> None:
        self.step()
        begun = time.perf_counter()
        self.step()
        left, begun = seconds - (time.perf_counter() - begun), time.perf_counter()
        for _ in range(50):
            self._scratch @ self._scratch
        self._work = max(0, int(50 * left / (time.perf_counter() - begun)))

    def step(self) -> None:
        begun = time.perf_counter()
        for _ in range(self._work):
            self._scratch @ self._scratch
        if self.sharded:
            self.optimizer.zero_grad()
            self.model(self._batch).square().mean().backward()
        self.window = time.perf_counter() - begun
        with self.update_guard():
            self.optimizer.step()

    def seconds_of_a_copy(self) -> float:
        """Of this rank's part of what is trained, into memory that is there; the second of two."""
        live = [boxes.local(one).detach() for one in self.optimizer.param_groups[0]["params"]]
        live += [boxes.local(one) for state in self.optimizer.state.values() for one in state.values()]
        kept = [torch.empty_like(one) for one in live]
        for _ in range(2):
            begun = time.perf_counter()
            for target, one in zip(kept, live, strict=True):
                target.copy_(one)
        return time.perf_counter() - begun

    def flat(self) -> dict[str, Tensor]:
        """As safetensors takes it."""
        averages = self.optimizer.state_dict()["state"].items()
        found = {f"{number}.{name}": value for number, values in averages for name, value in values.items()}
        return dict(self.model.state_dict()) | found

    def plain(self) -> dict[str, Any]:
        """As dcp takes it."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


class Clock:
    """When each step began and ended, and the CPU seconds of this process and its children until then."""

    def __init__(self) -> None:
        self.requested: list[float] = []
        self.stepped: list[float] = []
        self.cpu: list[float] = []
        self.peak = 0
        """The most memory in bytes that this process and its children ever had, together at most."""

    def begins(self) -> None:
        self.requested.append(time.perf_counter())

    def ends(self) -> None:
        self.stepped.append(time.perf_counter())
        self.cpu.append(cpu_seconds())
        if len(self.stepped) % PEAK_STEPS == 0:
            self.peak = max(self.peak, sum(memory_of("VmHWM", pid) for pid in living()))


def living() -> list[int]:
    """This process and its children."""
    return [os.getpid(), *map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())]


def cpu_seconds() -> float:
    """Of this process and its living children."""
    ticks = 0
    for pid in living():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def half_of(mib: int, seconds: float) -> int:
    """How many steps bear a save, and how many are its control."""
    half = HALF_SECONDS * max(0.5, mib / 1024)
    return max(HALF_STEPS, math.ceil(half / seconds)) if seconds else HALF_STEPS


Ends = list[dict[str, float]]
"""Of each save the seconds until it was durable, and of ours until the ranks knew it."""


def by_perdure(root: str, training: Training, half: int, rounds: int) -> tuple[Clock, Ends]:
    """Its own saves, every so many steps."""
    clock, commits = Clock(), Commits()
    os.environ |= {"PERDURE_EVERY_STEPS": str(2 * half), "PERDURE_KEEP": "1", "PERDURE_BACKGROUND_BYTES": "0"}
    with perdure.Session.from_env(root) as session:
        session.register(model=training.model, optimizer=training.optimizer)
        session.on("committed", commits.told)
        for _ in session.epochs(1):
            for _ in session.steps(2 * half * (rounds + 2)):
                clock.begins()
                training.step()
                clock.ends()
                session.step()
    made, ends = commits.made(root), Ends()
    for step in range(2 * half, 2 * half * (rounds + 2), 2 * half):
        begun = clock.stepped[step - 1]
        ends.append({"durable": made[step] - begun, "known": commits.known[step] - begun})
    return clock, ends


class Never:
    """The control: it saves nothing."""

    def save(self, number: int) -> None:
        """Nothing."""

    def awaited(self) -> float:
        """No time."""
        return 0.0


def other_way(name: str, training: Training, folder: Path) -> Any:
    """A way to save that is not Perdure's."""
    # A group of its own: it saves beside the collectives of training.
    group: dist.ProcessGroup | None = dist.new_group() if dist.is_initialized() else None  # type: ignore[assignment]
    single = not dist.is_initialized()
    match name:
        case "control":
            return Never()
        case "dcp" | "dcp-process":
            return Dcp(training, folder, kept=True, process=name == "dcp-process", group=group)
        case "torch-checkpointing":
            way = TorchCheckpointing(training, folder)
            training.update_guard = way.lock
            return way
        case "dcp-save":
            return Blocking(lambda step: dcp_save(training.plain(), checkpoint_id=folder / str(step), no_dist=single))
        case "torch":
            return Blocking(lambda step: synced(folder / str(step), lambda to: torch.save(training.plain(), to)))
        case "safetensors":
            return Blocking(
                lambda step: synced(folder / str(step), lambda to: safetensors.torch.save_file(training.flat(), to))
            )
    raise ValueError(name)


def synced(file: Path, write: Callable[[Path], object]) -> None:
    """Writes a file, and waits for the disk."""
    write(file)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def by_another(way: Any, training: Training, half: int, rounds: int) -> tuple[Clock, Ends]:
    """Every so many steps it saves, and nobody else does."""
    clock, ends = Clock(), Ends()
    for step in range(2 * half * (rounds + 2)):
        if step and step % (2 * half) == 0:
            ends += [{"durable": way.awaited()}] if step > 2 * half else []
            way.save(step)
        clock.begins()
        training.step()
        clock.ends()
    return clock, [*ends, {"durable": way.awaited()}]


def figures(clock: Clock, ends: Ends, half: int, rounds: int, gib: float) -> list[dict[str, float]]:
    """The costs of each save but the first, for which memory is new."""
    found = []
    for number in range(2, rounds + 2):
        first = number * 2 * half
        control, end = first + half, first + 2 * half - 1
        alone = (clock.stepped[end] - clock.stepped[control]) / (end - control)
        bears = clock.stepped[control] - clock.stepped[first - 1]
        steps = [clock.stepped[step] - clock.requested[step] for step in range(first, control)]
        cpu_alone = (clock.cpu[end] - clock.cpu[control]) / (end - control)
        cpu = clock.cpu[control] - clock.cpu[first - 1] - cpu_alone * (half + 1)
        found.append(
            {
                "step": alone,
                "held": clock.requested[first] - clock.stepped[first - 1],
                "stall": bears - alone * (half + 1),
                "during": statistics.mean(steps) / alone,
                "cpu": cpu / gib,
                "came": clock.stepped[first - 1],
                "given": clock.requested[first],
                **ends[number - 1],
            }
        )
    return found


def restored_by_perdure(root: str, training: Training) -> float:
    """Seconds of the restore."""
    with perdure.Session.from_env(root) as session:
        session.register(model=training.model, optimizer=training.optimizer)
        begun = time.perf_counter()
        perdure.restore(session)
        return time.perf_counter() - begun


def restored_by_dcp(folder: str, training: Training) -> float:
    """Seconds of the load into what is there."""
    newest = max(Path(folder).glob("[0-9]*"), key=lambda path: int(path.name))
    training.step()  # the optimizer's state is there
    state = training.plain()
    begun = time.perf_counter()
    dcp_load(state, checkpoint_id=newest, no_dist=not dist.is_initialized())
    return time.perf_counter() - begun


def main() -> None:
    torch.set_num_threads(1)
    way, root, kind, mib, seconds = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5]
    world = int(os.environ["WORLD_SIZE"])
    if way == "dcp-process" or (way != "perdure" and (world > 1 or kind == "fsdp2")):
        dist.init_process_group("gloo")
    if seconds == "restore":
        training = Training(kind, mib, 0.0)
        found: Any = (restored_by_perdure if way == "perdure" else restored_by_dcp)(root, training)
    else:
        rounds, length = int(sys.argv[6]), 0.0 if kind == "fsdp2" else float(seconds)
        training, half = Training(kind, mib, length), half_of(mib, length)
        if way == "perdure":
            clock, ends = by_perdure(root, training, half, rounds)
        else:
            clock, ends = by_another(other_way(way, training, Path(root)), training, half, rounds)
        copied, window = training.seconds_of_a_copy(), training.window
        saves = figures(clock, ends, half, rounds, mib / 1024 / world)
        found = {"saves": saves, "peak": clock.peak / 2**20, "copy": copied, "window": window}
    print(json.dumps({"found": found}), flush=True)


if __name__ == "__main__":
    main()
