"""How a model is wrapped for training on several ranks, and the sum whose result does not depend on a restart.

Plain DDP rebuilds its buckets after the first backward, so a restarted process takes its first step on another
layout; in a ring an element's place decides the order in which the ranks' values are added. With two ranks there is
one order only; with more, results after a restart differ in the last bit. The hook here adds in rank order always.

Also which device a process takes. Called by the session.
"""

# No `from __future__ import annotations`: register_comm_hook compares the hook's annotations with the classes.
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLD_WITH_ONE_ORDER = 2


def take_device(local_rank: int) -> torch.device:
    """The device of this process, made torch's current one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


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
        wrapped.register_comm_hook(options.get("process_group"), mean_in_rank_order)
    return wrapped


def mean_in_rank_order(
    group: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The mean over the group's ranks, each element's values added from rank 0 upwards; None: of all ranks."""
    gradients = bucket.buffer()
    world = dist.get_world_size(group)
    chunk = -(-gradients.numel() // world)
    own = gradients.new_zeros(world * chunk)
    own[: gradients.numel()] = gradients
    own /= world  # before they are added, as DDP does it: 16-bit sums would overflow
    parts = torch.empty_like(own)
    dist.all_to_all_single(parts, own, group=group)
    total = parts[:chunk].clone()
    for rank in range(1, world):
        total += parts[rank * chunk : (rank + 1) * chunk]
    dist.all_gather_into_tensor(own, total, group=group)
    gradients.copy_(own[: gradients.numel()])
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done
