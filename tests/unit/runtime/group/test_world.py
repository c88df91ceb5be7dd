"""What torch gets as its WORLD."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # it registers the group's kind
from torch.distributed import HashStore  # type: ignore[attr-defined]

from perdure.group.world import connect_group, install

PATIENCE = timedelta(seconds=120)


@pytest.mark.usefixtures("meshes_end")
def test_for_gpus_torch_makes_a_group_beside_the_one_that_is_connected_already() -> None:
    """Here one without connections stands for NCCL, which needs a GPU."""
    store = HashStore()
    connected = connect_group(store, "gradients", rank=0, size=1, timeout=PATIENCE)
    install(connected, store, rank=0, world=1, timeout=PATIENCE, backend="cpu:gloo,cuda:fake")
    world: Any = dist.group.WORLD
    assert world._get_backend(torch.device("cpu")) is connected
    assert world._get_backend(torch.device("cuda")).name() == "fake"
    dist.all_reduce(torch.ones(1))
