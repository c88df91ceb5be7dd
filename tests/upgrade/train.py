"""A small training with what a resume can get wrong: momentum, dropout, a schedule, shuffled samples.

Prints which perdure it ran on and a hash of the weights.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import perdure

torch.manual_seed(0)
inputs = torch.randn(96, 4)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

with perdure.Session.from_env() as session:
    model = session.wrap(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    session.register(model=model, optimizer=optimizer, schedule=schedule)
    batches = session.loader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=16)
    for _ in session.epochs(3):
        for data, target in batches:
            loss = session.weighted(mse_loss(model(data), target))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step()
        schedule.step()

weights = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in net.state_dict().values()))
print(Path(perdure.__file__).parent)
print(weights.hexdigest())
