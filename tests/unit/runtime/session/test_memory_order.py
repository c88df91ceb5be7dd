"""Restored tensors have their old memory layout: a fused optimizer goes through memory, not through indices."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.data import TensorDataset

from perdure import Session
from perdure.loop.leaving import Exit
from tests.support.covering import covering
from tests.unit.runtime.session.training import Join

EPOCHS = 3
KERNELS = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "AdamW": lambda parameters, **kernel: AdamW(parameters, lr=0.01, **kernel),
    "Adam": lambda parameters, **kernel: Adam(parameters, lr=0.01, **kernel),
    "AMSGrad": lambda parameters, **kernel: Adam(parameters, lr=0.01, amsgrad=True, **kernel),
    "momentum": lambda parameters, **kernel: SGD(parameters, lr=0.01, momentum=0.9, **kernel),
}


def turned(tensor: Tensor) -> nn.Parameter:
    """The same values, column by column."""
    return nn.Parameter(tensor.detach().t().contiguous().t())


class Net(nn.Module):
    """Parameters in every order that torch makes: rows, columns, channels last, in two and three dimensions."""

    def __init__(self, *, rows: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.plain = nn.Conv2d(3, 4, 2)
        self.last = nn.Conv2d(4, 6, 2)
        self.deep = nn.Conv3d(6, 4, (1, 2, 2))
        self.turned = nn.Linear(4, 5)
        if not rows:
            self.last.to(memory_format=torch.channels_last)
            self.deep.to(memory_format=torch.channels_last_3d)
            self.turned.weight = turned(self.turned.weight)

    def forward(self, images: Tensor) -> Tensor:
        found = self.deep(torch.relu(self.last(torch.relu(self.plain(images)))).unsqueeze(2))
        whole: Tensor = self.turned(found.mean((2, 3, 4)))
        return whole


class Seen:
    """State of the script's own, with memory of every order."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def fill(self) -> None:
        cube = np.arange(8 * 9 * 10, dtype=np.float32).reshape(8, 9, 10)
        self.values = {
            "columns": torch.arange(2000.0).reshape(40, 50).t().contiguous().t(),
            "cube": torch.arange(2000.0).reshape(10, 20, 10).permute(1, 2, 0).contiguous().permute(2, 0, 1),
            "fortran": np.asfortranarray(cube),
            "small": np.asfortranarray(cube[:2, :2, :2]),
            "moved": np.ascontiguousarray(cube.transpose(1, 2, 0)).transpose(2, 0, 1),
            "swapped": np.asfortranarray(cube.astype(">f4")),
            "long": np.asfortranarray(cube.astype(np.longdouble)),
            "reversed": cube[::-1],
            "spread": np.broadcast_to(cube[0, 0], (30, 10)),
        }

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = dict(state)


def batches() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(24, 3, 6, 6, generator=generator), torch.randn(24, 5, generator=generator))


def trained(
    session: Session, net: Net, make: Callable[..., Optimizer], *, leave: int | None = None, **kernel: Any
) -> tuple[Net, Optimizer]:
    optimizer = make(net.parameters(), **kernel)
    session.register(net=net, optimizer=optimizer)
    loader = session.loader(batches(), 8)
    with session:
        for _ in session.epochs(EPOCHS):
            for images, wanted in loader:
                optimizer.zero_grad()
                session.weighted((net(images) - wanted).square().mean()).backward()
                optimizer.step()
                if leave == session.steps_done + 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
    return net, optimizer


def orders(optimizer: Optimizer) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dim():
                yield number, name, value.stride()


@pytest.mark.parametrize(("name", "kernel"), covering(list(OPTIMIZERS), list(KERNELS), times=2))
def test_a_resumed_training_ends_with_the_weights_of_an_undisturbed_one(
    join: Join, tmp_path: Path, name: str, kernel: str
) -> None:
    make, how = OPTIMIZERS[name], KERNELS[kernel]
    whole, optimizer = trained(join(ROOT=(tmp_path / "undisturbed").as_uri()), Net(), make, **how)
    with pytest.raises(Exit):
        trained(join(), Net(), make, leave=4, **how)
    resumed, restored = trained(join(), Net(), make, **how)
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert list(orders(restored)) == list(orders(optimizer))


@pytest.mark.parametrize("rows", [False, True])
def test_moments_follow_their_parameters_into_another_memory_format(join: Join, rows: bool) -> None:
    make = OPTIMIZERS["AdamW"]
    with pytest.raises(Exit):
        trained(join(), Net(rows=not rows), make, leave=4, fused=True)
    resumed, restored = trained(join(), Net(rows=rows), make, fused=True)
    strides = [parameter.stride() for parameter in resumed.parameters()]
    assert {(number, stride) for number, _, stride in orders(restored)} == set(enumerate(strides))


def test_what_a_script_keeps_itself_comes_back_as_it_lay(join: Join) -> None:
    seen = Seen()
    seen.fill()
    with pytest.raises(Exit):
        kept(join(), seen)
    again = Seen()
    kept(join(), again)
    assert again.values.keys() == seen.values.keys()
    for name, value in seen.values.items():
        found = again.values[name]
        assert (type(found), found.dtype, found.shape) == (type(value), value.dtype, value.shape), name
        assert bool((found == value).all()), name
        if name in ("reversed", "spread"):
            continue  # backwards, or on itself: no new memory lies like that
        strides = (found.stride(), value.stride()) if isinstance(value, Tensor) else (found.strides, value.strides)
        assert strides[0] == strides[1], name
        assert isinstance(found, Tensor) or found.flags.writeable, name


def kept(session: Session, seen: Seen) -> None:
    net, loader = nn.Linear(3, 1), session.loader(TensorDataset(torch.randn(12, 3)), 4)
    session.register(net=net, seen=seen)
    with session:
        for _ in session.epochs(1):
            for _ in loader:
                if session.steps_done == 1:  # before, it would end at once
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
