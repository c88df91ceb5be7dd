"""Saves or restores a training state in a process that may have little more memory than the state itself.

    python -m tests.unit.runtime.checkpoint.limited save|restore URI MIB

The limit is RLIMIT_DATA: all private writable memory, touched or not, so it is stricter than a pod's limit and needs no
rights. A program of its own because a limit is for life; started by test_memory.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
from torch import nn

from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.opening import load_newest
from perdure.group.peers import Solo
from perdure.log.position import Position
from perdure.log.reader import Log
from perdure.log.writer import Resume, Writer
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import NoTrace
from perdure.state.registry import Registry
from perdure.store import open_store
from perdure.wire.settings import Settings

MIB = 1024 * 1024
ROOM = 256 * MIB
"""What a save or a restore may need beyond the live state."""


class Average:
    """An average of the weights, kept by name inside its state."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

    def state_dict(self) -> dict[str, object]:
        return {"decay": 0.99, "shadow": self.shadow}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.shadow = state["shadow"]  # type: ignore[assignment]


class Trained:
    """Weights in a few tensors of different sizes, one transposed; an average; AdamW. Four times the weights in all."""

    def __init__(self, mib: int, filled: float) -> None:
        rows = mib * MIB // 4 // 4096 // 4 // 4
        self.model = nn.Module()
        self.model.table = nn.Parameter(torch.full((rows * 3, 4096), filled))
        self.model.turned = nn.Parameter(torch.full((4096, rows), filled).t())
        self.average = Average(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.registry = Registry()
        self.registry.add("model", self.model)
        self.registry.add("average", self.average)
        self.registry.add("optimizer", self.optimizer)

    def step(self) -> None:
        """As after a step: the optimizer's state is there and no gradient any more."""
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(1.0),
                "exp_avg": torch.full_like(parameter, 0.5),
                "exp_avg_sq": torch.full_like(parameter, 0.25),
            }

    def tensors(self) -> list[tuple[float, torch.Tensor]]:
        """Every tensor with its values after a step."""
        found = [(3.0, parameter.detach()) for parameter in self.model.parameters()]
        found += [(3.0, shadow) for shadow in self.average.shadow.values()]
        for state in self.optimizer.state.values():
            found += [(0.5, state["exp_avg"]), (0.25, state["exp_avg_sq"]), (1.0, state["step"])]
        return found


def limit(live: int) -> None:
    """From here on there is room for `live` more bytes of training's own, and ROOM."""
    status = Path("/proc/self/status").read_text()
    now = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    most = now + live + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    what, uri, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    store = open_store(uri, {})
    writer = Writer(Log(store), uid="u", run=None)
    if not isinstance(writer.try_open(1, wait_over=True), Resume):
        sys.exit("the run cannot be opened")
    trained = Trained(mib, 3.0 if what == "save" else 0.0)
    checkpointer = Checkpointer(
        store, Solo(), writer, writer.run, 3, NoTrace(), Timings(), lambda: trained.registry.state(None)
    )
    if what == "save":
        trained.step()
        limit(0)
        checkpointer.rehearse()
        checkpointer.final(Position(1, 0), "drained", lambda: 600.0)
    else:
        limit(mib * MIB // 2)
        loaded = load_newest(Settings(uri), store, Solo(), writer, trained.registry)
        if loaded is None:
            sys.exit("there is nothing to restore")
        trained.registry.load(loaded.state)
        checkpointer.rehearse()
        wrong = [tuple(tensor.shape) for value, tensor in trained.tensors() if not bool((tensor == value).all())]
        print(len(trained.tensors()), "tensors", *wrong)


if __name__ == "__main__":
    main()
