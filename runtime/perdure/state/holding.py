"""Optimizers that registered objects hold. Some are in the holder's state_dict, some are not.

The usual SAM keeps the optimizer that it steps in an attribute, and its own state_dict lacks it; Lookahead is written
both ways. So each one is looked for, and the holder is called to find out. Two optimizers may also share groups and
state, and a load gives one of them new ones: what was shared before is shared again after it.

Called by the registry and by perdure.session.validating.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_DEPTH: Final = 4
"""How deep in a registered object a part may be."""
_ITEMS: Final = 64
"""How many items of a list or a mapping are looked at: no script keeps more optimizers."""
_CONTAINERS: Final = ("param_groups", "state")
"""What an optimizer consists of, and torch's load_state_dict replaces."""


def walk(thing: Any, kinds: tuple[type, ...] = (Optimizer, nn.Module)) -> Iterator[tuple[str, Any]]:
    """The parts of these kinds that it holds in its attributes, without their parts."""
    yield from _walk(thing, kinds, "", 0, {id(thing)})


def _walk(thing: Any, kinds: tuple[type, ...], path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for name, inner in _inside(thing) if depth < _DEPTH else ():
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        place = f"{path}_{name}".strip("_")
        if isinstance(inner, kinds):
            yield place, inner
        else:
            yield from _walk(inner, kinds, place, depth + 1, seen)


def _inside(thing: Any) -> list[tuple[Any, Any]]:
    """What an object holds. A scheduler's optimizer and an optimizer's parameters are left out, because they are not
    saved with it."""
    if isinstance(thing, Mapping):
        return list(thing.items())[:_ITEMS]
    if isinstance(thing, list | tuple | set):
        return list(enumerate(thing))[:_ITEMS]
    own = getattr(thing, "__dict__", None)
    if not isinstance(own, dict) or isinstance(thing, type | Tensor):
        return []
    besides = _CONTAINERS if isinstance(thing, Optimizer) else ("optimizer",) if isinstance(thing, LRScheduler) else ()
    return [(name, value) for name, value in own.items() if name not in besides]


def held(holder: Any) -> dict[str, Optimizer]:
    """The optimizers that it holds, each with a name."""
    found = {re.sub(r"\W", "_", path): inner for path, inner in walk(holder)}
    return {path: inner for path, inner in found.items() if isinstance(inner, Optimizer)}


def read_by_state_dict(holder: Any) -> set[int]:
    """The ids of optimizers whose state the holder's state_dict reads, or contains."""
    inners = list(held(holder).values())
    found = {id(inner) for inner in inners if getattr(holder, "state", None) is inner.state}
    before = [vars(inner).copy() for inner in inners]

    def noting(inner: Optimizer) -> Any:
        plain = inner.state_dict

        def state_dict(*args: Any, **named: Any) -> dict[str, Any]:
            found.add(id(inner))
            return plain(*args, **named)

        return state_dict

    try:
        for inner in inners:
            vars(inner)["state_dict"] = noting(inner)
        if inners:
            holder.state_dict()
    finally:
        for inner, own in zip(inners, before, strict=True):
            vars(inner).pop("state_dict", None)
            vars(inner).update({name: value for name, value in own.items() if name == "state_dict"})
    return found


def saved_with(holder: Any) -> dict[int, Any]:
    """The holder, and the optimizers whose state its state_dict has, by their ids."""

    def saved(one: Any) -> list[Optimizer]:
        counts = read_by_state_dict(one)
        return [inner for inner in held(one).values() if id(inner) in counts]

    return {id(one): one for one in with_parts([holder], saved)}


def held_unsaved(holder: Any) -> dict[str, Optimizer]:
    """Optimizers that it, or one saved with it, holds, and that are not saved with it, each with a name."""
    saved = saved_with(holder)
    found = [(path, inner) for one in saved.values() for path, inner in held(one).items()]
    return {path: inner for path, inner in found if id(inner) not in saved}


def with_held(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """These optimizers, and all that they hold."""
    return with_parts(optimizers, lambda one: held(one).values())


def with_parts(things: Iterable[Any], parts: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """These things, their parts, and the parts of those: each once."""
    found = {id(thing): thing for thing in things}
    for thing in (ahead := list(found.values())):
        new = {id(part): part for part in parts(thing) if id(part) not in found}
        found |= new
        ahead += new.values()
    return ahead


class OptimizerContainers:
    """The lists and mappings that these optimizers, and those that they hold, consist of. Others may hold them, too."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._noted = [(one, *_containers(one)) for one in with_held(optimizers)]
        self._groups = [list(groups or ()) for _, groups, _ in self._noted]

    def refill(self) -> None:
        """Copies the loaded values into them, and returns them to their optimizers."""
        for (one, listed, state), each in zip(self._noted, self._groups, strict=True):
            groups, values = _containers(one)
            if listed is not groups:
                for before, loaded in zip(each, groups, strict=True):
                    _refill(before, loaded)
                listed[:], one.param_groups = each, listed
            if state is not values:
                _refill(state, values)
                one.state = state


def _containers(optimizer: Optimizer) -> tuple[Any, Any]:
    """The optimizer's own ones; None for those that a property takes from another optimizer."""
    groups, state = (vars(optimizer).get(name) for name in _CONTAINERS)
    return groups, state


def _refill(container: dict[Any, Any], values: Mapping[Any, Any]) -> None:
    values = dict(values)
    container.clear()
    container.update(values)
