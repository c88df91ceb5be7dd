"""Trains a small model on a device, and says what a save costs a step and how much memory of the device is in use.

python -m e2e.gpu_card.training --device cuda --steps 200 [--mib 16384] [--pace 0.05]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure

BATCH = 12
CLASSES = 10
WIDE = 1024
STATES = 3
"""A parameter and Adam's two averages, of 4 bytes each."""


def model(mib: int) -> nn.Module:
    """With Adam's averages about so large."""
    layers = max(1, mib * 2**20 // (STATES * 4 * WIDE * WIDE)) if mib else 1
    wide = WIDE if mib else 32
    hidden = [part for _ in range(layers) for part in (nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(0.1))]
    return nn.Sequential(nn.Linear(16, wide), *hidden, nn.Linear(wide, CLASSES))


def digest(net: nn.Module) -> str:
    """SHA-256 over its tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        found.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def synchronized(device: torch.device) -> float:
    """The time at which the device has done all."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def in_use(device: torch.device) -> int:
    """Bytes of the device's memory that tensors use; 0 on CPUs."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


def main() -> None:
    """Train to the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--mib", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that each step waits beside its work")
    wanted = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    samples = wanted.steps * BATCH
    labels = torch.randint(0, CLASSES, (samples,), generator=generator)
    data = TensorDataset(torch.randn(samples, 16, generator=generator), labels)
    steps: list[float] = []
    with perdure.Session.from_env() as session:
        device = session.device if wanted.device == "cuda" else torch.device("cpu")
        net = model(wanted.mib).to(device)
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        session.register(model=wrapped, optimizer=optimizer)
        for _ in session.epochs(1):
            before = synchronized(device)
            for inputs, wanted_labels in session.loader(data, BATCH):
                optimizer.zero_grad()
                loss = session.weighted(cross_entropy(wrapped(inputs.to(device)), wanted_labels.to(device)))
                loss.backward()
                optimizer.step()
                time.sleep(wanted.pace)
                session.step()
                now = synchronized(device)
                steps.append(now - before)
                before = now
                session.result = {"device_mib": in_use(device) / 2**20}
        session.result = {
            "digest": digest(net),
            "step_ms": 1e3 * statistics.median(steps),
            "slowest_ms": 1e3 * max(steps[1:], default=0.0),
        }


if __name__ == "__main__":
    main()
