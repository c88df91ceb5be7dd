"""Finds mistakes in a script's registrations: objects trained but not saved, or trained twice.

A finding is certain only if training would lose something, or be refused. A module in an attribute of a registered
object counts as saved with it; an optimizer counts only if the holder's state_dict reads its state. Called by
perdure.session.describing, and by perdure.session.unregistered_check with the optimizers that have stepped.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from perdure.session.description import Finding
from perdure.state.holding import held, saved_with, walk, with_held
from perdure.state.living import living
from perdure.state.modules import unwrapped
from perdure.state.registry import Registry


def findings(
    registered: Mapping[str, Any], wrapped: Sequence[nn.Module], optimizers: Iterable[Optimizer]
) -> list[Finding]:
    """Checks the registered objects by name, the models given to `session.wrap`, and the optimizers that train."""
    named = {name: thing for name, thing in registered.items() if isinstance(thing, Optimizer)}
    kept = _SavedParts(registered)
    loose = [one for one in optimizers if not kept.keeps(one)]
    found = [*_without_module(named, kept), *_unregistered(loose, kept)]
    reported = {parameter for one in loose for parameter in _trained(one)}
    found += _unregistered_models(wrapped, kept, reported)
    found += _shared({**{f"optimizer {name!r}": one for name, one in named.items()}, **_labels(loose)})
    return [*found, *_twice(registered)]


def live_optimizers(own: Registry) -> list[Optimizer]:
    """All optimizers of this process, without those that another of its sessions has registered."""
    gc.collect()  # unreachable optimizers train nothing
    things = living(lambda kind: issubclass(kind, Optimizer | Registry))
    others = [one.things for one in things if isinstance(one, Registry) and one is not own]
    named = [thing for registered in others for thing in registered if isinstance(thing, Optimizer)]
    elsewhere = {id(one) for one in with_held(named)}
    return [one for one in things if isinstance(one, Optimizer) and id(one) not in elsewhere]


class _SavedParts:
    """Everything that is saved with registered objects."""

    def __init__(self, registered: Mapping[str, Any]) -> None:
        self.optimizers: set[int] = set()
        self.saved: set[Tensor] = set()
        """Parameters of registered modules."""
        self.parameters: set[Tensor] = set()
        """These, and the parameters of modules that registered objects hold."""
        for thing in registered.values():
            if isinstance(thing, nn.Module):
                self.saved.update(thing.parameters())
                self.parameters.update(thing.parameters())
            else:
                self.optimizers |= saved_with(thing).keys()
                self.parameters.update(*(inner.parameters() for _, inner in walk(thing) if _is_module(inner)))

    def keeps(self, optimizer: Optimizer) -> bool:
        """Whether its state is saved: its own, or that of the optimizer it wraps, as in frameworks."""
        if id(optimizer) in self.optimizers:
            return True
        inners = [one for one in held(optimizer).values() if id(one) in self.optimizers]
        return bool(inners) and (_is_of_any(optimizer.state, inners) or not _tensors(optimizer.state))


def _is_module(thing: Any) -> bool:
    return isinstance(thing, nn.Module)


def _is_of_any(state: Any, optimizers: Iterable[Optimizer]) -> bool:
    return any(one.state is state for one in optimizers)


def _tensors(state: Mapping[Any, Any]) -> bool:
    """Whether the state holds any tensor."""
    return any(isinstance(value, Tensor) for values in state.values() for value in values.values())


def _without_module(named: Mapping[str, Optimizer], kept: _SavedParts) -> Iterator[Finding]:
    for name, optimizer in named.items():
        outside = [parameter for parameter in _owned(optimizer) if parameter not in kept.saved]
        if outside:
            yield Finding(
                "optimizer-without-module",
                f"optimizer {name!r} owns {_count(outside)} in no registered module: register the module too",
            )


def _unregistered(loose: Sequence[Optimizer], kept: _SavedParts) -> Iterator[Finding]:
    for optimizer in loose:
        kind, trained = type(optimizer).__name__, _trained(optimizer)
        outside = [parameter for parameter in trained if parameter not in kept.parameters]
        if outside:
            yield Finding(
                "unregistered-parameters",
                f"an unregistered {kind} trains {_count(outside)} in no registered module: each resumed run would "
                f"start them from scratch; register the module and the optimizer",
            )
        elif trained and _keeps_state(optimizer):
            yield Finding(
                "unregistered-optimizer",
                f"an unregistered {kind} trains {_count(trained)} of registered modules: each resumed run would start "
                f"its state from scratch; register it, too",
            )


def _unregistered_models(wrapped: Sequence[nn.Module], kept: _SavedParts, reported: set[Tensor]) -> Iterator[Finding]:
    for model in wrapped:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        outside = [parameter for parameter in trained if parameter not in kept.parameters and parameter not in reported]
        if outside:
            yield Finding(
                "unregistered-parameters",
                f"session.wrap was given a {type(unwrapped(model)).__name__} with {_count(outside)} to train in no "
                f"registered module: each resumed run would start them from scratch; register the model",
            )


def _shared(labelled: Mapping[str, Optimizer]) -> Iterator[Finding]:
    """Optimizers that share parameters. If they train one after the other that is right, but it cannot be seen here."""
    for (one, first), (other, second) in combinations(labelled.items(), 2):
        if first in with_held([second]) or second in with_held([first]):
            continue  # it steps through that one
        both = set(_trained(first)) & set(_trained(second))
        if both:
            yield Finding(
                "shared-parameters",
                f"{one} and {other} both train {_count(both)}: each keeps its own state of them; give each "
                f"parameter to one optimizer, unless they train one after the other",
                certain=False,
            )


def _twice(registered: Mapping[str, Any]) -> Iterator[Finding]:
    names: dict[int, list[str]] = {}
    for name, thing in registered.items():
        names.setdefault(id(unwrapped(thing) if isinstance(thing, nn.Module) else thing), []).append(name)
    for same in names.values():
        if len(same) > 1:
            yield Finding(
                "two-names",
                f"{' and '.join(same)} are one object, and a restore writes to it under each name: register it once",
                certain=False,
            )


def _labels(loose: Sequence[Optimizer]) -> dict[str, Optimizer]:
    return {f"an unregistered {type(one).__name__} ({number})": one for number, one in enumerate(loose, 1)}


def _owned(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _trained(optimizer: Optimizer) -> list[Tensor]:
    """Parameters that it may change. A plain tensor is an input to be optimized, an adversarial one for example."""
    return [one for one in _owned(optimizer) if isinstance(one, nn.Parameter) and one.requires_grad]


def _keeps_state(optimizer: Optimizer) -> bool:
    """Whether anything would be lost with it. Before its first step its class decides."""
    if optimizer.state:
        return _tensors(optimizer.state)
    return not isinstance(optimizer, SGD) or any(group["momentum"] for group in optimizer.param_groups)


def _count(parameters: Iterable[Tensor]) -> str:
    found = list(parameters)
    numbers = sum(parameter.numel() for parameter in found)
    return f"{len(found)} parameter{'s' * (len(found) > 1)} ({numbers:,} numbers)"
