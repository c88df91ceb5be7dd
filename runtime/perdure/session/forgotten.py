"""Finds training state that a script has not registered: schedulers, scalers, averages, other objects.

Such objects do not know their session, so this module searches all living objects. It cannot prove that one belongs to
the training (a script may set a scheduler by the step), so these findings are never certain. What a registered object
holds, in any attribute, counts as saved with it. In a module, parameters, plain numbers and the buffers of layers that
compute something count. Copies of registered weights do not: neither a metric's sums nor a network that is copied again
is training state. A DataLoader counts while one pass over it lasts several steps.

Called by perdure.session.describing, and by perdure.session.unregistered_check at the steps at which it looks.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perdure.checkpoint.boxes import local
from perdure.session.averages import Kept, averages, kept_tensors, numbers_by_shape, shapes_of
from perdure.session.description import Finding
from perdure.session.memories import Memories, carried, memories
from perdure.session.momenta import NotedGradients, momenta
from perdure.state.holding import walk, with_parts
from perdure.state.living import living
from perdure.state.parts import parts_of
from perdure.state.registry import Registry
from perdure.state.variables import enters, variables
from perdure.state.write_detection import elements_of

TENSORS: Final = 4096
"""How many tensors outside registered objects are compared."""
SAID: Final = 3
"""How many findings of one kind are reported. More findings of one kind would repeat the same message."""
FRAMEWORKS: Final = frozenset({"perdure", "torch", "lightning", "pytorch_lightning", "transformers", "accelerate"})
"""Their objects are training state only where the session or an adapter says so."""
GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DRAWN: Final = "drawn"
_TORCHS: Final = (nn.Module, Optimizer, LRScheduler, GradScaler)
_BESIDE: Final = "_non_persistent_buffers_set"
_SAVED: Final = ("state", "param_groups", "defaults")
"""What an optimizer's state_dict holds."""
_KEEP: Final = "keep its state in session.state, or register what has it in a state_dict"
_ITEMS: Final = 64
_DEPTH: Final = 3
_ANEW: Final = "each resumed run would start it from scratch"
_REMEDY: Final = "register it, unless the script restores it itself"
_AVERAGE: Final = "which follows weights of a registered module"
_MOMENTUM: Final = "which carries on gradients of weights that no optimizer has"
_STATE: Final = "register what has it in a state_dict, or use an optimizer of torch"
_HOLD: Final = "register what has it in a state_dict, as torch's AveragedModel does"
_UNINTERRUPTED: Final = "a run that was never interrupted would have other weights in it"
_COPY: Final = "copy them before the first epoch begins, or register the copy"
_BATCHES: Final = "steps take batches from a DataLoader of the script's own"
_LOADER: Final = "take them from a session.loader of another name, or register what saves the position"

_Variables = dict[int, tuple[Callable[[], Any], str, Mapping[str, Any]]]
"""Variables by id: how to get the object, its name, and what can be compared."""


def forgotten(registered: Mapping[str, Any]) -> list[Finding]:
    """Unregistered schedulers, scalers and averages."""
    return list(_settled(registered).findings(registered, trained=False))


def _settled(registered: Mapping[str, Any], *, trained: bool = False) -> _Loose:
    """Looks again after a garbage collection, because unreachable schedulers set no rate."""
    loose = _Loose(registered)
    if not any(loose.findings(registered, trained=trained)):
        return loose
    gc.collect()
    return _Loose(registered)


def _is_placed(scheduler: LRScheduler) -> bool:
    """Whether the script has begun it at a later step. Then the script restores it."""
    if parts := getattr(scheduler, "_schedulers", ()):
        return any(map(_is_placed, parts))
    place, steps = getattr(scheduler, "last_epoch", None), getattr(scheduler, "_step_count", None)
    return isinstance(place, int) and isinstance(steps, int) and place > max(0, steps - 1)


class FirstWeights:
    """The weights of registered modules before a process's first step, if others trained before it."""

    def __init__(self, registered: Mapping[str, Any], step: int) -> None:
        """`step`: how many steps were done before. A run that begins fresh has nothing to note."""
        self.step = step
        self.weights = {elements_of(one) for one in _weights(registered)} - {None} if step else set()


