"""A registered optimizer's state, under the names of the parameters it belongs to, and back into it.

So neither the order of the parameters nor the number of ranks is part of a checkpoint. What is absent stays absent: an
optimizer that has not taken a step has no state, a parameter that never had a gradient has none either, and none is
made up. Called by the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from perdure.checkpoint import tensors
from perdure.checkpoint.manifest import Item
from perdure.checkpoint.tree import join, refs, split
from perdure.errors import UserError
from perdure.session.state.copies import copied
from perdure.session.state.holding import saved_with

Names = Mapping[Tensor, str]
"""Of all registered parameters."""


@dataclass(frozen=True)
class Home:
    """Where a tensor belongs that is not there yet."""

    device: torch.device
    order: tuple[int, ...] | None
    """Of its dimensions in memory."""


def is_optimizer(saved: Any) -> bool:
    """Whether a checkpoint has this of an optimizer: nothing else has these three parts."""
    return isinstance(saved, Mapping) and saved.keys() == {"groups", "state", "more"}


def state_dict_of(saved: Mapping[str, Any], found: Mapping[str, Tensor]) -> dict[str, Any]:
    """What an optimizer's `load_state_dict` takes, where parameters have numbers in the order of the groups."""
    groups = join(saved["groups"], found.__getitem__)
    numbers = {name: number for number, name in enumerate(chain.from_iterable(group["params"] for group in groups))}
    state = {numbers.get(key, key): join(values, found.__getitem__) for key, values in (saved["state"] or {}).items()}
    numbered = [{**group, "params": [numbers[name] for name in group["params"]]} for group in groups]
    return {**join(saved["more"], found.__getitem__), "state": state, "param_groups": numbered}


