"""What MindSpore's tutorial on graceful exit does, as a script: a hundred epochs, a file or a signal that ends them.

`python graceful.py OUT [--evaluate] [--ask SIGTERM --after "epoch 2"]`: the model is exported to OUT/model.pt when the
run leaves, and at its end; the signal comes right after that line.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure

EPOCHS = 100
BATCHES = 8


def images(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (64,), generator=generator)
    return TensorDataset(torch.randn(64, 1, 8, 8, generator=generator), labels)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))


def say(line: str, ask: str | None, after: str) -> None:
    print(line, flush=True)
    if ask and line == after:
        os.kill(os.getpid(), signal.Signals[ask])


def main(out: Path, *, evaluate: bool, ask: str | None, after: str) -> None:
    torch.manual_seed(0)
    signals, file = [signal.SIGUSR1], out / "config.json"
    with perdure.Session.from_env(exit_signals=signals, exit_file=file) as session:
        net = network()
        model = session.wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        session.register(model=model, optimizer=optimizer)
        train = session.loader(images(1), batch_size=64 // BATCHES)
        valid = session.loader(images(2), batch_size=64 // BATCHES, name="valid", train=False)

        @session.on("leaving")
        def export(cause: str) -> None:
            print(f"leaving after step {session.steps_done}: {cause}", flush=True)
            torch.save(net.state_dict(), out / "model.pt")

        for epoch in session.epochs(1 if evaluate else EPOCHS):
            for inputs, labels in train:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                optimizer.step()
                session.step()
            say(f"epoch {epoch}", ask, after)
            if evaluate:
                for inputs, _ in valid:
                    with torch.no_grad():
                        model(inputs)
                    say(f"evaluated {len(valid) - valid.remaining}", ask, after)
        torch.save(net.state_dict(), out / "model.pt")
        print("done")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--ask")
    parser.add_argument("--after", default="")
    main(**vars(parser.parse_args()))
