"""What a script has registered, as a checkpoint's State and back.

Parameters and optimizer state are shared out over the ranks. Buffers and other objects' tensors come from rank 0. What
is not a tensor goes through the codec. Reads and writes the registered objects and nothing else. Called by the session;
modules and optimizers have files of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import is_
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.manifest import Item
from perdure.checkpoint.state import RankState
from perdure.checkpoint.tree import join, named_as, refs, split
from perdure.errors import UserError
from perdure.layout.elastic import ElasticMesh
from perdure.state import fully_sharded
from perdure.state.copies import copied
from perdure.state.holding import OptimizerContainers, held_unsaved, with_held
from perdure.state.merging import BY_RANK, Merge, check_size, merged
from perdure.state.modes import MODES, Modes, ModesByName
from perdure.state.modules import GRADIENTS, Module
from perdure.state.optimizers import Home, Optim
from perdure.state.pending_state import LATE, PendingState
from perdure.state.renaming import Renames
from perdure.state.shards import check_shards, unreduced

T = TypeVar("T")

PARTED: Final = "ZeroRedundancyOptimizer"
"""An optimizer of torch.distributed.optim, by its name, because its import takes longer than the rest of a
registration."""


@runtime_checkable
class Stateful(Protocol):
    """Anything that can be registered."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class Small:
    """Copies of what changes between two steps, as it was at one place: everything that optimizers do not own."""

    buffers: Mapping[str, Tensor]
    groups: Mapping[str, Sequence[Mapping[str, Any]]]
    """The groups of each optimizer."""
    others: Mapping[str, Mapping[str, Any]]
    """The states of objects that are neither modules nor optimizers."""
    modes: Mapping[str, Modes]
    """The modes of each module's parts."""