class Optim:
    """One registered optimizer."""

    def __init__(self, name: str, optimizer: Optimizer, *, keeps: bool = False) -> None:
        """`keeps`: its groups may have parameters that a checkpoint does not know."""
        self._name = name
        self._keeps = keeps
        self._optimizer = optimizer
        self._groups: list[list[str]] | None = None
        """The parameters' names when training began: a resumed run has these groups and no others."""

    def groups(self) -> list[dict[str, Any]]:
        """What a script may set between two steps, a learning rate say: copies."""
        plain = ({k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups)
        return [copied(group) for group in plain]

    def tensors(self) -> list[Tensor]:
        """Of its state, those that are not nested deeper."""
        found = chain.from_iterable(values.values() for values in self._optimizer.state.values())
        return [value for value in found if isinstance(value, Tensor)]

    def read(
        self, parameters: Names, shared: dict[str, Tensor], was: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Adds the state's tensors, at any depth; returns what is left. `state` is None before the first step.

        `was`: with the groups as they were then.
        """
        whole = self._optimizer.state_dict()
        names = self._numbered(parameters)
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in whole["param_groups"]]
        if was is not None:
            groups = [{**before, "params": now["params"]} for before, now in zip(was, groups, strict=True)]
        self._check_groups([group["params"] for group in groups])
        state = {names.get(number, number): values for number, values in whole["state"].items()}
        plain = {key: split(values, f"{self._name}/{key}/", shared) for key, values in state.items()}
        rest = {key: value for key, value in whole.items() if key not in ("state", "param_groups")}
        return {
            "groups": split(groups, f"{self._name}/groups/", shared),
            "state": plain or None,
            "more": split(rest, f"{self._name}/more/", shared),
        }

    def layout(self, parameters: Names) -> list[Any]:
        """Its class, and the names of each group's parameters."""
        groups = [[parameters.get(one, "") for one in group["params"]] for group in self._optimizer.param_groups]
        return [type(self._optimizer).__qualname__, groups]

    def wishes(self, saved: Mapping[str, Any], parameters: Names, items: Mapping[str, Item]) -> Iterator[Any]:
        """Each tensor's name, the live one if there is one, and where it belongs if there is none."""
        numbers = {name: number for number, name in self._numbered(parameters).items()}
        owners = {name: parameter for parameter, name in parameters.items()}
        whole = self._optimizer.state_dict()
        for key, values in (saved["state"] or {}).items():
            live = whole["state"].get(numbers.get(key, key))
            for name, found in refs(values, live):
                yield name, found, _home(items, name, key, owners.get(key))
        for part, live in (("groups", whole["param_groups"]), ("more", whole)):
            yield from ((name, found, None) for name, found in refs(saved[part], live))

    def load(self, saved: Mapping[str, Any], parameters: Names, tensor: Callable[[str], Tensor]) -> None:
        """Puts everything in. UserError if the optimizer was built otherwise, or does not keep what it was given."""
        names = self._numbered(parameters)
        numbers = {name: number for number, name in names.items()}
        groups = join(saved["groups"], tensor)
        now = [[names[number] for number in group["params"]] for group in self._optimizer.state_dict()["param_groups"]]
        then = [group["params"] for group in groups]
        if then != now and not (self._keeps and _extend(now, then)):
            raise UserError(
                f"optimizer {self._name!r} has other parameters or parameter groups than in the checkpoint: "
                f"{_difference(then, now)}: build it as it was built then, or use another root"
            )
        groups = [{**group, "params": [numbers[name] for name in own]} for group, own in zip(groups, now, strict=True)]
        owners = {name: parameter for parameter, name in parameters.items()}
        state = {
            numbers.get(key, key): join(values, _beside(owners.get(key), tensor))
            for key, values in (saved["state"] or {}).items()
        }
        more = join(saved["more"], tensor)
        self._optimizer.load_state_dict({**more, "state": state, "param_groups": groups})
        self._put_back(state)

    def _put_back(self, saved: Mapping[Any, Any]) -> None:
        """`load_state_dict` casts to the parameters' dtype: fp32 masters of bf16 weights would come back as bf16."""
        owned, keepers = self._owned(), saved_with(self._optimizer).values()
        for number, values in saved.items():
            key = owned[number] if isinstance(number, int) and number < len(owned) else number
            state = next((one.state for one in keepers if _has(one.state.get(key), values)), self._optimizer.state)
            state[key] = _as_saved(state[key], values)
            for place, was, now in _different(values, state[key], ""):
                raise UserError(
                    f"optimizer {self._name!r} does not keep its state as it was saved: {place} was {was} and is "
                    f"{now}: its load_state_dict has to leave dtypes and shapes alone"
                )

    def _check_groups(self, now: list[list[str]]) -> None:
        """UserError once they have changed: what is saved with them, no later run of the script could load."""
        if self._groups is None:
            self._groups = now
        elif now != self._groups:
            raise UserError(
                f"optimizer {self._name!r} has other parameters or parameter groups than when training began: "
                f"{_difference(self._groups, now)}: a resumed run could not load it, so give it all groups where it is "
                f"made; frozen parameters (requires_grad=False) have no gradient and stay as they are"
            )

    def _owned(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _numbered(self, parameters: Names) -> dict[Any, str]:
        """Parameter names by the numbers that the optimizer's state_dict uses."""
        owned = self._owned()
        for parameter in owned:
            if parameter not in parameters:
                raise UserError(
                    f"optimizer {self._name!r} owns a parameter of shape {tuple(parameter.shape)} that is in no "
                    f"registered module: register the module too"
                )
        return {number: parameters[parameter] for number, parameter in enumerate(owned)}


def _home(items: Mapping[str, Item], name: str, key: Any, owner: Tensor | None) -> Home | None:
    """With its parameter, and in memory as that is, if both were alike there.

    What was on the CPU while the parameter was elsewhere stays there: step counters, offloaded state.
    """
    if owner is None:
        return None
    state, parameter = items[name], items.get(key)
    there = parameter.device if parameter else "cpu"
    device = torch.device("cpu") if state.device == "cpu" != there else owner.device
    alike = parameter is not None and (state.shape, state.order) == (parameter.shape, parameter.order)
    return Home(device, tensors.memory_order(owner) if alike else state.order)


def _beside(owner: Tensor | None, tensor: Callable[[str], Tensor]) -> Callable[[str], Tensor]:
    """The same tensors, with their parameter's strides where those are no other memory."""
    return tensor if owner is None else lambda name: tensors.strided_like(tensor(name), owner)


def _as_saved(kept: Any, saved: Any) -> Any:
    """What the optimizer has made of its state, with every leaf that is not as it was saved replaced."""
    if isinstance(saved, Tensor) and isinstance(kept, Tensor):
        same = (kept.dtype, kept.shape) == (saved.dtype, saved.shape)
        return kept if same else saved.to(kept.device)
    if isinstance(saved, dict) and isinstance(kept, dict):
        return type(kept)((key, _as_saved(value, saved[key]) if key in saved else value) for key, value in kept.items())
    if type(saved) in (list, tuple) and type(kept) is type(saved) and len(kept) == len(saved):
        return type(saved)(_as_saved(one, other) for one, other in zip(kept, saved, strict=True))
    return saved


def _has(kept: Any, saved: Any) -> bool:
    """Whether an optimizer keeps such a state: a wrapper's may be in the one that it holds."""
    return isinstance(kept, Mapping) and isinstance(saved, Mapping) and saved.keys() <= kept.keys()


def _different(saved: Any, now: Any, place: str) -> Iterator[tuple[str, str, str]]:
    """Where tensors of the saved state are missing or of another kind."""
    if isinstance(saved, Tensor):
        was, found = _kind(saved), _kind(now)
        if was != found:
            yield place.lstrip("."), was, found
    elif isinstance(saved, dict):
        inner = now if isinstance(now, dict) else {}
        for key, value in saved.items():
            yield from _different(value, inner.get(key), f"{place}.{key}")
    elif isinstance(saved, list | tuple):
        items = now if isinstance(now, list | tuple) and len(now) == len(saved) else [None] * len(saved)
        for number, value in enumerate(saved):
            yield from _different(value, items[number], f"{place}.{number}")


def _kind(value: Any) -> str:
    return f"{tensors.dtype_name(value)} {list(value.shape)}" if isinstance(value, Tensor) else "missing"


def _extend(now: list[list[str]], then: list[list[str]]) -> bool:
    """Whether each group has what it had then, in that order, and maybe more."""
    pairs = zip(now, then, strict=True) if len(now) == len(then) else ()
    left = [[name for name in own if name in set(had)] == had for own, had in pairs]
    return bool(left) and all(left)


def _difference(then: list[list[str]], now: list[list[str]]) -> str:
    if len(then) != len(now):
        return f"{len(then)} groups then, {len(now)} now"
    number, was, found = next((n, a, b) for n, (a, b) in enumerate(zip(then, now, strict=True)) if a != b)
    place = next((n for n, (a, b) in enumerate(zip(was, found, strict=False)) if a != b), min(len(was), len(found)))
    names = [group[place] if place < len(group) else "nothing" for group in (was, found)]
    return (
        f"group {number} had {len(was)} parameters, with {names[0]} at place {place}, and has {len(found)}, with "
        f"{names[1]}"
    )
