"""Wraps a model for training on several ranks, and sums gradients so that a restart does not change the result.

Plain DDP rebuilds its buckets after the first backward pass, so a restarted process takes its first step with another
layout. In a ring an element's place decides the order in which the ranks' values are added. With two ranks there is
only one order; with more, results after a restart differ in the last bit. The hook here always adds in rank order.

Ranks may change while a script runs, so the script gets a wrapper that stays the same. This module also decides which
device a process takes. Called by the session.
"""

# No `from __future__ import annotations`: register_comm_hook compares the hook's annotations with the classes.
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perdure.state import keepers
from perdure.state.outline import Outline
from perdure.state.parameter_layouts import AllGather, check_alike
from perdure.state.shards import sharded_parts

WORLD_WITH_ONE_ORDER = 2
COPY = "a copy of a model that session.wrap has wrapped: copy what is inside, its `module`"


def take_device(local_rank: int) -> torch.device:
    """The device of this process, made torch's current one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


class GradientWatch(Protocol):
    """Looks at gradients where ranks average them."""

    def before_mean(self, bucket: dist.GradBucket) -> Callable[[], None]:  # type: ignore[name-defined]
        """Sees this rank's gradients. The returned function is called when their mean is in their place."""
        ...


class Replica(nn.Module):
    """A model as training calls it, in a world of any size: the script keeps this object while its inside is replaced.

    `module` is the script's model. With several ranks it is called through DistributedDataParallel. That one is
    replaced when the ranks change, because an old one keeps buckets that other ranks lack, and when parameters are
    frozen, unfrozen or added, because it averages the gradients of exactly the parameters with which it was made, and
    waits for all of them.
    """

    module: nn.Module

    def __init__(self, module: nn.Module, *, deterministic: bool, options: dict[str, Any]) -> None:
        super().__init__()
        keepers.disregard(self)
        self.module = module
        # In a list, so that it is no submodule, which would double all names.
        self._called: list[nn.Module] = [module]
        self._deterministic = deterministic
        self._options = _placed(module, options)
        self._hook: tuple[Any, Any] | None = None
        self._watch: GradientWatch | None = None
        self._has_own_hook = False
        """Whether the present inside averages by a hook of ours."""
        self._waits = False
        """Whether a static graph waits for the first part of a batch whose gradients are averaged."""
        self._world = 1
        self._made_with: list[tuple[nn.Parameter, bool]] = []
        """The parameters, and whether each was trained, when the present inside was made."""
        self._outline = Outline(module)
        self._made_of = self._outline.parameters()

    def adapt(self, world: int, *, equal: bool = False, gather: AllGather | None = None) -> None:
        """Makes what training calls in a world of this size. `equal`: all ranks have the same weights already. With
        `gather`, UserError on all ranks if their models differ."""
        before = self._called[0]
        if isinstance(before, DistributedDataParallel):
            before._remove_autograd_hooks()  # noqa: SLF001 - otherwise both would reduce
        self._called[0] = self.module
        self._has_own_hook = self._waits = False
        self._world = world
        self._made_of = self._outline.parameters()
        self._made_with = [(parameter, parameter.requires_grad) for parameter in self.module.parameters()]
        if world > 1 and any(trained for _, trained in self._made_with):
            if gather:
                check_alike(gather, self.module, self._options)
            options = {"init_sync": False, **self._options} if equal else self._options
            self._called[0] = self._distributed(world, options)
            self._called[0].training = self.training  # not by train(): parts of the model may be frozen

    def let_go(self) -> None:
        """Drops its process group: from now on this calls the script's model."""
        self.adapt(1)

    def _distributed(self, world: int, options: dict[str, Any]) -> DistributedDataParallel:
        wrapped = DistributedDataParallel(self.module, **options)
        keepers.disregard(wrapped)
        own = None if self._hook else self._own_hook(world)
        self._has_own_hook = own is not None
        if hook := self._hook or own:
            wrapped.register_comm_hook(*hook)
        return wrapped

    def _own_hook(self, world: int) -> tuple[Any, Any] | None:
        in_rank_order = self._deterministic and world > WORLD_WITH_ONE_ORDER
        if self._watch and not self.lasting:
            return WatchedMean(self._watch, in_rank_order=in_rank_order), watched_mean
        return (self._options.get("process_group"), mean_in_rank_order) if in_rank_order else None

    def watch(self, watch: GradientWatch) -> None:
        """From now on `watch` sees the gradients, unless the script averages them in a way of its own."""
        self._watch = watch
        if self._world > 1:
            self.adapt(self._world, equal=True)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Calls the model, and averages the gradients over the ranks in the backward pass."""
        if self._world > 1 and torch.is_grad_enabled() and not torch.compiler.is_compiling() and self._thawed():
            self.adapt(self._world, equal=self._outline.parameters() is self._made_of)
        return self._called[0](*inputs, **named)

    def _thawed(self) -> bool:
        """Whether the script trains other parameters than before, as on every rank, outside of `no_sync`."""
        if self._waits or not getattr(self._called[0], "require_backward_grad_sync", True):
            return False
        if self._outline.parameters() is not self._made_of:
            return True
        return any(parameter.requires_grad != trained for parameter, trained in self._made_with)

    def train(self, mode: bool = True) -> Self:
        """Sets training or evaluation mode."""
        super().train(mode)
        self._called[0].training = mode  # even if it is no part of this module
        return self

    def no_sync(self) -> AbstractContextManager[None]:
        """In the block gradients are added up on each rank, and not averaged."""
        called = self._called[0]
        return called.no_sync() if isinstance(called, DistributedDataParallel) else nullcontext()

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Sets how gradients are averaged, as in DistributedDataParallel. From now on nothing looks at them.

        Torch takes one hook only, so where ours is in place the inside is made anew. Collective then, as the call is.
        """
        self._hook = state, hook
        called = self._called[0]
        if self._has_own_hook:
            self.adapt(self._world, equal=True)
        elif isinstance(called, DistributedDataParallel):
            called.register_comm_hook(state, hook)

    def synchronize(self, *, now: bool) -> None:
        """Whether the next forward and backward pass averages the gradients over the ranks.

        DistributedDataParallel notes a static graph in its first pass, which has to average. Until then the parts of a
        batch call the model itself.
        """
        called = self._called[0]
        if now and self._waits:
            self.adapt(self._world, equal=True)
        elif isinstance(called, DistributedDataParallel):
            called.require_backward_grad_sync = now
            if not now and _has_no_static_graph_yet(called):
                called._remove_autograd_hooks()  # noqa: SLF001 - they would count the passes
                self._called[0], self._waits = self.module, True

    @property
    def inside(self) -> list[nn.Module]:
        """The modules called now."""
        return self._called

    @property
    def lasting(self) -> str:
        """Why it cannot be replaced for other ranks; "" if it can."""
        if self._hook:
            return "a communication hook of the script's own"
        return "a process group of the script's own" if self._options.get("process_group") else ""

    def __getattr__(self, name: str) -> Any:
        """Other attributes of DistributedDataParallel; in a world of one, those of the model."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            called = self.__dict__.get("_called")
            if called is None:
                raise
            return getattr(called[0], name)


keepers.watch(Replica, COPY)


def spread(replicas: Iterable[Replica]) -> set[int]:
    """The ids of buffers that each forward pass broadcasts from rank 0, whether the session or the script wrapped the
    model."""
    called = [*(part for replica in replicas for part in replica.inside), *(one for one, _ in keepers.made())]
    found = [one for one in called if isinstance(one, DistributedDataParallel) and one.broadcast_buffers]
    return {id(buffer) for one in found for buffer in one.module.buffers()}


def synchronize(replicas: Iterable[Replica], sharded: Iterable[nn.Module], *, now: bool) -> None:
    """Whether the next forward and backward pass of each model averages its gradients over the ranks, whether the
    session or the script wrapped it. Otherwise they are added up on each rank."""
    for replica in replicas:
        replica.synchronize(now=now)
    for called, _ in keepers.made():
        if isinstance(called, DistributedDataParallel):
            called.require_backward_grad_sync = now or _has_no_static_graph_yet(called)
    for part in (part for module in sharded for part in sharded_parts(module)):
        part.set_requires_gradient_sync(now, recurse=False)


def _has_no_static_graph_yet(called: DistributedDataParallel) -> bool:
    """Whether its graph is static and not known yet. Torch has no public word for that."""
    return bool(called.static_graph) and not getattr(called, "_static_graph_delay_allreduce_enqueued", True)


def spread_now(replicas: Iterable[Replica]) -> None:
    """Broadcasts those buffers now, because there may be no further forward pass. Collective."""
    for called in (part for replica in replicas for part in replica.inside):
        if isinstance(called, DistributedDataParallel) and called._check_sync_bufs_pre_fwd():  # noqa: SLF001
            called._sync_buffers()  # noqa: SLF001 - there is no public word


def _placed(module: nn.Module, options: dict[str, Any]) -> dict[str, Any]:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    devices = {parameter.device for parameter in parameters}
    if len(devices) == 1 and (device := devices.pop()).type == "cuda":
        return {"device_ids": [device.index], **options}
    return options


def mean_in_rank_order(
    group: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The mean over the group's ranks, adding each element's values from rank 0 upwards. None: all ranks."""
    gradients = bucket.buffer()
    world = dist.get_world_size(group)
    chunk = -(-gradients.numel() // world)
    own = gradients.new_zeros(world * chunk)
    own[: gradients.numel()] = gradients
    own /= world  # before adding, as DDP does: 16-bit sums would overflow
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


@dataclass(frozen=True)
class WatchedMean:
    """How gradients are averaged while something looks at them."""

    watch: GradientWatch
    in_rank_order: bool


def watched_mean(
    watched: WatchedMean,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The mean over all ranks, to the bit as without a watch."""
    mean_is_there = watched.watch.before_mean(bucket)
    if watched.in_rank_order:
        done = mean_in_rank_order(None, bucket)
        mean_is_there()
        return done
    gradients = bucket.buffer()
    gradients *= 1 / dist.get_world_size()  # before adding, and by this factor, as DDP does

    def look(done: torch.futures.Future[Any]) -> torch.Tensor:
        mean: torch.Tensor = done.value()[0]
        mean_is_there()
        return mean

    return dist.all_reduce(gradients, async_op=True).get_future().then(look)
