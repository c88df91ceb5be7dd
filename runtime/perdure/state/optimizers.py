"""A registered optimizer's state, under the names of the parameters it belongs to, and back into it.

So a checkpoint depends neither on the order of parameters nor on the number of ranks. What is absent stays absent: an
optimizer before its first step has no state, a parameter that never had a gradient has none either, and none is made
up. Called by the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.manifest import Item
from perdure.checkpoint.tree import join, refs, split
from perdure.errors import UserError
from perdure.state.copies import copied
from perdure.state.holding import saved_with

SETTINGS: Final = "settings"
"""The part of a checkpoint's entry with what the script had set the groups to when its run began."""
GroupSettings = Mapping[str, Any]
"""What one group is set to, such as its rate: what is not a tensor."""
Names = Mapping[Tensor, str]
"""The names of all registered parameters."""


_PLAIN: Final = (bool, int, float, str)


@dataclass(frozen=True)
class Home:
    """Where a tensor belongs that does not exist yet."""

    device: torch.device
    order: tuple[int, ...] | None
    """The order of its dimensions in memory."""
    like: Tensor | None = field(default=None, compare=False)
    """The sharded tensor whose shards it has."""


@dataclass(frozen=True)
class LateGroups:
    """What a checkpoint holds of groups that the script adds later, as the checkpoint has it."""

    groups: Sequence[Mapping[str, Any]] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    """The state of their parameters, by name."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def taken(self, number: int) -> tuple[LateGroups, LateGroups]:
        """Splits it into the first `number` groups and the others."""
        return self._of(self.groups[:number]), self._of(self.groups[number:])

    def _of(self, groups: Sequence[Mapping[str, Any]]) -> LateGroups:
        names = {name for group in groups for name in group["params"]}
        state = {name: values for name, values in self.state.items() if name in names}
        return LateGroups(groups, state, {ref: self.tensors[ref] for ref, _ in refs([list(groups), state])})


def is_optimizer(saved: Any) -> bool:
    """Whether this is a checkpoint's entry for an optimizer: only that has these parts. Older ones have no settings."""
    return isinstance(saved, Mapping) and saved.keys() - {SETTINGS} == {"groups", "state", "more"}