class Registry:
    """The registered objects by name."""

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}
        self.modes = ModesByName(self._modules)
        self._optimizers: dict[str, Optim] = {}
        self._others: dict[str, Stateful] = {}
        self._implied: set[str] = set()
        """Optimizers that are registered because another one holds them."""
        self._merges: dict[str, Merge] = {}
        """The merge functions of objects whose state is each rank's own."""
        self._loose: frozenset[str] = frozenset()
        self._keeping: set[str] = set()
        """Objects that a checkpoint need not hold."""
        self._renames = Renames()
        self.kept: list[str] = []
        """What the last loaded checkpoint did not hold, and stays as the script has made it."""
        self.loaded = False
        """Whether a checkpoint was loaded."""
        self._items: Mapping[str, Item] = {}
        """The known facts about the checkpoint's tensors, by their present names."""
        self._late: set[str] = set()
        """Objects that were registered after the run had begun."""
        self._pending = PendingState()
        """What the checkpoint holds of late objects that are not registered yet."""
        self._parts = PendingState()
        """What the checkpoint holds of parts that registered modules do not have yet."""
        self._restored: dict[str, list[dict[str, Any]]] = {}
        """The optimizers' groups in the checkpoint, while it holds late objects."""
        self._marked: set[str] = set()
        """The late objects of the checkpoint's run."""
        self._claims: Counter[Tensor] = Counter()
        """How often a claim has written to a parameter that was registered already, with the value it had."""
        self._order: list[str] = []
        """Names, in the order of registration."""
        self.things: list[Any] = []
        """Objects, in the order of registration."""
        self._listed: list[list[Tensor]] = []
        """Each module's parameters, as of the last call of `parameters`."""
        self._judged: list[Tensor] = []
        """All parameters, when each optimizer's were last seen to have names."""
        self._parameters: list[Tensor] = []

    def rename(self, names: Mapping[str, str]) -> None:
        """Adds new names for objects that checkpoints hold under other ones."""
        self._renames |= names

    def add(
        self,
        name: str,
        thing: Any,
        *,
        loose: bool = False,
        keeps: bool = False,
        begins: bool = False,
        late: bool = False,
        merge: Merge | None = None,
    ) -> None:
        """Registers one object. UserError if the name is taken or the object has no state to save.

        A `loose` object may differ between ranks. One that `keeps` stays as it is where a checkpoint lacks a part of
        it, and one that `begins` if a checkpoint lacks all of it. A `late` one is added after the run has begun: its
        part of the checkpoint has to be claimed. The state of an object with a `merge` is each rank's own.
        """
        self._forget_held(thing)
        self._check_new(name, thing, merge, late=late)
        inner: dict[str, Optimizer] = {}
        if isinstance(thing, nn.Module):
            self._modules[name] = Module(name, thing, keeps=keeps)
        elif isinstance(thing, Optimizer):
            self._optimizers[name] = Optim(name, thing, keeps=keeps)
            known = {id(one) for one in self.things}
            inner = {f"{name}_{path}": one for path, one in held_unsaved(thing).items() if id(one) not in known}
        elif isinstance(thing, Stateful):
            self._others[name] = thing
        else:
            raise UserError(
                f"register({name}=...): a {type(thing).__name__} has no state_dict and load_state_dict: register "
                f"modules, optimizers, schedulers, or objects that have both"
            )
        self._order.append(name)
        self.things.append(thing)
        if loose:
            self._loose |= {name}
        if keeps or begins:
            self._keeping.add(name)
        if merge:
            self._merges[name] = merge
        if late:
            self._late.add(name)
            if isinstance(thing, nn.Module):
                self._modules[name].begin()
        for path, one in inner.items():
            self.add(path, one, keeps=keeps, begins=begins, late=late)
            self._implied.add(path)

    def _forget_held(self, thing: Any) -> None:
        """An optimizer that was registered with its holder gets the script's name, if the script registers it too."""
        for name in [name for name in self._implied - self._late if self.named[name] is thing]:
            del self._optimizers[name]
            self._implied.remove(name)
            self._keeping.discard(name)
            place = self._order.index(name)
            del self._order[place], self.things[place]

    def _check_new(self, name: str, thing: Any, merge: Merge | None, *, late: bool) -> None:
        if not name.isidentifier():
            raise UserError(f"register: {name!r} is no plain name: keys in checkpoints begin with it")
        if name in self.names or name == LATE:
            raise UserError(f"register({name}=...): {name!r} is registered already: give each object its own name")
        if merge and isinstance(thing, nn.Module | Optimizer):
            raise UserError(
                f"register(merge={{{name!r}: ...}}): a {type(thing).__name__} is the same on all ranks: merge= is for "
                f"other objects"
            )
        if any(kind.__module__.partition(".")[0] == "deepspeed" for kind in type(thing).__mro__):
            raise UserError(
                f"register({name}=...): DeepSpeed's {type(thing).__name__} keeps a part of the state on each rank, "
                f"which cannot be saved: train the module with session.wrap and an optimizer of torch's"
            )
        if isinstance(thing, Optimizer):
            _check_whole(name, thing)
        if isinstance(thing, nn.Module):
            check_shards(name, thing, late=late)

    @property
    def named(self) -> dict[str, Any]:
        """The registered objects by name, in the order of registration."""
        return dict(zip(self._order, self.things, strict=True))

    @property
    def others(self) -> dict[str, Stateful]:
        """Objects that are neither modules nor optimizers, by name."""
        return dict(self._others)

    @property
    def names(self) -> set[str]:
        """The names of all registered objects."""
        return {*self._modules, *self._optimizers, *self._others}

    def overruled(self, names: Collection[str]) -> list[str]:
        """What the script sets optimizers of these names to, otherwise than the one that began the checkpoint's run:
        the checkpoint's values stay."""
        return [line for _, optimizer in self._held(self._optimizers, names) for line in optimizer.overruled]

    @property
    def late(self) -> list[str]:
        """What came after the run had begun, in this run or in the checkpoint's: objects, and, as of the last read,
        tensors of modules and groups of optimizers."""
        late = [module.late for module in self._modules.values()] + [one.late for one in self._optimizers.values()]
        return sorted({*self._late, *self._pending.objects, *self._parts.tensors, *chain.from_iterable(late)})

    @property
    def not_registered_yet(self) -> list[str]:
        """What the checkpoint holds and the script has not registered, made or added yet."""
        groups = chain.from_iterable(optimizer.waiting for optimizer in self._optimizers.values())
        return sorted([*self._pending.objects, *self._parts.tensors, *groups])

    def awaited(self, saved: Mapping[str, Any]) -> list[str]:
        """Late objects of a checkpoint that are not registered now."""
        renames = self._renames.of(saved)
        groups = chain.from_iterable(optimizer.present for optimizer in self._optimizers.values())
        return sorted({renames(name) for name in saved.get(LATE, ())} - {*self.names, *self._live(), *groups})

    def _live(self) -> dict[str, Tensor]:
        """The modules' tensors, by full name."""
        return {name: tensor for module in self._modules.values() for name, tensor in module.live().items()}

    @torch.no_grad()
    def warm_up(self) -> None:
        """Do with each sharded tensor what a restore does, and change none: torch works out the first operation of its
        kind for tens of milliseconds."""
        for tensor in filter(boxes.is_sharded, self._live().values()):
            tensor.copy_(tensor.detach())

    def kind(self) -> str:
        """Lines of what all ranks of a run must have in common before anything is trained."""
        early = self.names - self._late
        lines = [f"torch {torch.__version__}"]
        for name, module in sorted(self._held(self._modules, early)):
            lines += [f"{name}: a module", *module.layout()]
        names = self._parameter_names()
        for _, optimizer in sorted(self._held(self._optimizers, early)):
            lines += optimizer.layout(names)
        for name, other in sorted(self._held(self._others, early)):
            lines.append(f"{name}: {type(other).__qualname__}{' of each rank' * (name in self._merges)}")
        return "\n".join(lines)

    def state(self, rank: Any, small: Small | None = None, spread: Collection[int] = ()) -> RankState:
        """The present state; its tensors are the live ones, not copies. UserError for what cannot be saved.

        With `small`: the state at that place, if no optimizer has taken a step since. `spread`: ids of buffers that
        training broadcasts anyway.
        """
        shared: dict[str, Tensor] = {}
        replicated: dict[str, Tensor] = {}
        objects: dict[str, Any] = {}
        self.parameters()  # modes are those of the parts that were there then
        modes = small.modes if small else self.modes.state()
        for name, module in self._modules.items():
            saved = modes[name] if name in modes else module.modes()
            objects[name] = {**module.read(shared, replicated), **saved.saved()}
        loose = self._loose.union(
            name
            for module in self._modules.values()
            for name, buffer in (module.buffers().items() if spread else ())
            if id(buffer) in spread
        )
        if small:
            _check_same(replicated, small.buffers)
            replicated.update(small.buffers)
        parameters = self._parameter_names()
        for name, optimizer in self._optimizers.items():
            objects[name] = optimizer.read(parameters, shared, small.groups[name] if small else None)
        for name, other in self._others.items():
            if name in self._merges:
                objects[name] = None
                continue
            state = small.others[name] if small else _state_of(name, other)
            objects[name] = split(state, f"{name}.", replicated)
        for name in [name for name, tensor in replicated.items() if boxes.is_sharded(tensor)]:
            shared[name] = replicated.pop(name)  # no rank has all of it
        pending = self._pending | self._parts
        shared |= pending.shared
        replicated |= pending.replicated
        objects |= pending.objects
        if late := self.late:
            objects[LATE] = late
        return RankState(shared, replicated, objects, rank, loose)

    @property
    def by_rank(self) -> tuple[str, ...]:
        """Names of objects whose state is each rank's own."""
        return tuple(self._merges)

    def own(self) -> dict[str, Any]:
        """The states of those on this rank, as part of the rank's own state; empty if there are none.

        UserError for what cannot be saved by rank.
        """
        found = {name: _state_of(name, self._others[name]) for name in self._merges}
        for name, state in found.items():
            check_size(name, state)
        return {BY_RANK: found} if found else {}

    def merged(
        self, parts: Sequence[Mapping[str, Any]], *, rank: int, world: int, held: Collection[str] = ()
    ) -> dict[str, Any]:
        """What `rank` of a world of another size continues with, from the old ranks' states: encoded, under the names
        of a checkpoint that holds the names `held`. UserError if the script's function fails."""
        renames = self._renames.of(held)
        names = parts[0] if parts else ()  # if rank 0 has no per-rank state, its state is for all ranks
        return {name: merged(name, self._merges[renames(name)], parts, rank=rank, world=world) for name in names}

    def load_own(self, own: Mapping[str, Any]) -> None:
        """Restores states of this rank's own, by name. UserError if an object refuses its state."""
        for name, saved in own.items():
            other = self._others[name]
            try:
                other.load_state_dict(named_as(saved, _state_of(name, other)))
            except Exception as error:
                raise UserError(f"{name!r}: load_state_dict refuses the state of this rank: {error!r}") from error

    def small(self) -> Small:
        """Copies of what changes between two steps. The modules' parts are those as of the last call of
        `parameters`."""
        buffers = {
            name: buffer.detach().clone()
            for module in self._modules.values()
            for name, buffer in module.buffers().items()
        }
        groups = {name: optimizer.groups() for name, optimizer in self._optimizers.items()}
        others = {name: copied(_state_of(name, other)) for name, other in self._others.items()}
        return Small(buffers, groups, others, self.modes.state())

    def small_bytes(self) -> int:
        """The approximate size of that, in bytes."""
        found: dict[str, Tensor] = {}
        for module in self._modules.values():
            found |= module.buffers()
        for name, other in self._others.items():
            split(_state_of(name, other), f"{name}.", found)
        return sum(tensors.size_of(tensor) for tensor in found.values())

    @property
    def extra(self) -> str:
        """The type of a module part that keeps state that is not a tensor; "" if there is none."""
        return next((module.extra for module in self._modules.values() if module.extra), "")

    def reshard(self) -> None:
        """See `Module.reshard`. All ranks have to, or none, as the next forward pass gathers what is in shards."""
        for module in self._modules.values():
            module.reshard()

    def parameters(self) -> list[Tensor]:
        """All parameters, each once. The same list as long as they do not change."""
        self.reshard()
        listed = [module.outline.parameters() for module in self._modules.values()]
        if len(listed) != len(self._listed) or not all(map(is_, listed, self._listed)):
            self._listed, self._parameters = listed, list(dict.fromkeys(chain.from_iterable(listed)))
        return self._parameters

    def note_gradients(self) -> None:
        """A step is done: see `Module.note_gradients`."""
        for module in self._modules.values():
            module.note_gradients()

    @contextmanager
    def zeroing_gradients(self) -> Iterator[None]:
        """Sharded modules, whose gradients the block drops, have zeros after it where the script keeps gradients."""
        kept = [(module, module.kept_gradients()) for module in self._modules.values() if module.sharded]
        yield
        for module, paths in kept:
            module.forget_gradients()
            module.zero_gradients(paths)

    @property
    def sharded(self) -> str:
        """The name of a module that is sharded over the ranks; "" if there is none."""
        return next((name for name, module in self._modules.items() if module.sharded), "")

    @property
    def sharded_modules(self) -> list[nn.Module]:
        """The registered modules that are sharded over the ranks."""
        return [module.inside for module in self._modules.values() if module.sharded]

    @property
    def mesh(self) -> ElasticMesh | None:
        """The mesh over which modules are sharded; None if none is. UserError if they have several."""
        return fully_sharded.elastic_mesh(self.sharded_modules) if self.sharded else None

    def shards_obstacle(self, world: int) -> str:
        """Why the shards of a module cannot go to other ranks while it trains; "" if they can, or if there are none."""
        if why := next((why for module in self._modules.values() if (why := module.shards_obstacle(world))), ""):
            return why
        try:
            self.mesh  # noqa: B018 - only whether there is one
        except UserError as error:
            return str(error)
        return ""

    def sharding_options(self) -> dict[str, dict[str, str]]:
        """What the script has set in the parts of sharded modules, by the parts' names: fully_sharded.options."""
        sharded = {name: module.inside for name, module in self._modules.items() if module.sharded}
        return fully_sharded.options(sharded)

    def let_go_groups(self) -> None:
        """Drops the process groups of sharded modules: their collectives fail from now on."""
        fully_sharded.let_go(self.sharded_modules)

    def sharded_tensors(self) -> dict[str, Tensor]:
        """Sharded parameters and optimizer state by name; a tied parameter has its first name."""
        named: dict[str, Tensor] = {name: tensor for tensor, name in self._parameter_names().items()}
        return {name: tensor for name, tensor in {**named, **self.grown()}.items() if boxes.is_sharded(tensor)}

    @property
    def unreduced(self) -> bool:
        """Whether a sharded module holds gradients that each rank has summed up alone."""
        modules = self.sharded_modules
        return any(True for module in modules for _ in unreduced(module)) or fully_sharded.holds_sums(modules)

    @property
    def gathers(self) -> bool:
        """Whether the script has begun to gather parameters of a sharded module, and has not waited for them."""
        return fully_sharded.gathers(self.sharded_modules)

    @property
    def tensor_parallel(self) -> str:
        """The name of a module of which several ranks compute parts of one batch; "" if there is none."""
        return next((name for name, module in self._modules.items() if module.tensor_parallel), "")

    @property
    def batch_mesh(self) -> Any:
        """The mesh whose ranks get different samples, if several ranks compute parts of one batch and torch says so; or
        else None."""
        return fully_sharded.batch_mesh(self.sharded_modules) if self.tensor_parallel else None

    def trained(self) -> Iterator[Tensor]:
        """What steps change: the modules' tensors and the optimizers' state."""
        return chain(self._live().values(), self.optimizer_tensors())

    def optimizer_tensors(self) -> Iterator[Tensor]:
        """The tensors in all optimizers' state, without those nested deeper."""
        return chain.from_iterable(optimizer.tensors() for optimizer in self._optimizers.values())

    def stepped(self) -> set[int]:
        """Addresses of the memory that only optimizers' steps are to change. Memory that also holds anything else is
        left out."""
        stepped = list(chain.from_iterable(optimizer.stepped() for optimizer in self._optimizers.values()))
        known = set(map(id, stepped))
        others = chain(self._buffers(), (parameter for parameter in self.parameters() if id(parameter) not in known))
        return set(map(tensors.address, stepped)) - set(map(tensors.address, others))

    def frozen(self) -> set[int]:
        """Addresses of the memory of parameters that nothing is to change. Memory that also holds a buffer is left
        out."""
        frozen = (parameter for parameter in self.parameters() if not parameter.requires_grad)
        return set(map(tensors.address, frozen)) - set(map(tensors.address, self._buffers()))

    def _buffers(self) -> Iterator[Tensor]:
        return chain.from_iterable(module.buffers().values() for module in self._modules.values())

    def versions(self) -> list[int]:
        """How often each parameter was written to, except by claims. Equal as long as nothing writes to any."""
        return [_version(parameter) - self._claims[parameter] for parameter in self._parameter_names()]

    def grown(self) -> Mapping[str, Tensor]:
        """What training has made and a fresh script lacks: the optimizers' tensors, by name."""
        found: dict[str, Tensor] = {}
        parameters = self._parameter_names()
        for optimizer in self._optimizers.values():
            optimizer.read(parameters, found)
        return found

    def owners_of(self, items: Iterable[Item]) -> dict[str, Tensor]:
        """For each of these tensors of optimizers' state that has the shards of a parameter: that, by its name."""
        owners = {name: parameter for parameter, name in self._parameter_names().items() if boxes.is_sharded(parameter)}
        pairs = ((item, optimizer.owner_of(item, owners)) for item in items for optimizer in self._optimizers.values())
        return {item.name: owner for item, owner in pairs if owner is not None}

    def targets(
        self,
        objects: Mapping[str, Any],
        items: Sequence[Item],
        room: Mapping[tuple[str, str], Tensor] = MappingProxyType({}),
    ) -> Mapping[tuple[str, str], Tensor]:
        """Where to read a checkpoint's tensors to: the live ones where they fit, otherwise those of `room` where these
        fit, otherwise new ones.

        UserError, with name, expected and found, if the checkpoint is not of what is registered.
        """
        renames = self._renames.of([*objects, *(item.name for item in items)])
        by_name = {renames(item.name): item for item in items}
        places = self._places(self._known(objects, renames), by_name, room)
        self._items = by_name
        return {(item.part, item.name): places[name] for name, item in by_name.items() if name in places}

    def _places(
        self,
        objects: Mapping[str, Any],
        by_name: Mapping[str, Item],
        room: Mapping[tuple[str, str], Tensor] = MappingProxyType({}),
    ) -> dict[str, Tensor]:
        """Where to read each tensor of these objects to."""
        places = {
            name: tensor
            for registered, module in self._modules.items()
            if registered in objects
            for name, tensor in module.targets(objects[registered], by_name, self._marked)
        }
        used = {tensors.address(tensor) for tensor in places.values()}
        for name, live, owner in self._wishes(objects, by_name):
            item = by_name[name]
            places[name] = _place(item, live, owner, used, room.get((item.part, item.name)))
        return places

    @boxes.meshes_stay()
    def load(self, state: RankState) -> None:
        """Restores a checkpoint's state, whether it was read into its targets or not. UserError if it is of other
        objects."""
        read = {**state.shared, **state.replicated}
        renames = self._renames.of([*state.objects, *read])
        objects = self._known(state.objects, renames)
        shared, replicated = (
            {renames(name): tensor for name, tensor in part.items()} for part in (state.shared, state.replicated)
        )
        self.kept = sorted(self.names - objects.keys()) + self._put_in(objects, {**shared, **replicated})
        self.modes.resume(self._modes_in(objects))
        if state.rank is not None:  # otherwise this rank keeps its own
            own = {renames(name): saved for name, saved in state.rank.get(BY_RANK, {}).items()}
            self._check_own(objects, own)
            self.load_own(own)
        whole = PendingState(objects, shared, replicated)
        self._pending, self._parts = whole.besides(self.names), self._lacking(whole.of(self.names))
        self._note_groups()
        self.loaded = True

    def _note_groups(self) -> None:
        """Notes the groups: a scheduler that is made late sets its optimizer's rates as at a start."""
        held = self._pending.objects
        self._restored = {name: one.groups() for name, one in self._optimizers.items() if held}

    def _lacking(self, found: PendingState) -> PendingState:
        """The tensors among these that were late in the checkpoint and that the modules do not have yet."""
        return found.named(self._marked - self._live().keys())

    def settle(self, *, strict: bool = True) -> bool:
        """Restores what the script has made in registered modules or added to optimizers from the checkpoint. Returns
        whether there was anything.

        UserError for what no later run could load. Unless `strict`, a parameter of no registered module may still be
        registered later.
        """
        claimed = self._settle_parts() if self._parts.tensors else False
        changed = [optimizer for optimizer in self._optimizers.values() if optimizer.changed()]
        if strict and self._judged is not (now := self.parameters()):
            self._check_parameters()
            self._judged = now
        if not changed:
            return claimed
        parameters = self._parameter_names()
        if not strict and not all(optimizer.is_of(parameters) for optimizer in changed):
            return claimed
        with self._refilling():
            for optimizer in changed:
                optimizer.settle(parameters)
        return True

    def _check_parameters(self) -> None:
        """The script has replaced a part of a module, or a parameter: checks the optimizers again."""
        names = self._parameter_names()
        for optimizer in self._optimizers.values():
            if not optimizer.changed():
                optimizer.settle(names)

    def _settle_parts(self) -> bool:
        live, waiting = self._live(), self._parts.tensors
        places = {name: live[name] for name in waiting if name in live}
        for name, place in places.items():
            was, now = (f"{tensors.dtype_name(one)} {list(one.shape)}" for one in (waiting[name], place))
            if was != now:
                raise UserError(f"{name} is {was} in the checkpoint and {now} in the module: make it as it was then")
        with self._claiming():
            for name, place in places.items():
                boxes.fill(place, waiting[name])
        self._parts = self._parts.named(waiting.keys() - places.keys())
        return bool(places)

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        """Counts writes to parameters in the block as the checkpoint's."""
        before = {parameter: _version(parameter) for parameter in self._parameter_names()}
        with torch.no_grad():
            yield
        self._claims.update({parameter: _version(parameter) - was for parameter, was in before.items()})

    @contextmanager
    def _refilling(self) -> Iterator[None]:
        """Optimizers that shared groups or state before the block share the loaded ones after it."""
        containers = OptimizerContainers(thing for thing in self.things if isinstance(thing, Optimizer))
        yield
        containers.refill()

    def claim(self, names: Collection[str], rename: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Restores objects that were added late from the checkpoint.

        Returns the names that it does not hold, and the modules' tensors that are kept. UserError if it holds other
        objects under these names; then nothing is claimed.
        """
        renames = (Renames() | rename).of(self._pending.held)
        pending, known = self._pending.called(renames), {renames(name): item for name, item in self._items.items()}
        claimed = pending.of(names)
        self._marked = {renames(name) for name in self._marked}
        with self._claiming():
            places = self._places(claimed.objects, claimed.items(known))
            for name, place in places.items():
                boxes.fill(place, claimed.tensors[name])
            kept = self._put_in(claimed.objects, {**claimed.tensors, **places})
        self.modes.claim(self._modes_in(claimed.objects))
        if claimed.objects:
            for name in self._restored.keys() - claimed.objects.keys():
                self._optimizers[name].put_back(self._restored[name])
        self._parts |= self._lacking(claimed)
        self._pending, self._items = pending.besides(names), known
        self._note_groups()
        return sorted(set(names) - claimed.objects.keys()), kept

    def _put_in(self, objects: Mapping[str, Any], found: Mapping[str, Tensor]) -> list[str]:
        """Copies the values that were read into their places. Returns the modules' tensors that are kept."""
        kept: list[str] = []
        for name, module in self._held(self._modules, objects):
            kept += module.load(found, join(objects[name]["extra"], found.__getitem__))
            module.zero_gradients(objects[name].get(GRADIENTS, {}))
        parameters = self._parameter_names()
        with self._refilling():
            for name, optimizer in self._held(self._optimizers, objects):
                optimizer.load(objects[name], parameters, found.__getitem__, self._marked)
                optimizer.on_added(partial(self.settle, strict=False))
        for name, other in self._held(self._others, objects):
            if objects[name] is not None:
                saved = named_as(objects[name], _state_of(name, other))
                other.load_state_dict(join(saved, found.__getitem__))
        return kept

    def _wishes(self, objects: Mapping[str, Any], items: Mapping[str, Item]) -> Iterator[tuple[str, Any, Home | None]]:
        """For each tensor outside of modules: its name, the live one, and where it belongs if there is none."""
        parameters = self._parameter_names()
        for name, _ in self._held(self._modules, objects):
            yield from ((ref, None, None) for ref, _ in refs(objects[name]["extra"]))
        for name, optimizer in self._held(self._optimizers, objects):
            yield from optimizer.wishes(objects[name], parameters, items)
        for name, other in self._held(self._others, objects):
            live = _state_of(name, other)
            yield from ((ref, found, None) for ref, found in refs(named_as(objects[name], live), live))

    def _modes_in(self, objects: Mapping[str, Any]) -> dict[str, Modes]:
        """The modules' modes in a checkpoint; one of an older version holds none."""
        held = ((name, objects[name]) for name, _ in self._held(self._modules, objects))
        return {name: Modes.of(saved) for name, saved in held if MODES in saved}

    @staticmethod
    def _held(things: Mapping[str, T], names: Collection[str]) -> Iterator[tuple[str, T]]:
        """The things with one of these names, for example those that a checkpoint holds."""
        return ((name, thing) for name, thing in things.items() if name in names)

    @staticmethod
    def _check_own(objects: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        lacking = sorted(name for name, saved in objects.items() if saved is None and name not in own)
        if lacking:
            raise UserError(f"this rank has saved no state of {lacking[0]!r}: register it with merge= on every rank")

    def _known(self, saved: Mapping[str, Any], renames: Renames) -> dict[str, Any]:
        """A checkpoint's objects under their present names. UserError if the script does not register the same ones.

        What was late in the checkpoint is late again.
        """
        objects = renames.objects(saved)
        self._marked = {renames(name) for name in objects.pop(LATE, ())}
        self._check_names(objects, self._marked)
        return objects

    def _check_names(self, objects: Mapping[str, Any], late: set[str]) -> None:
        saved = set(objects)
        missing, unknown = sorted(saved - self.names - late), sorted(self.names - saved - self._keeping)
        if missing or unknown:
            raise UserError(
                f"the checkpoint holds {sorted(saved)}, registered are {sorted(self.names)}: register the same names "
                f"before restore(), register(..., absent='keep') what it does not hold, map old names to new ones with "
                f"register(rename={{...}}), or use another root"
            )
        parted = sorted(name for name, found in objects.items() if found is None and name not in self._merges)
        if parted:
            how = f"merge={{{parted[0]!r}: fn}}"
            raise UserError(f"the checkpoint holds a state of {parted[0]!r} for each rank: register it with {how}")

    def _parameter_names(self) -> dict[Tensor, str]:
        """Names by parameter. A tied parameter has its first name."""
        names: dict[Tensor, str] = {}
        for module in self._modules.values():
            for name, parameter in module.parameters():
                names.setdefault(parameter, name)
        return names


def _check_whole(name: str, optimizer: Optimizer) -> None:
    """UserError for an optimizer whose state_dict lacks a part of its state, or has none that could be read."""
    for one in with_held([optimizer]):
        if PARTED in (kind.__name__ for kind in type(one).__mro__):
            raise UserError(
                f"register({name}=...): a {PARTED} keeps a part of its state on each rank, which cannot be saved: use "
                f"the optimizer that it is made with, which keeps all of it on every rank"
            )
    if lacking := sorted({"state", "param_groups"} - optimizer.state_dict().keys()):
        raise UserError(
            f"register({name}=...): the state_dict of this {type(optimizer).__name__} has no "
            f"{' and no '.join(lacking)}, as every optimizer's of torch has: give it a state_dict and a "
            f"load_state_dict with both"
        )


def _version(tensor: Tensor) -> int:
    """How often torch has seen it written to."""
    return tensor._version  # noqa: SLF001 - torch has no public name for it


def _check_same(now: Mapping[str, Tensor], was: Mapping[str, Tensor]) -> None:
    """UserError if a forward pass has added or resized buffers: what else it has changed is unknown."""
    for name in sorted(now.keys() | was.keys()):
        if name not in now or name not in was or now[name].shape != was[name].shape:
            raise UserError(f"buffer {name} is another one since the last batch was handed out")


def _state_of(name: str, other: Stateful) -> dict[str, Any]:
    state = other.state_dict()
    if not isinstance(state, dict):
        raise UserError(f"{name!r}: its state_dict() gives a {type(state).__name__}: let it give a dict")
    return state


def _place(item: Item, live: Any, home: Home | None, used: set[int], room: Tensor | None) -> Tensor:
    """The live tensor, if it fits and its memory is its own; otherwise `room`, or a new one where it belongs."""
    if not isinstance(live, Tensor):
        return _new(item, home or Home(torch.device("cpu"), item.order), room)
    tensors.refuse_odd(item.name, live)
    memory = tensors.address(live)
    if not _fits(item, live) or (memory and memory in used) or tensors.overlaps_itself(live):
        return _new(item, Home(live.device, item.order, live if boxes.is_sharded(live) else None), room)
    used.add(memory)
    return live


def _new(item: Item, home: Home, room: Tensor | None) -> Tensor:
    if home.like is not None and home.like.shape == item.shape:
        if room is not None and _fits(item, room) and boxes.are_alike(room, home.like):
            return room
        return boxes.like(home.like, tensors.dtype_of(item.dtype))
    if room is not None and _fits(item, room) and Home(room.device, tensors.memory_order(room)) == home:
        return room
    return tensors.empty(item.dtype, item.shape, home.device, order=home.order)


def _fits(item: Item, tensor: Tensor) -> bool:
    return (tensors.dtype_name(tensor), tuple(tensor.shape)) == (item.dtype, item.shape)
