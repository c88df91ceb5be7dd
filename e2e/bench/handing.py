"""The script of `e2e.bench.handover`: trains until its ranks have changed and a little longer, and reports the cost.

`python -m e2e.bench.handing small|large|huge`, or a kind of `e2e.bench.sharded`. An old rank's last line is JSON: when
its last step of the older run was done; for a stayer also the pause, its parts, when it ended, the bytes of the state,
and the peak memory in the pause beyond the memory before it. `... bare` only sends bytes over a gloo group: rank 1's
last line is the bytes per second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure
from e2e.bench import sharded
from perdure.checkpoint.tensors import PIECE_BYTES
from perdure.group.world import connect_group
from perdure.loop.telemetry.events import Event
from perdure.session.session import Session
from perdure.wire.channel import TookOver

AFTER = 3
"""Steps after the hand-over."""
WAIT_AT = 5
BARE_BYTES = 512 * 1024 * 1024


class Parts:
    """Listens for the hand-over."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """Keeps its parts."""
        if isinstance(event, TookOver):
            self.seconds = dict(event.parts)


def model(kind: str) -> nn.Module:
    """About 90 kB, 300 MB, or 358 MB, which are 1 GiB with Adam's state."""
    torch.manual_seed(0)
    if kind == "small":
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    layers = [layer for _ in range({"large": 18, "huge": 21}[kind]) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 2048), *layers, nn.Linear(2048, 10))


def main(kind: str) -> None:
    """Train, and report the cost, whether this process leaves or stays."""
    told: dict[str, float] = {}
    try:
        _train(kind, told)
    finally:
        if told:
            print(json.dumps(told), flush=True)


def _train(kind: str, told: dict[str, float]) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(6144, 64, generator=generator), torch.randint(0, 10, (6144,), generator=generator))
    with perdure.Session.from_env() as session:
        parts = Parts()
        session._core.run.reporter.add(parts)  # noqa: SLF001 - a bench may look inside
        net, mesh = sharded.model(kind, session.world) if kind in sharded.KINDS else (model(kind), None)
        wrapped = net if kind in sharded.KINDS else session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-5)
        session.register(model=wrapped, optimizer=optimizer)
        before = done = 0
        for _ in session.epochs(1):
            for inputs, labels in session.loader(data, 12, mesh=mesh):
                if perdure.progress(session).run != 1 and told and "begun" not in told:
                    told["begun"] = time.monotonic()
                    told["extra"] = memory("VmHWM") - before
                optimizer.zero_grad()
                session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
                _await_ready(session)
                if perdure.progress(session).run == 1:
                    Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory
                    before = memory("VmRSS")
                    told["stepped"] = time.monotonic()
                session.step()
                done += bool(parts.seconds)
                if done > AFTER:
                    session.stop("measured")
                    break
        if told:
            size = sum(tensor.numel() * tensor.element_size() for tensor in net.parameters()) * 3
            told["parameters"] = len(list(net.parameters()))
            told |= {**parts.seconds, "pause": told["begun"] - told["stepped"], "bytes": size}


def _await_ready(session: Session) -> None:
    """An old rank trains on only once it is ready: the bench waits for newcomers, not for steps."""
    handing = session._core.boundary.live_handover  # noqa: SLF001 - see above
    if session.steps_done == WAIT_AT and perdure.progress(session).run == 1:
        handing.look()
        handing.ready.wait(300)


def memory(field: str) -> int:
    """In MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{field}:"))


def bare() -> None:
    """gloo's speed here, from one process to another, in pieces like those of a hand-over."""
    torch.set_num_threads(1)
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    group = connect_group(store, "bare", rank=rank, size=2, timeout=timedelta(seconds=300))
    data = torch.ones(BARE_BYTES, dtype=torch.uint8)
    for number in range(2):  # the first time warms up
        begun = time.monotonic()
        pieces = data.split(PIECE_BYTES)
        works = [group.recv([piece], 0, 0) if rank else group.send([piece], 1, 0) for piece in pieces]
        for work in works:
            work.wait()
        if rank and number:
            print(json.dumps({"bandwidth": BARE_BYTES / (time.monotonic() - begun)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "bare":
        bare()
    else:
        main(sys.argv[1])
