"""Saves a training state in one way, loads it again, and prints what each costs, as JSON.

`load` is into a state that is there, `start` into that of a new process, whose optimizer has not taken a step.

    python -m e2e.bench.saving WAY FOLDER MIB

Started by e2e.bench.runtime, once per way and round: the most memory a process ever had is a fact of the process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.opening import load_newest
from perdure.group.peers import Solo
from perdure.log.position import Position
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import NoTrace
from perdure.state.registry import Registry
from perdure.store import open_store
from perdure.wire.settings import Settings

MIB = 1024 * 1024
LAYERS = 16


class State:
    """Weights and AdamW's two averages of them, in 48 tensors."""

    def __init__(self, mib: int, *, stepped: bool) -> None:
        rows = mib * MIB // 4 // 3 // LAYERS // 1024
        self.model = nn.ParameterList(torch.full((rows, 1024), 1.0) for _ in range(LAYERS))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model if stepped else ():
            averages = {name: torch.full_like(parameter, 0.5) for name in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[parameter] = {"step": torch.tensor(1.0), **averages}

    def plain(self) -> dict[str, Any]:
        """As torch's own savers take it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()["state"]}

    def flat(self) -> dict[str, Tensor]:
        """As safetensors takes it."""
        averages = self.optimizer.state_dict()["state"].items()
        found = {f"{number}.{name}": value for number, values in averages for name, value in values.items()}
        return dict(self.model.state_dict()) | found


Costs = dict[str, dict[str, float]]


def perdure(folder: Path, mib: int) -> Costs:
    """An exit save and a restore."""
    store = open_store(folder.as_uri(), {})

    def opened(state: State) -> tuple[Writer, Registry, Checkpointer]:
        writer, registry = Writer(Log(store), uid="u", run=None), Registry()
        writer.try_open(1, wait_over=True)
        registry.add("model", state.model)
        registry.add("optimizer", state.optimizer)
        made = Checkpointer(store, Solo(), writer, 1, 3, NoTrace(), Timings(), lambda: registry.state(None))
        return writer, registry, made

    def restore(writer: Writer, registry: Registry) -> None:
        loaded = load_newest(Settings(folder.as_uri()), store, Solo(), writer, registry)
        if loaded is None:
            raise RuntimeError("nothing was saved")
        registry.load(loaded.state)

    def saved_and_loaded(live: State) -> tuple[dict[str, float], dict[str, float]]:
        _, _, checkpointer = opened(live)
        saved = cost(lambda: checkpointer.final(Position(1, 0), "bench", lambda: 600.0))
        writer, registry, _ = opened(live)
        return saved, cost(lambda: restore(writer, registry))

    saved, loaded = saved_and_loaded(State(mib, stepped=True))
    new = State(mib, stepped=False)
    writer, registry, _ = opened(new)
    return {"save": saved, "load": loaded, "start": cost(lambda: restore(writer, registry), live=mib * 2 / 3)}


def torch_save(folder: Path, mib: int) -> Costs:
    """torch.save with fsync, torch.load and load_state_dict."""
    state, file = State(mib, stepped=True), folder / "state.pt"

    def save() -> None:
        with file.open("wb") as opened:
            torch.save(state.plain(), opened)
            opened.flush()
            os.fsync(opened.fileno())

    def load() -> None:
        found = torch.load(file, weights_only=True)
        state.model.load_state_dict(found["model"])
        state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": found["optimizer"]})

    return {"save": cost(save), "load": cost(load)}


def safetensors_save(folder: Path, mib: int) -> Costs:
    """safetensors.torch.save_file with fsync, and load_file with load_state_dict for the weights."""
    state, file = State(mib, stepped=True), folder / "state.safetensors"

    def save() -> None:
        safetensors.torch.save_file(state.flat(), file)
        with file.open("rb") as opened:
            os.fsync(opened.fileno())

    def load() -> None:
        found = safetensors.torch.load_file(file)
        for name, value in state.flat().items():
            value.copy_(found[name])

    return {"save": cost(save), "load": cost(load)}


def dcp(folder: Path, mib: int) -> Costs:
    """dcp.save, which syncs its files; dcp.load, in a new process as its tutorial has it: by get_state_dict, which
    gives the optimizer its state, and set_state_dict.
    """
    where = folder / "dcp"

    def saved_and_loaded(live: State) -> tuple[dict[str, float], dict[str, float]]:
        saved = cost(lambda: dcp_save(live.plain(), checkpoint_id=where, no_dist=True))
        return saved, cost(lambda: dcp_load(live.plain(), checkpoint_id=where, no_dist=True))

    saved, loaded = saved_and_loaded(State(mib, stepped=True))
    new = State(mib, stepped=False)

    def start() -> None:
        model, optimizer = get_state_dict(new.model, new.optimizer)
        dcp_load({"model": model, "optimizer": keyed(optimizer)}, checkpoint_id=where, no_dist=True)
        set_state_dict(new.model, new.optimizer, model_state_dict=model, optim_state_dict=optimizer)

    return {"save": saved, "load": loaded, "start": cost(start, live=mib * 2 / 3)}


def keyed(optimizer: Mapping[str, Any]) -> dict[int, Any]:
    """An optimizer's state by number, as it was saved, from one by name."""
    return {int(name): value for name, value in optimizer["state"].items()}


def cost(act: Callable[[], object], live: float = 0.0) -> dict[str, float]:
    """Seconds, CPU seconds, and MiB of memory beyond the process's earlier memory and `live`, which training keeps."""
    os.sync()  # earlier writes of others must not count
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, used, begun = _memory("VmRSS"), _cpu(), time.perf_counter()
    act()
    wall = time.perf_counter() - begun
    return {"wall": wall, "cpu": _cpu() - used, "extra": (_memory("VmHWM") - before) / MIB - live}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


WAYS = {"Perdure": perdure, "torch.save": torch_save, "safetensors": safetensors_save, "dcp.save": dcp}


def main() -> None:
    torch.set_num_threads(1)
    way, folder, mib = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(WAYS[way](folder, mib)))


if __name__ == "__main__":
    main()
