"""The script of `e2e.bench.handover`: trains until its ranks have changed and a little longer, and says what it cost.

`python -m e2e.bench.handing small|large`. A stayer's last line is JSON: the pause, its parts, the bytes of the state.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure
from perdure.channel import TookOver
from perdure.session.session import Session
from perdure.telemetry.events import Event

AFTER = 3
"""Steps after the hand-over."""
WAIT_AT = 5


class Parts:
    """Listens for the hand-over."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """Keeps its parts."""
        if isinstance(event, TookOver):
            self.seconds = dict(event.parts)


def model(kind: str) -> nn.Module:
    """Of some 90 kB or of 300 MB."""
    torch.manual_seed(0)
    if kind == "small":
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    layers = [layer for _ in range(18) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 2048), *layers, nn.Linear(2048, 10))


def main(kind: str) -> None:
    """Trains."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(6144, 64, generator=generator), torch.randint(0, 10, (6144,), generator=generator))
    with perdure.Session.from_env() as session:
        parts = Parts()
        session._run.reporter.add(parts)  # noqa: SLF001 - a bench may look inside
        net = model(kind)
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-5)
        session.register(model=wrapped, optimizer=optimizer)
        run, pause, stepped, done = session.run, 0.0, time.monotonic(), 0
        for _ in session.epochs(1):
            for inputs, labels in session.loader(data, 12):
                if session.run != run:
                    run, pause = session.run, time.monotonic() - stepped
                optimizer.zero_grad()
                session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
                _await_ready(session)
                stepped = time.monotonic()
                session.step()
                done += bool(parts.seconds)
                if done > AFTER:
                    session.stop("measured")
                    break
        if pause:
            size = sum(tensor.numel() * tensor.element_size() for tensor in net.parameters()) * 3
            print(json.dumps({"pause": pause, "bytes": size, **parts.seconds}), flush=True)


def _await_ready(session: Session) -> None:
    """An old rank trains on only once it is ready: the bench waits for newcomers, not for steps."""
    handing = session._boundary.handing  # noqa: SLF001 - see above
    if session.steps_done == WAIT_AT and session.run == 1:
        handing.look()
        handing.ready.wait(300)


if __name__ == "__main__":
    main(sys.argv[1])
