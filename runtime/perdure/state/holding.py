"""Optimizers that registered objects hold: of some the holder's state_dict tells, of others nobody does.

The common SAM keeps the optimizer that it steps by in an attribute, and its own state_dict says nothing of it;
Lookahead is written both ways. So each is looked for, and the holder is asked. Two optimizers may also be made of the
same groups and the same state, and a load gives one of them new ones: what was shared before is shared again after it.

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
"""How deep in a registered object something may be and be found."""
_ITEMS: Final = 64
"""So many items of a list or a mapping are looked at: nobody keeps more optimizers."""
_CONTAINERS: Final = ("param_groups", "state")
"""What an optimizer is made of, and torch's load_state_dict makes anew."""


def walk(thing: Any, kinds: tuple[type, ...] = (Optimizer, nn.Module)) -> Iterator[tuple[str, Any]]:
    """What it holds of these kinds, by its attributes; not what that holds in turn."""
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
    """What an object holds: a scheduler's optimizer is not saved with it, and no optimizer holds its parameters."""
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
    """The optimizers that it holds, by a name for each."""
    found = {re.sub(r"\W", "_", path): inner for path, inner in walk(holder)}
    return {path: inner for path, inner in found.items() if isinstance(inner, Optimizer)}


def told(holder: Any) -> set[int]:
    """Those of which the holder's state_dict asks the state, or has it as its own."""
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
    """The holder, and the optimizers whose state is in its own: by their ids."""

    def saved(one: Any) -> list[Optimizer]:
        counts = told(one)
        return [inner for inner in held(one).values() if id(inner) in counts]

    return {id(one): one for one in with_parts([holder], saved)}


def untold(holder: Any) -> dict[str, Optimizer]:
    """The optimizers that it holds, or one that is saved with it, and that are not: by a name for each."""
    saved = saved_with(holder)
    found = [(path, inner) for one in saved.values() for path, inner in held(one).items()]
    return {path: inner for path, inner in found if id(inner) not in saved}


def with_held(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """These, and all that they hold."""
    return with_parts(optimizers, lambda one: held(one).values())


def with_parts(things: Iterable[Any], parts: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """These, their parts, and the parts of those: each once."""
    found = {id(thing): thing for thing in things}
    for thing in (ahead := list(found.values())):
        new = {id(part): part for part in parts(thing) if id(part) not in found}
        found |= new
        ahead += new.values()
    return ahead


class OptimizerContainers:
    """The lists and mappings that some optimizers, and those that they hold, are made of: others may hold them, too."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._noted = [(one, *_containers(one)) for one in with_held(optimizers)]
        self._groups = [list(groups or ()) for _, groups, _ in self._noted]

    def refill(self) -> None:
        """They hold what was loaded since, and each optimizer has its own again."""
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
    """None for what it has from another one, by a property."""
    groups, state = (vars(optimizer).get(name) for name in _CONTAINERS)
    return groups, state


def _refill(container: dict[Any, Any], values: Mapping[Any, Any]) -> None:
    values = dict(values)
    container.clear()
    container.update(values)