class Changes:
    """Unregistered state, noted after one step and compared after a later one."""

    def __init__(self, registered: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """`kept`: the script's values in session.state."""
        loose = _Loose(registered)
        self._seen = {id(thing): (_reference(thing), values) for thing, values in loose.states()}
        self._weights = loose.weights() if self._seen else set()
        self._passes = loose.passes()
        self._unsaved = {name: _unsaved(thing) for name, thing in registered.items()}
        found = list(variables())
        self._variables = _variables(found, registered, kept)
        self._kept = _kept_tensors(found, registered, kept, loose)
        self._numbers = numbers_by_shape(_weights(registered)) if self._kept else {}
        self._gradients = NotedGradients(loose.bare(_weights(registered)) if self._kept else ())
        self._memories = _memories(registered)
        self._weights |= loose.weights() if self._memories or self._kept else set()

    def findings(
        self,
        registered: Mapping[str, Any],
        kept: Mapping[str, Any],
        reported: Iterable[Tensor],
        newer: Changes,
        began: FirstWeights,
    ) -> Iterator[Finding]:
        """What has changed since, except modules with one of the parameters `reported`, and what may change yet.

        `newer`: the state one step ago, because a network may be a copy of the weights of that time.
        """
        newer._gradients.end()
        loose = _settled(registered, trained=True)
        yield from loose.findings(registered, trained=True)
        present = loose.weights()
        yield from loose.late_copies(began, present)
        weights, named = self._weights | newer._weights | present, {id(one) for one in reported}
        found = list(self._carried(registered, weights, newer))
        for name, before in self._unsaved.items():
            now = _unsaved(registered[name]) if before and name in registered else {}
            held = [f"{path}{one}" for holder, path, one in found if holder == name]
            if changed := list(dict.fromkeys((*_changed(before, now), *held))):
                what = f"steps change {_some(changed)} of {name!r}, which its state_dict does not have"
                remedy = "make it a part of it, unless the script sets it itself"
                yield Finding("unsaved-state", f"{what}: {_ANEW}; {remedy}", certain=False)
        seen = list(variables())
        tensors = _kept_tensors(seen, registered, kept, loose)
        for name in self._averages(tensors, weights, newer, registered):
            yield Finding("unregistered-state", f"steps change {name}, {_AVERAGE}: {_ANEW}; {_HOLD}", certain=False)
        # After two steps a sum of the last two gradients would look the same.
        found_momenta = [] if newer is self else momenta(newer._kept, tensors, newer._gradients)
        for name in found_momenta[:SAID]:
            yield Finding("unregistered-state", f"steps change {name}, {_MOMENTUM}: {_ANEW}; {_STATE}", certain=False)
        yield from self._in_variables(_variables(seen, registered, kept))
        if any(self._passes.get(one, taken) != taken for one, taken in loose.passes().items()):
            yield Finding("unregistered-state", f"{_BATCHES}: {_ANEW}; {_LOADER}", certain=False)
        for thing, values in loose.states() if self._seen else ():
            reference, before = self._seen.get(id(thing), (_nothing, {}))
            changed = _changed(before, values) if reference() is thing else []
            if isinstance(thing, nn.Module):
                changed = [name for name in changed if values[name] not in weights]
                if any(id(one) in named for one in thing.parameters()):
                    continue
            if changed:
                yield _doubtful("state", f"steps change an unregistered {_kind(thing)} ({_some(changed)})")

    def _in_variables(self, now: _Variables) -> Iterator[Finding]:
        """Generators and schedules of the script's that steps have changed."""
        for number, (_, name, values) in now.items():
            reference, _, before = self._variables.get(number, (_nothing, "", {}))
            if reference() is not None and (changed := _changed(before, values)):
                what = f" ({_some(changed)})" if changed != [_DRAWN] else ""
                text = f"steps change {name}, an unregistered {_kind(reference())}{what}: {_ANEW}; {_KEEP}"
                yield Finding("unregistered-state", text, certain=False)

    def _averages(
        self, now: Kept, weights: set[bytes | None], newer: Changes, registered: Mapping[str, Any]
    ) -> list[str]:
        """Where the script keeps averages of weights: a few, as of all findings."""
        if not newer._kept:
            return []
        numbers = [newer._numbers, numbers_by_shape(_weights(registered))]
        found = averages(self._kept, newer._kept, now, numbers, weights)
        return list(dict.fromkeys(found))[:SAID]

    def _carried(
        self, registered: Mapping[str, Any], weights: set[bytes | None], newer: Changes
    ) -> Iterator[tuple[str, str, str]]:
        """What parts of registered modules carry on in attributes: the module's name, the part's path with a dot, and
        the attribute's name."""
        for number, (holder, path, thing, now) in _memories(registered).items():
            looks = [one._memories.get(number) for one in (self, newer)]  # noqa: SLF001 - of this class
            before = [values for _, _, its, values in filter(None, looks) if its() is thing()]
            kind = type(thing())
            yield from ((holder, path, name) for values in before for name in carried(kind, values, now, weights))


def _memories(registered: Mapping[str, Any]) -> dict[int, tuple[str, str, Callable[[], Any], Memories]]:
    """What the parts of registered modules have in attributes, by the part's id: the module's name, the part's path
    with a dot, how to get the part, and the values."""
    modules = {name: thing for name, thing in registered.items() if isinstance(thing, nn.Module)}
    tensors = [one for thing in modules.values() for one in (*thing.parameters(), *thing.buffers())]
    plain = (one for one in tensors if type(one) in (Tensor, nn.Parameter) and one.layout is torch.strided)
    saved = {one.untyped_storage().data_ptr() for one in plain}
    found = {}
    for name, thing in modules.items():
        for path, part in thing.named_modules():
            if _is_scripts(type(part)) and _computes(part) and (values := memories(part, saved)):
                found[id(part)] = name, f"{path}.".lstrip("."), _reference(part), values
    return found


def _is_scripts(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in FRAMEWORKS


def _kept_tensors(
    found: Iterable[tuple[str, Any]], registered: Mapping[str, Any], kept: Mapping[str, Any], loose: _Loose
) -> Kept:
    """Tensors of the script's that could be averages of weights. Excludes those of objects with a state_dict, which are
    reported or saved with the object, and those in the shape of one that session.state has."""
    shapes = shapes_of(_weights(registered))
    if not any(type(one) in (Tensor, nn.Parameter) and tuple(one.shape) in shapes for _, one in found):
        return {}
    known: set[int] = set()
    for thing in (*registered.values(), *(one for _, one in found if _has_state(type(one)))):
        parts = parts_of(thing, "", known, most=len(known) + TENSORS, enters=enters)
        known |= {id(part) for _, part in parts}
    values = (part for one in kept.values() for _, part in parts_of(one, "", set(), most=TENSORS))
    shapes -= {tuple(one.shape) for one in values if isinstance(one, Tensor | np.ndarray)}
    return kept_tensors(((path, one) for path, one in found if id(one) not in known), shapes, loose.memory())


def _weights(registered: Mapping[str, Any]) -> list[Tensor]:
    modules = [thing for thing in registered.values() if isinstance(thing, nn.Module)]
    return [one for module in modules for one in _tensors(module).values()]


def _has_state(kind: type) -> bool:
    """Whether a class of the script's own says what its objects save."""
    made = getattr(kind, "state_dict", None)
    return made is not None and (getattr(made, "__module__", None) or "").partition(".")[0] not in FRAMEWORKS


def _variables(
    variables: Iterable[tuple[str, Any]], registered: Mapping[str, Any], kept: Mapping[str, Any]
) -> _Variables:
    """Variables of the script with a generator, or with an object that has `step` and no state_dict. By id: how to get
    it, its name, and what can be compared. A generator whose state is in session.state counts as saved."""
    found: _Variables = {}
    saved = {_spelled(value) for value in kept.values()}
    for name, thing in variables:
        if isinstance(thing, GENERATORS) and not isinstance(thing, random.SystemRandom):
            if (drawn := _drawn(thing)) not in saved:
                found[id(thing)] = partial(_itself, thing), name, {_DRAWN: drawn}
        elif _is_stepped(type(thing)):
            own = getattr(thing, "__dict__", {})
            found[id(thing)] = _reference(thing), name, {key: _plain(value) for key, value in own.items()}
    known: set[int] = set()
    for thing in registered.values():
        parts = parts_of(thing, "", known, most=len(known) + TENSORS, enters=enters) if _saves_more(thing) else ()
        known |= {id(thing), *(id(one) for _, one in parts)}
    return {number: one for number, one in found.items() if number not in known}


def _saves_more(thing: Any) -> bool:
    """Whether its state_dict may have more than tensors and the parts of an optimizer."""
    if isinstance(thing, nn.Module):
        return any(
            type(one).get_extra_state is not nn.Module.get_extra_state
            or type(one).state_dict is not nn.Module.state_dict
            for one in thing.modules()
        )
    return not isinstance(thing, Optimizer) or type(thing).state_dict is not Optimizer.state_dict


def _is_stepped(kind: type) -> bool:
    """Whether this is a schedule or an environment of the script's own."""
    if not callable(getattr(kind, "step", None)) or hasattr(kind, "state_dict"):
        return False
    return not any(base.__module__.partition(".")[0] in FRAMEWORKS for base in kind.__mro__)


def _drawn(generator: Any) -> str:
    """The generator's state."""
    if isinstance(generator, torch.Generator):
        return _spelled(generator.get_state())
    if isinstance(generator, random.Random):
        return _spelled(generator.getstate())
    is_new = isinstance(generator, np.random.Generator)
    return _spelled(generator.bit_generator.state if is_new else generator.get_state())


def _spelled(state: Any) -> str:
    return state.numpy().tobytes().hex() if type(state) is Tensor and state.dtype == torch.uint8 else repr(state)


def _itself(thing: Any) -> Any:
    """Keeps the object, so that no other one gets its id."""
    return thing


def _nothing() -> None:
    return None


def _reference(thing: Any) -> Callable[[], Any]:
    """Compares by id later. Objects without weak references are not compared."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return _nothing


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name, value in now.items() if name in before and before[name] != value]


def _some(names: list[str]) -> str:
    return ", ".join([*names[:SAID], *["..."] * (len(names) > SAID)])


def _doubtful(kind: str, what: str) -> Finding:
    return Finding(f"unregistered-{kind}", f"{what}: {_ANEW}; {_REMEDY}", certain=False)


def _kind(thing: Any) -> str:
    return type(thing).__name__


class _Loose:
    """Living objects that count as state, and that no session has registered, nor any registered object holds."""

    def __init__(self, registered: Mapping[str, Any]) -> None:
        found = living(_counts)
        registries = [thing for thing in found if isinstance(thing, Registry)]
        self._passes = [thing for thing in found if isinstance(thing, _BaseDataLoaderIter)]
        self._things = [thing for thing in found if not isinstance(thing, Registry | _BaseDataLoaderIter)]
        own = [*registered.values(), *(thing for one in registries for thing in one.things)]
        kinds = (*_TORCHS, _BaseDataLoaderIter, *{type(thing) for thing in self._things})
        self._kept = {id(thing) for thing in with_parts(own, lambda one: _parts(one, kinds))}
        loose = [thing for thing in self._things if id(thing) not in self._kept]
        inner = {id(part) for thing in loose for part in _parts(thing, kinds)}
        self._loose = [thing for thing in loose if id(thing) not in inner]

    def _of(self, kind: type[Any]) -> list[Any]:
        """The loose objects of one kind."""
        return [thing for thing in self._loose if isinstance(thing, kind)][:SAID]

    def findings(self, registered: Mapping[str, Any], *, trained: bool) -> Iterator[Finding]:
        """Findings about schedulers, scalers and averages. `trained`: steps are done, so a scaler that has scaled
        nothing belongs to another loss."""
        named = {id(thing): name for name, thing in registered.items()}
        for thing in self._of(LRScheduler):
            if id(thing.optimizer) in self._kept and not _is_placed(thing):
                of = f"optimizer {named[id(thing.optimizer)]!r}" if id(thing.optimizer) in named else "an optimizer"
                yield _doubtful("scheduler", f"an unregistered {_kind(thing)} sets the learning rate of {of}")
        for thing in self._of(GradScaler):
            if thing.is_enabled() and (not trained or thing._scale is not None):  # noqa: SLF001 - it has no public word
                yield _doubtful("scaler", f"an unregistered {_kind(thing)} scales the loss")
        for thing in self._of(AveragedModel):
            yield _doubtful("average", f"an unregistered {_kind(thing)} keeps an average of weights")

    def late_copies(self, began: FirstWeights, present: set[bytes | None]) -> Iterator[Finding]:
        """Findings about modules with the weights that this process began with: other runs have other weights there.

        `present`: the weights of the registered modules now.
        """
        for thing in self._loose if began.weights else ():
            values = {elements_of(one) for one in _tensors(thing).values()} if isinstance(thing, nn.Module) else set()
            if values and values <= began.weights and not values <= present:
                what = f"an unregistered {_kind(thing)} is a copy of the weights with which this process began"
                text = f"{what}, at step {began.step}: {_UNINTERRUPTED}; {_COPY}"
                yield Finding("unregistered-state", text, certain=False)

    def states(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Objects that can change, each with the values to compare."""
        known = {_place(one) for module in self._modules() for one in _tensors(module).values()}
        left = TENSORS
        for thing in self._loose:
            if isinstance(thing, AveragedModel | LRScheduler | GradScaler | Optimizer) or left <= 0:
                continue
            if isinstance(thing, nn.Module):
                outside = {name: one for name, one in _tensors(thing).items() if _place(one) not in known}
                left -= len(outside)
                values: dict[str, Any] = {name: elements_of(one) for name, one in outside.items()} | _numbers(thing)
            else:
                values = {name: _plain(value) for name, value in getattr(thing, "__dict__", {}).items()}
            if values:
                yield thing, values

    def passes(self) -> dict[weakref.ref[Any], int]:
        """The script's DataLoaders that are not at their end, and how many batches each has given."""
        loose = [one for one in self._passes if id(one) not in self._kept and not _is_over(one)]
        return {weakref.ref(one): one._num_yielded for one in loose}  # noqa: SLF001 - nothing public tells

    def weights(self) -> set[bytes | None]:
        """The present values of the registered modules' tensors."""
        return {elements_of(one) for module in self._modules() for one in _tensors(module).values()}

    def bare(self, weights: Iterable[Tensor]) -> list[Tensor]:
        """The weights that no living optimizer has."""
        optimizers = [one for one in self._things if isinstance(one, Optimizer)]
        groups = [group for one in optimizers for group in dict(vars(one)).get("param_groups", ())]
        stepped = {id(one) for group in groups for one in group["params"]}
        return [one for one in weights if id(one) not in stepped]

    def memory(self) -> set[int]:
        """Addresses of what modules and optimizers consist of, and of gradients."""
        modules = [one for one in self._things if isinstance(one, nn.Module)]
        found = [one for module in modules for one in (*module.parameters(), *module.buffers())]
        found += [one.grad for one in found if one.is_leaf and one.grad is not None]
        for optimizer in (one for one in self._things if isinstance(one, Optimizer)):
            of_parameters = [one for one in dict(vars(optimizer).get("state", {})).values() if isinstance(one, dict)]
            found += [one for values in of_parameters for one in values.values() if type(one) is Tensor]
        plain = (one for one in found if type(one) in (Tensor, nn.Parameter) and one.layout is torch.strided)
        return {one.untyped_storage().data_ptr() for one in plain if not one.is_meta}

    def _modules(self) -> list[nn.Module]:
        return [thing for thing in self._things if isinstance(thing, nn.Module) and id(thing) in self._kept]


def _counts(kind: type) -> bool:
    """Whether objects of this type may be training state, or know what is registered."""
    if issubclass(kind, Registry | _BaseDataLoaderIter):
        return True
    if issubclass(kind, _TORCHS):
        return kind.__module__.partition(".")[0] != "perdure"
    has_state = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    return has_state and not any(base.__module__.partition(".")[0] in FRAMEWORKS for base in kind.__mro__)


def _is_over(batches: Any) -> bool:
    """Whether a DataLoader's pass has come to its end, or is one that a loader of the session makes."""
    if type(batches._dataset).__module__.partition(".")[0] == "perdure":  # noqa: SLF001 - nothing public tells
        return True
    try:
        return bool(batches._num_yielded >= len(batches))  # noqa: SLF001 - nothing public tells
    except TypeError:  # of a stream
        return False


def _parts(thing: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    yield from (part for _, part in walk(thing, kinds))
    if isinstance(thing, nn.Module):
        yield from (part for part in thing.modules() if part is not thing)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, and the buffers of layers that have parameters of their own or compute something, by name."""
    found: dict[str, Tensor] = dict(module.named_parameters())
    for path, part in module.named_modules():
        if next(part.parameters(recurse=False), None) is not None or _computes(part):
            found |= {f"{path}.{name}".lstrip("."): one for name, one in part.named_buffers(recurse=False)}
    return {name: one for name, one in found.items() if type(one) in (Tensor, nn.Parameter) and not one.is_meta}


def _computes(part: nn.Module) -> bool:
    """A loss with a centre or a normalization does; a metric sums up what other layers compute."""
    return type(part).forward is not nn.Module.forward and not (hasattr(part, "compute") or hasattr(part, "reset"))


def _numbers(module: nn.Module) -> dict[str, str]:
    """Numbers that a script may change with the steps, such as a dropout rate or a momentum, by name."""
    own = [(f"{path}.".lstrip("."), vars(part)) for path, part in module.named_modules() if _computes(part)]
    found = {f"{path}{name}": value for path, values in own for name, value in values.items() if name[:1] != "_"}
    return {name: repr(value) for name, value in found.items() if type(value) in (int, float)}


def _unsaved(thing: Any) -> Mapping[str, Any]:
    """What a registered object may hold outside of its state_dict: a module's numbers and non-persistent buffers, an
    optimizer's attributes, and all of an object without any state, as most metrics are."""
    if isinstance(thing, nn.Module):
        parts = [(f"{path}.".lstrip("."), vars(part)) for path, part in thing.named_modules()]
        beside = {f"{path}{name}": own["_buffers"].get(name) for path, own in parts for name in own[_BESIDE]}
        saved = [name for _, own in parts for name in (*own["_parameters"], *(own["_buffers"].keys() - own[_BESIDE]))]
        own = {} if saved else {f"{path}{name}": value for path, own in parts for name, value in own.items()}
        tensors = {name: value for name, value in {**own, **beside}.items() if type(value) is Tensor}
        return {name: _plain(value) for name, value in tensors.items()} | _numbers(thing)
    if not hasattr(thing, "__dict__"):
        return {}
    if isinstance(thing, Optimizer):
        plain = type(thing).state_dict is Optimizer.state_dict
        own = {name: value for name, value in vars(thing).items() if plain and name[:1] != "_" and name not in _SAVED}
        return {name: _plain(value) for name, value in own.items()}
    return {} if thing.state_dict() else {name: _plain(value) for name, value in vars(thing).items()}


def _place(tensor: Tensor) -> int:
    """The address of its memory, because wrappers may have their own tensors over the same memory; an id if it has
    none."""
    return (local(tensor).data_ptr() if tensor.layout is torch.strided else 0) or id(tensor)


def _plain(value: Any, depth: int = 0) -> Any:
    """Numbers and some elements of tensors, from lists and mappings. Calls nothing of the script's."""
    if type(value) in (bool, int, float, str):
        return repr(value)
    if type(value) in (Tensor, nn.Parameter):
        return None if value.is_meta else elements_of(value)
    if depth == _DEPTH:
        return None
    if type(value) in (list, tuple):
        return [_plain(one, depth + 1) for one in value[:_ITEMS]]
    if type(value) is dict:
        return [_plain(one, depth + 1) for one in list(value.values())[:_ITEMS]]
    return None