def state_dict_of(saved: Mapping[str, Any], found: Mapping[str, Tensor]) -> dict[str, Any]:
    """What an optimizer's `load_state_dict` takes, with parameters numbered in the order of the groups."""
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
        """The parameters' names, in the groups with which training began, followed by those added since."""
        self._begun = 0
        """The number of groups when training began: a resumed run begins with these."""
        self._seen: list[list[Tensor]] = []
        """The groups' parameters as of the last look."""
        self._waiting = LateGroups()
        self._settings: Sequence[GroupSettings] | None = None
        """What the script has set its groups to, before the run began or restored them."""
        self.overruled: list[str] = []
        """What the script sets otherwise than the one that began the checkpoint's run: the checkpoint's value stays."""

    def groups(self) -> list[dict[str, Any]]:
        """Copies of what a script may set between two steps, such as a learning rate."""
        plain = ({k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups)
        return [copied(group) for group in plain]

    def put_back(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Restores what `groups` returned, in the same memory."""
        for live, was in zip(self._optimizer.param_groups, groups, strict=False):  # groups may have been added since
            for key, value in was.items():
                if isinstance(value, Tensor) and isinstance(live.get(key), Tensor):
                    live[key].copy_(value)
                else:
                    live[key] = value

    def stepped(self) -> list[Tensor]:
        """What its steps alone are to change: the parameters that it trains, and its state."""
        return [*(parameter for parameter in self._owned() if parameter.requires_grad), *self.tensors()]

    def tensors(self) -> list[Tensor]:
        """The tensors of its state, without those nested deeper."""
        found = chain.from_iterable(values.values() for values in self._optimizer.state.values())
        return [value for value in found if isinstance(value, Tensor)]

    def read(
        self, parameters: Names, shared: dict[str, Tensor], was: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Adds the state's tensors, at any depth, to `shared`; returns the rest. `state` is None before the first step.

        `was`: uses these groups instead of the present ones.
        """
        saved = self._read(parameters, shared, was)
        self._check_groups([group["params"] for group in saved["groups"]])
        shared.update(self._waiting.tensors)
        state = {**(saved["state"] or {}), **self._waiting.state}
        return {**saved, "groups": [*saved["groups"], *self._waiting.groups], "state": state or None}

    def _read(
        self, parameters: Names, shared: dict[str, Tensor], was: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Like `read`, for the groups that exist by now."""
        whole = self._optimizer.state_dict()
        names = self._numbered(parameters)
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in whole["param_groups"]]
        if was is not None:
            if len(was) < len(groups):
                raise UserError(f"optimizer {self._name!r} has got a group since the last batch was handed out")
            groups = [{**before, "params": now["params"]} for before, now in zip(was, groups, strict=True)]
        state = {names.get(number, number): values for number, values in whole["state"].items()}
        plain = {key: split(values, f"{self._name}/{key}/", shared) for key, values in state.items()}
        self._check_sharded(state, {name: parameter for parameter, name in parameters.items()})
        rest = {key: value for key, value in whole.items() if key not in ("state", "param_groups")}
        return {
            "groups": split(groups, f"{self._name}/groups/", shared),
            "state": plain or None,
            "more": split(rest, f"{self._name}/more/", shared),
            SETTINGS: self._begin(),
        }

    def _begin(self) -> Sequence[GroupSettings]:
        if self._settings is None:
            self._settings = [
                {key: value for key, value in group.items() if isinstance(value, _PLAIN)}
                for group in self._optimizer.param_groups
            ]
        return self._settings

    def layout(self, parameters: Names) -> Iterator[str]:
        """A line for its class, and one for each parameter of each group with which training began."""
        yield f"{self._name}: {type(self._optimizer).__qualname__}"
        for number, group in enumerate(self._optimizer.param_groups[: self._begun or None]):
            yield f"{self._name}: group {number}"
            for one in group["params"]:
                yield f"{self._name}: group {number} has {parameters.get(one, 'an unregistered parameter')}"

    @property
    def late(self) -> list[str]:
        """The names of groups that were added since training began, or will be."""
        return self._named(self._begun, len(self._optimizer.param_groups) + len(self._waiting.groups))

    @property
    def present(self) -> list[str]:
        """The names of its present groups."""
        return self._named(0, len(self._optimizer.param_groups))

    @property
    def waiting(self) -> list[str]:
        """The names of groups that the script has not added yet."""
        number = len(self._optimizer.param_groups)
        return self._named(number, number + len(self._waiting.groups))

    def _named(self, first: int, end: int) -> list[str]:
        return [f"{self._name}/groups/{number}" for number in range(first, end)]

    def changed(self) -> bool:
        """Whether the script has changed its groups since the last look."""
        groups = [group["params"] for group in self._optimizer.param_groups]
        return len(groups) != len(self._seen) or not all(map(_is_same, groups, self._seen))

    def is_of(self, parameters: Names) -> bool:
        """Whether all its parameters are among these."""
        return all(parameter in parameters for parameter in self._owned())

    def settle(self, parameters: Names) -> None:
        """The script has changed its groups: restores those it has added from the checkpoint. UserError for what no
        later run of the script could load."""
        had, now = self._groups, self._grouped(parameters)
        if had is not None:
            self._claim(had, now, parameters)
        self._check_groups(now)

    def _claim(self, had: list[list[str]], now: list[list[str]], parameters: Names) -> None:
        """Restores groups that were added after those that it had."""
        taken, left = self._waiting.taken(max(len(now) - len(had), 0))
        then = [group["params"] for group in taken.groups]
        if then != now[len(had) :][: len(then)]:
            raise self._misfit([*had, *then], now)
        self._waiting = left
        if taken.groups:
            shared: dict[str, Tensor] = {}
            saved = self._read(parameters, shared)
            saved["groups"][len(had) : len(had) + len(then)] = taken.groups
            state = {**(saved["state"] or {}), **taken.state}
            found = {**shared, **taken.tensors, **_in_shards(taken, parameters)}
            self._load({**saved, "state": state}, parameters, found.__getitem__)

    def on_added(self, settle: Callable[[], Any]) -> None:
        """Calls `settle` whenever the script adds a group, as long as the checkpoint holds one that is still to be
        added."""
        own = vars(self._optimizer)
        if not self._waiting.groups or "add_param_group" in own:
            return
        plain = self._optimizer.add_param_group

        def add_param_group(group: dict[str, Any]) -> None:
            plain(group)
            settle()
            if not self._waiting.groups:
                own.pop("add_param_group", None)

        own["add_param_group"] = add_param_group

    def wishes(self, saved: Mapping[str, Any], parameters: Names, items: Mapping[str, Item]) -> Iterator[Any]:
        """For each tensor: its name, the live one if there is one, and where it belongs otherwise."""
        numbers = {name: number for number, name in self._numbered(parameters).items()}
        owners = {name: parameter for parameter, name in parameters.items()}
        whole = self._optimizer.state_dict()
        for key, values in (saved["state"] or {}).items():
            live = whole["state"].get(numbers.get(key, key))
            for name, found in refs(values, live):
                yield name, found, _home(items, name, key, owners.get(key))
        for part, live in (("groups", whole["param_groups"]), ("more", whole)):
            yield from ((name, found, None) for name, found in refs(saved[part], live))

    def owner_of(self, item: Item, owners: Mapping[str, Tensor]) -> Tensor | None:
        """The parameter among these, by name, that this tensor of the state belongs to and has the shape of."""
        inside = item.name.removeprefix(f"{self._name}/")
        parts = inside.split("/") if inside != item.name else []
        keys = ("/".join(parts[:end]) for end in range(1, len(parts)))
        return next(
            (owner for key in keys if (owner := owners.get(key)) is not None and owner.shape == item.shape), None
        )

    def load(
        self, saved: Mapping[str, Any], parameters: Names, tensor: Callable[[str], Tensor], late: Collection[str] = ()
    ) -> None:
        """Restores everything, except `late` groups that the script has not added yet. UserError if the optimizer was
        built in another way, or does not keep its state."""
        self.overruled = _overruled(self._name, saved.get(SETTINGS, ()), self._begin(), saved["groups"])
        now, then = self._grouped(parameters), [group["params"] for group in saved["groups"]]
        there = len(now) if set(self._named(len(now), len(then))) <= set(late) else len(then)
        if then[:there] != now and not (self._keeps and _extend(now, then[:there])):
            raise self._misfit(then, now)
        saved, self._waiting = _parted(saved, there, tensor)
        self._load(saved, parameters, tensor)

    def _misfit(self, then: list[list[str]], now: list[list[str]]) -> UserError:
        return UserError(
            f"optimizer {self._name!r} has other parameters or parameter groups than in the checkpoint: "
            f"{_difference(then, now)}: build it as it was built then, or use another root"
        )

    def _load(self, saved: Mapping[str, Any], parameters: Names, tensor: Callable[[str], Tensor]) -> None:
        names, now = self._numbered(parameters), self._grouped(parameters)
        numbers = {name: number for number, name in names.items()}
        groups = join(saved["groups"], tensor)
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

    def _check_sharded(self, state: Mapping[str, Any], owners: Mapping[str, Tensor]) -> None:
        """UserError for sharded state that no later run could make room for, because it is not like its parameter."""
        for key, values in state.items():
            owner = owners.get(key)
            own: dict[str, Tensor] = {}
            split(values, "", own)
            for name, tensor in own.items():
                if boxes.is_sharded(tensor) and not (owner is not None and boxes.are_alike(tensor, owner)):
                    raise UserError(
                        f"optimizer {self._name!r} keeps {name} of {key} in shards that are not its parameter's: only "
                        f"state with the shape and the shards of its parameter can be loaded again"
                    )

    def _check_groups(self, now: list[list[str]]) -> None:
        """Notes the groups. UserError if existing ones have changed, because no later run of the script could load what
        is saved with them."""
        if self._groups is None:
            self._begun = len(now)
        elif now[: len(self._groups)] != self._groups:
            raise UserError(
                f"optimizer {self._name!r} has other parameters or parameter groups than when training began: "
                f"{_difference(self._groups, now)}: a resumed run could not load it, so leave its groups as they are: "
                f"further ones may be added behind them by add_param_group; frozen parameters (requires_grad=False) "
                f"have no gradient and stay as they are"
            )
        self._groups = now
        self._seen = [list(group["params"]) for group in self._optimizer.param_groups]

    def _owned(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _grouped(self, parameters: Names) -> list[list[str]]:
        """The names of each group's parameters."""
        self._numbered(parameters)
        return [[parameters[one] for one in group["params"]] for group in self._optimizer.param_groups]

    def _numbered(self, parameters: Names) -> dict[Any, str]:
        """Parameter names by their numbers in the optimizer's state_dict."""
        owned = self._owned()
        for parameter in owned:
            if parameter not in parameters:
                raise UserError(
                    f"optimizer {self._name!r} owns a parameter of shape {tuple(parameter.shape)} that is in no "
                    f"registered module: register the module too"
                )
        return {number: parameters[parameter] for number, parameter in enumerate(owned)}


def _parted(saved: Mapping[str, Any], there: int, tensor: Callable[[str], Tensor]) -> tuple[dict[str, Any], LateGroups]:
    """Splits a checkpoint's entry into the first `there` groups and the later ones."""
    groups = saved["groups"][there:]
    names = {name for group in groups for name in group["params"]}
    state = {key: values for key, values in (saved["state"] or {}).items() if key in names}
    waiting = LateGroups(groups, state, {ref: tensor(ref) for ref, _ in refs([groups, state])})
    rest = {key: values for key, values in (saved["state"] or {}).items() if key not in names}
    return {**saved, "groups": saved["groups"][:there], "state": rest}, waiting


def _overruled(
    name: str, began: Sequence[GroupSettings], now: Sequence[GroupSettings], saved: Sequence[Mapping[str, Any]]
) -> list[str]:
    """For each setting that the script has changed since: what it was, is now, and stays."""
    found = [
        (key, had[key], has[key], stays[key])
        for had, has, stays in zip(began, now, saved, strict=False)
        for key in had
        if key in has and key in stays and had[key] != has[key] != stays[key]
    ]
    return [
        f"{name}: {key} was {was!r} when the checkpoint's run began and is {given!r} in this script"
        + (f"; the checkpoint's {stays!r} stays" if isinstance(stays, _PLAIN) else "; the checkpoint's stays")
        for key, was, given, stays in dict.fromkeys(found)
    ]


def _in_shards(taken: LateGroups, parameters: Names) -> dict[str, Tensor]:
    """The state of sharded parameters that the checkpoint holds as whole tensors, because there were no parameters when
    it was read."""
    owners = {name: parameter for parameter, name in parameters.items() if boxes.is_sharded(parameter)}
    found: dict[str, Tensor] = {}
    for key, values in taken.state.items():
        for name, _ in refs(values):
            whole, owner = taken.tensors[name], owners.get(key)
            if owner is not None and whole.shape == owner.shape and not boxes.is_sharded(whole):
                found[name] = boxes.like(owner, whole.dtype)
                boxes.fill(found[name], whole)
    return found


def _is_same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _home(items: Mapping[str, Item], name: str, key: Any, owner: Tensor | None) -> Home | None:
    """On its parameter's device, and in the parameter's memory order, if both had the same order in the checkpoint.

    State that was on the CPU while its parameter was not stays there: step counters, offloaded state.
    """
    if owner is None:
        return None
    state, parameter = items[name], items.get(key)
    there = parameter.device if parameter else "cpu"
    device = torch.device("cpu") if state.device == "cpu" != there else owner.device
    alike = parameter is not None and (state.shape, state.order) == (parameter.shape, parameter.order)
    sharded = boxes.is_sharded(owner) and state.shape == owner.shape and bool(state.shape or state.box)
    return Home(device, tensors.memory_order(owner) if alike else state.order, owner if sharded else None)


def _beside(owner: Tensor | None, tensor: Callable[[str], Tensor]) -> Callable[[str], Tensor]:
    """The function's tensors, with their parameter's strides if these need no more memory."""
    return tensor if owner is None else lambda name: tensors.strided_like(tensor(name), owner)


def _as_saved(kept: Any, saved: Any) -> Any:
    """The optimizer's version of its state, with every leaf replaced that differs from the saved one."""
    if isinstance(saved, Tensor) and isinstance(kept, Tensor):
        same = (kept.dtype, kept.shape) == (saved.dtype, saved.shape)
        return kept if same else saved.to(kept.device)
    if isinstance(saved, dict) and isinstance(kept, dict):
        return type(kept)((key, _as_saved(value, saved[key]) if key in saved else value) for key, value in kept.items())
    if type(saved) in (list, tuple) and type(kept) is type(saved) and len(kept) == len(saved):
        return type(saved)(_as_saved(one, other) for one, other in zip(kept, saved, strict=True))
    return saved


def _has(kept: Any, saved: Any) -> bool:
    """Whether an optimizer keeps this state itself. A wrapper's may be in the optimizer that it holds."""
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
    """Whether each group still has its old parameters in the old order, and maybe more."""
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
