"""What a script has registered, as a checkpoint's State and back.

Parameters and optimizer state are shared out over the ranks, buffers come from rank 0, everything else goes through
the codec. Optimizer state is kept under the names of the parameters it belongs to, so that neither the order of the
parameters nor the number of ranks is part of the checkpoint. What is absent stays absent: an optimizer that has not
taken a step has no state, a parameter that never had a gradient has none either, and none is made up.

It reads and writes the registered objects and nothing else. Called by the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from perdure.checkpoint.state import State
from perdure.errors import UserError


@runtime_checkable
class Stateful(Protocol):
    """Anything that can be registered."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class Registry:
    """The registered objects by name."""

    def __init__(self) -> None:
        self._modules: dict[str, nn.Module] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._others: dict[str, Stateful] = {}

    def add(self, name: str, thing: Any) -> None:
        """Registers one object. UserError if the name is taken or the object has no state to save."""
        if not name.isidentifier():
            raise UserError(f"register: {name!r} is no plain name: keys in checkpoints begin with it")
        if name in self.names:
            raise UserError(f"register({name}=...): {name!r} is registered already: give each object its own name")
        if isinstance(thing, DistributedDataParallel):
            thing = thing.module
        if isinstance(thing, nn.Module):
            self._modules[name] = thing
        elif isinstance(thing, Optimizer):
            self._optimizers[name] = thing
        elif isinstance(thing, Stateful):
            self._others[name] = thing
        else:
            raise UserError(
                f"register({name}=...): a {type(thing).__name__} has no state_dict and load_state_dict: register "
                f"modules, optimizers, schedulers, or objects that have both"
            )

    @property
    def names(self) -> set[str]:
        """What is registered."""
        return {*self._modules, *self._optimizers, *self._others}

    def state(self, rank: Any) -> State:
        """Everything as it is now; the tensors are the live ones, not copies."""
        shared: dict[str, Tensor] = {}
        replicated: dict[str, Tensor] = {}
        objects: dict[str, Any] = {}
        for name, module in self._modules.items():
            objects[name] = _read_module(name, module, shared, replicated)
        parameters = self._parameter_names()
        for name, optimizer in self._optimizers.items():
            objects[name] = _read_optimizer(name, optimizer, parameters, shared)
        for name, other in self._others.items():
            objects[name] = _read_other(name, other, replicated)
        return State(shared, replicated, objects, rank)

    def load(self, state: State) -> None:
        """Puts a checkpoint's state into the registered objects. UserError if they are not the same objects."""
        self._check_names(set(state.objects))
        for name, module in self._modules.items():
            _load_module(name, module, state)
        parameters = self._parameter_names()
        for name, optimizer in self._optimizers.items():
            _load_optimizer(name, optimizer, parameters, state)
        for name, other in self._others.items():
            other.load_state_dict({**state.objects[name], **_under(state.replicated, name)})

    def _check_names(self, saved: set[str]) -> None:
        missing, unknown = sorted(saved - self.names), sorted(self.names - saved)
        if missing or unknown:
            raise UserError(
                f"the checkpoint holds {sorted(saved)}, registered are {sorted(self.names)}: register the same names "
                f"before restore(), or use another root"
            )

    def _parameter_names(self) -> dict[Tensor, str]:
        """By identity; a tied parameter has the first of its names."""
        names: dict[Tensor, str] = {}
        for name, module in self._modules.items():
            for inner, parameter in module.named_parameters():
                names.setdefault(parameter, f"{name}.{inner}")
        return names


def _read_module(
    name: str, module: nn.Module, shared: dict[str, Tensor], replicated: dict[str, Tensor]
) -> dict[str, Any]:
    parameters = {inner for inner, _ in module.named_parameters(remove_duplicate=False)}
    extra: dict[str, Any] = {}
    for inner, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            extra[inner] = value
        elif inner in parameters:
            shared[f"{name}.{inner}"] = value
        else:
            replicated[f"{name}.{inner}"] = value
    return {"extra": extra}


def _load_module(name: str, module: nn.Module, state: State) -> None:
    saved = _under(state.shared, name) | _under(state.replicated, name) | state.objects[name]["extra"]
    try:
        module.load_state_dict(saved, strict=True)
    except RuntimeError as error:
        raise UserError(
            f"the checkpoint does not fit module {name!r}: {error}: build the model it was saved from, or use "
            f"another root"
        ) from error


def _read_optimizer(
    name: str, optimizer: Optimizer, parameters: Mapping[Tensor, str], shared: dict[str, Tensor]
) -> dict[str, Any]:
    """`state` is None while the optimizer has not taken a step."""
    whole = optimizer.state_dict()
    names = _numbered(name, optimizer, parameters)
    groups = [{**group, "params": [names[number] for number in group["params"]]} for group in whole["param_groups"]]
    plain: dict[str, dict[str, Any]] = {}
    for number, values in whole["state"].items():
        parameter = names[number]
        plain[parameter] = {key: value for key, value in values.items() if not isinstance(value, Tensor)}
        for key, value in values.items():
            if isinstance(value, Tensor):
                shared[_state_key(name, parameter, key)] = value
    more = {key: value for key, value in whole.items() if key not in ("state", "param_groups")}
    return {"groups": groups, "state": plain or None, "more": more}


def _load_optimizer(name: str, optimizer: Optimizer, parameters: Mapping[Tensor, str], state: State) -> None:
    saved = state.objects[name]
    names = _numbered(name, optimizer, parameters)
    numbers = {parameter: number for number, parameter in names.items()}
    now = [[names[number] for number in group["params"]] for group in optimizer.state_dict()["param_groups"]]
    if [group["params"] for group in saved["groups"]] != now:
        raise UserError(
            f"optimizer {name!r} has other parameters or parameter groups than in the checkpoint: build it as it was "
            f"built then, or use another root"
        )
    groups = [{**group, "params": [numbers[p] for p in group["params"]]} for group in saved["groups"]]
    values = {numbers[parameter]: dict(plain) for parameter, plain in (saved["state"] or {}).items()}
    for parameter in saved["state"] or {}:
        values[numbers[parameter]] |= _under(state.shared, _state_key(name, parameter, ""), separator="")
    optimizer.load_state_dict({**saved["more"], "state": values, "param_groups": groups})


def _state_key(optimizer: str, parameter: str, key: str) -> str:
    return f"{optimizer}/{parameter}/{key}"


def _numbered(name: str, optimizer: Optimizer, parameters: Mapping[Tensor, str]) -> dict[int, str]:
    """Parameter names by the numbers that the optimizer's state_dict uses."""
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in owned:
        if parameter not in parameters:
            raise UserError(
                f"optimizer {name!r} owns a parameter of shape {tuple(parameter.shape)} that is in no registered "
                f"module: register the module too"
            )
    return {number: parameters[parameter] for number, parameter in enumerate(owned)}


def _read_other(name: str, other: Stateful, replicated: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors at the top are stored as tensors; deeper ones go through the codec with the rest."""
    state = other.state_dict()
    if type(state) is not dict or not all(type(key) is str for key in state):
        raise UserError(f"{name!r}: its state_dict() is no dict with names for keys: give it one")
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    replicated.update({f"{name}.{key}": value for key, value in tensors.items()})
    return {key: value for key, value in state.items() if key not in tensors}


def _under(tensors: Mapping[str, Tensor], name: str, separator: str = ".") -> dict[str, Any]:
    prefix = f"{name}{separator}"
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
