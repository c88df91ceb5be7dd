"""What a registered module says of how it is sharded: the parts that FSDP2 shards, and what cannot be saved.

Names of torch's classes are compared as text, because their import takes longer than the rest of a registration.
Called by the registry and by its modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from perdure.checkpoint import boxes, tensors
from perdure.errors import UserError

_FSDP1: Final = "FullyShardedDataParallel"
_FSDP2: Final = "FSDPModule"


def sharded_parts(module: nn.Module) -> list[Any]:
    """The parts of a module to which `fully_shard` was applied, the outermost first."""
    return boxes.once(("parts", id(module)), lambda: [part for part in module.modules() if _is_a(part, _FSDP2)])


def is_tensor_parallel(module: nn.Module) -> bool:
    """Whether several ranks compute parts of one batch: FSDP2 shards along one dimension of a mesh, and only tensor
    parallelism along another one, or without FSDP2."""
    own = 1 if sharded_parts(module) else 0
    return any(boxes.split_dimensions(tensor) > own for tensor in (*module.parameters(), *module.buffers()))


def unreduced(module: nn.Module) -> Iterator[Tensor]:
    """The sharded parameters whose gradient FSDP2 keeps whole on each rank, each with its own sum.

    It does so where the script has switched the reduction off (`set_requires_gradient_sync(False)`). torch has no
    public name for these gradients.
    """
    for parameter in _sharded_by_fsdp(module):
        whole = getattr(getattr(parameter, "_unsharded_param", None), "grad", None)
        if whole is not None or getattr(parameter, "unsharded_accumulated_grad", None) is not None:
            yield parameter.sharded_param


def leaves(module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter that FSDP2 has gathered before, with the whole one that autograd computes the gradient for."""
    for parameter in _sharded_by_fsdp(module):
        if (whole := getattr(parameter, "_unsharded_param", None)) is not None:
            yield parameter.sharded_param, whole


def _sharded_by_fsdp(module: nn.Module) -> Iterator[Any]:
    for part in sharded_parts(module):
        state = part._get_fsdp_state()  # noqa: SLF001
        yield from (one for group in state._fsdp_param_groups if group for one in group.fsdp_params)  # noqa: SLF001


def refuse_sharded(model: nn.Module) -> None:
    """UserError if this model is sharded, so that it must not be wrapped."""
    if any(map(boxes.is_sharded, model.parameters())):
        raise UserError(
            "wrap: the model is sharded, and averages its gradients by itself: train it as it is, and register it"
        )


def check_shards(name: str, module: nn.Module, *, late: bool) -> None:
    """UserError if this module is sharded in a way that cannot be saved."""
    if any(_is_a(part, _FSDP1) for part in module.modules()):
        raise UserError(
            f"register({name}=...): it is sharded by {_FSDP1}, which keeps its parameters in one flat tensor: shard it "
            f"with torch.distributed.fsdp.fully_shard"
        )
    for part in sharded_parts(module):
        part.reshard()
    named = [*module.named_parameters(), *module.named_buffers()]
    found = [(path, tensor) for path, tensor in named if boxes.is_sharded(tensor)]
    for path, tensor in found:
        if not is_lazy(tensor) and tensor.device.type != "meta":
            tensors.refuse_odd(f"{name}.{path}", tensor)
    if late and found:
        raise UserError(
            f"register({name}=...): a sharded module is registered after the run has begun: register it before "
            f"restore(), because no rank keeps a whole tensor until it comes"
        )


def _is_a(part: nn.Module, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(part).__mro__)
