"""AdaptDL's example for MNIST on a Session: two loaders, a scheduler, sums that outlive restarts.

The digits are made up, so that nothing has to be fetched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure
from tests.upstream.scenes import joined

EPOCHS = 3


def digits(seed: int, size: int) -> TensorDataset:
    """Blurred patterns, one for each of ten labels."""
    patterns = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (size,), generator=generator)
    return TensorDataset(patterns[labels] + 0.3 * torch.randn(size, 1, 8, 8, generator=generator), labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(72, 10)
    )


def main(root: str) -> dict[str, Any]:
    """The accuracies of all epochs, the rate and the weights it ends with; nothing where it was left."""
    told: dict[str, Any] = {}
    with joined(root) as session:
        torch.manual_seed(1)
        net = network()
        model = session.wrap(net)
        optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        train = session.loader(digits(2, 96), batch_size=16)
        valid = session.loader(digits(3, 40), batch_size=8, name="valid", train=False)
        scores = perdure.accumulator(session)
        for epoch in perdure.remaining_epochs_until(EPOCHS):
            model.train()
            for images, labels in train:
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(images), labels)).backward()
                optimizer.step()
                session.step()
            model.eval()
            for images, labels in valid:
                with torch.no_grad():
                    right = int((model(images).argmax(1) == labels).sum())
                scores["right"] += right
            session.state["right"] = {**session.state.get("right", {}), str(epoch): scores.sum()["right"]}
            scheduler.step()
        told = {"right": session.state["right"], "rate": scheduler.get_last_lr()}
        told["weights"] = [value for parameter in net.parameters() for value in parameter.flatten().tolist()]
    return told
