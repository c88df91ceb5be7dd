"""How a model is wrapped for training on several ranks, and the sum whose result does not depend on a restart.

Plain DDP rebuilds its buckets after the first backward, so a restarted process takes its first step on another
layout; in a ring an element's place decides the order in which the ranks' values are added. With two ranks there is
one order only; with more, results after a restart differ in the last bit. The hook here adds in rank order always.

Called by `Session.wrap`.
"""

# No `from __future__ import annotations`: register_comm_hook compares the hook's annotations with the classes.
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLD_WITH_ONE_ORDER = 2


def wrap(model: nn.Module, *, world: int, deterministic: bool, options: dict[str, Any]) -> nn.Module:
    """The model as it is to be called in training; itself in a world of one, or if it has nothing to train."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if world == 1 or not parameters:
        return model
    device = parameters[0].device
    if device.type == "cuda" and len({parameter.device for parameter in parameters}) == 1:
        options = {"device_ids": [device.index], **options}
    wrapped = DistributedDataParallel(model, **options)
    if deterministic and world > WORLD_WITH_ONE_ORDER:
        wrapped.register_comm_hook(None, mean_in_rank_order)
    return wrapped


def mean_in_rank_order(
    _state: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The mean over ranks, each element's values added from rank 0 upwards."""
    gradients = bucket.buffer()
    world = dist.get_world_size()
    chunk = -(-gradients.numel() // world)
    own = gradients.new_zeros(world * chunk)
    own[: gradients.numel()] = gradients
    parts = torch.empty_like(own)
    dist.all_to_all_single(parts, own)
    total = parts[:chunk].clone()
    for rank in range(1, world):
        total += parts[rank * chunk : (rank + 1) * chunk]
    total /= world
    dist.all_gather_into_tensor(own, total)
    gradients.copy_(own[: gradients.numel()])
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done
