"""A registered module's tensors, by names that do not depend on how it is wrapped, and back into it.

Parameters are shared out over the ranks, buffers come from rank 0. A buffer that has grown since the module was built
is saved with its first shape, so that a newly built module gets it with the saved shape. A module that was built in
another way is refused. Called by the registry.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.manifest import Item
from perdure.checkpoint.state import TwinRef
from perdure.checkpoint.tree import join, refs, split
from perdure.errors import UserError
from perdure.state import fully_sharded
from perdure.state.modes import MODES, TRAINED, Modes
from perdure.state.outline import Outline
from perdure.state.shards import is_tensor_parallel, sharded_parts
from perdure.state.wrapping import Replica

GRADIENT_LOOKS: Final = 64
"""Steps after which a module that had no gradients is taken for one that keeps none."""
COMPILED = "_orig_mod"
"""The attribute in which torch.compile keeps the module."""


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside wrappers for training, or of a compiled one."""
    for part in _hidden(module):
        return unwrapped(module.get_submodule(part))
    return module


GRADIENTS: Final = "gradients"
"""The part of a checkpoint's entry with the parameters that have gradients, if the script keeps these."""


def is_module(saved: Any) -> bool:
    """Whether this is a checkpoint's entry for a module: only that has these parts. Older ones have no modes."""
    parts = {"extra", "grown"}
    return isinstance(saved, Mapping) and parts <= saved.keys() <= parts | {MODES, TRAINED, GRADIENTS}


def state_dict_of(name: str, saved: Mapping[str, Any], found: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a module's `load_state_dict` takes, from a checkpoint's entry for the module registered as `name`."""
    inside = {ref for ref, _ in refs(saved["extra"])}
    own = {full.removeprefix(f"{name}."): tensor for full, tensor in found.items() if full not in inside}
    return {**own, **join(saved["extra"], found.__getitem__)}


def _has_dense_gradient(parameter: nn.Parameter) -> bool:
    """Whether it has a gradient that is not a sparse one."""
    return parameter.grad is not None and parameter.grad.layout is torch.strided


def _gradient_type(parameter: nn.Parameter) -> torch.dtype:
    """The type that its gradient has to have; since torch 2.15 a script can set another one than its own."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


class Module:
    """One registered module."""

    def __init__(self, name: str, module: nn.Module, *, keeps: bool = False) -> None:
        """`keeps`: parts that a checkpoint lacks stay as they are."""
        self._name = name
        self._keeps = keeps
        self._module = unwrapped(module)
        self._wrappers = _wrappers(module)
        self._begun: dict[str, torch.dtype] | None = None
        """The names of its tensors when training began, and their types."""
        self.late: list[str] = []
        """The names of tensors that came since, as of the last read."""
        self._built = {raw: _shape(buffer) for raw, _, _, buffer in self._buffers()}
        self.outline = Outline(self._module)
        self._places: list[tuple[str, nn.Module, str]] = []
        """The places of the buffers."""
        self._looked_at: list[nn.Module] | None = None
        self._sharded: list[Any] = []
        """The parts that FSDP2 shards, as of then."""
        self._placed: list[nn.Module] | None = None
        """The parts that have these buffers."""
        self._parts: list[tuple[str, nn.Module]] = []
        """All parts by path, each before its own parts."""
        self._listed: list[nn.Module] | None = None
        """All parts without paths."""
        self._named: list[tuple[str, nn.Parameter]] = []
        """All parameters by path, each once."""
        self._trained_at_first: Mapping[str, bool] = {}
        """The `requires_grad` of each parameter when the run began."""
        self._keeps_gradients: bool | None = None
        """Whether gradients stay in the same memory from step to step, as with `zero_grad(set_to_none=False)`. Then a
        parameter that a step does not use has one of zeros, by which optimizers with weight decay or momentum step."""
        self._gradients: dict[int, weakref.ref[Tensor]] = {}
        """The gradients of the steps before, by parameter, until one of these has another gradient."""
        self._gradient_looks = 0
        self._modes: tuple[list[bool], Modes] | None = None
        """What each part and parameter is, and the `Modes` made of that."""

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters by full name; a tied one has each of its names."""
        self.reshard()
        plain = self._plain_names()
        for raw, parameter in self._module.named_parameters(remove_duplicate=False):
            yield f"{self._name}.{plain(raw)}", parameter

    def reshard(self) -> None:
        """Its parameters are the shards again: after a forward pass without a backward one the outermost part has whole
        ones, which are not trained."""
        if self._looked_at is not self.outline.parts():
            self._looked_at = self.outline.parts()
            self._sharded = sharded_parts(self._module)
        for part in self._sharded:
            part.reshard()

    @property
    def sharded(self) -> bool:
        """Whether any of its tensors is in shards, or will be again after the backward pass."""
        tensors_of = chain(self._module.parameters(), self._module.buffers())
        return bool(sharded_parts(self._module)) or any(map(boxes.is_sharded, tensors_of))

    def shards_obstacle(self, world: int) -> str:
        """Why its shards cannot go to other ranks while it trains; "" if they can, or if it has none."""
        return fully_sharded.obstacle(self._name, self._module, world)

    @property
    def inside(self) -> nn.Module:
        """The module without wrappers."""
        return self._module

    @property
    def tensor_parallel(self) -> bool:
        """Whether several ranks compute parts of one batch."""
        return is_tensor_parallel(self._module)

    def layout(self) -> Iterator[str]:
        """A line for each parameter with which training began: its name, type, shape, and the order of its dimensions
        in memory. Buffers may have grown."""
        for name, value in self.parameters():
            if self._begun is None or name in self._begun:
                order = list(tensors.memory_order(value) or range(value.dim()))
                yield f"{name}: {tensors.dtype_name(value)} {list(value.shape)}, memory order {order}"

    def live(self) -> dict[str, Tensor]:
        """Its tensors, by full name."""
        found = ((f"{self._name}.{name}", value) for name, value in self._state().values())
        return {name: value for name, value in found if isinstance(value, Tensor)}

    @property
    def extra(self) -> str:
        """The type of a part that keeps state that is not a tensor; "" if there is none."""
        kinds = {type(part) for part in self._module.modules()}
        return next((kind.__name__ for kind in kinds if kind.get_extra_state is not nn.Module.get_extra_state), "")

    def buffers(self) -> dict[str, Tensor]:
        """The saved buffers, which a forward pass may change, by full name. Looks for their places only once, and again
        after the script has replaced a part."""
        if self._placed is not self.outline.parts():
            self._placed, plain = self.outline.parts(), self._plain_names()
            self._places = [
                (f"{self._name}.{plain(f'{path}.{key}'.lstrip('.'))}", part, key)
                for path, part in self._module.named_modules(remove_duplicate=False)
                for key in part._buffers  # noqa: SLF001
                if key not in part._non_persistent_buffers_set  # noqa: SLF001
            ]
        found = ((name, part._buffers.get(key)) for name, part, key in self._places)  # noqa: SLF001
        return {name: buffer for name, buffer in found if buffer is not None}

    def modes(self) -> Modes:
        """The present modes of its parts; of these, as of the last call of `parameters` of the outline."""
        now = [part.training for _, part in self._listed_parts()] + [one.requires_grad for _, one in self._named]
        if self._modes is None or now != self._modes[0]:
            found = {path: part.training for path, part in self._parts}
            parts = {path: mode for path, mode in found.items() if mode != _around(path, found)}
            flags = {path: (one.requires_grad, self._trained_at_first.get(path)) for path, one in self._named}
            self._modes = now, Modes(parts, {path: both for path, both in flags.items() if False in both})
        return self._modes[1]

    def begin(self) -> None:
        """The run begins, or the module is registered in it."""
        self.outline.parameters()
        self._listed_parts()
        self._trained_at_first, self._modes = {path: one.requires_grad for path, one in self._named}, None

    def set_modes(self, modes: Modes) -> list[str]:
        """Restores them; returns the parameters that are now frozen or trained otherwise than before. Parts that were
        made since have that of the part around them, and parameters that began as something else than in the
        checkpoint's run stay as they are. Nothing of the script's is called, because a custom train() may leave
        some parts as they are."""
        self.outline.parameters()
        found: dict[str, bool] = {}
        for path, part in self._listed_parts():
            found[path] = modes.parts.get(path, _around(path, found))
            part.training = found[path]
        for wrapper in self._wrappers:
            for one in (wrapper, *(wrapper.inside if isinstance(wrapper, Replica) else ())):
                one.training = found[""]
        changed = []
        for path, one in self._named if modes.trained is not None else ():
            trained, at_first = (modes.trained or {}).get(path, (True, True))
            if at_first == self._trained_at_first.get(path) and one.requires_grad != trained:
                one.requires_grad_(bool(trained))
                changed.append(path)
        return changed

    def _listed_parts(self) -> list[tuple[str, nn.Module]]:
        if self._listed is not self.outline.parts():
            self._listed, plain, self._modes = self.outline.parts(), self._plain_names(), None
            self._parts = [(plain(path), part) for path, part in self._module.named_modules()]
            self._named = [(plain(path), parameter) for path, parameter in self._module.named_parameters()]
        return self._parts

    def read(self, shared: dict[str, Tensor], replicated: dict[str, Tensor]) -> dict[str, Any]:
        """Adds the tensors to `shared` and `replicated`, a tied one once; returns the rest. UserError if one could not
        be loaded again."""
        parameters = dict(self._module.named_parameters(remove_duplicate=False))
        extra: dict[str, Any] = {}
        stored: dict[Tensor, str] = {}
        live = self._state()
        types = {f"{self._name}.{name}": value.dtype for name, value in live.values() if isinstance(value, Tensor)}
        self._begun = types if self._begun is None else self._begun
        self.late = [name for name in types if name not in self._begun]
        _refuse_cast(self._begun, types)
        for raw, (name, value) in live.items():
            if not isinstance(value, Tensor):
                extra[name] = split(value, f"{self._name}.{name}.", replicated)
                continue
            full = f"{self._name}.{name}"
            _refuse_unwritable(full, value)
            if raw not in parameters:
                replicated[full] = value
            elif (first := stored.setdefault(parameters[raw], full)) != full and _is_one(shared[first], value):
                extra[name] = TwinRef(first)
            else:
                shared[full] = value
        return {"extra": extra, "grown": self._grown(), **self._with_gradients()}

    def note_gradients(self) -> None:
        """A step is done. Finds out in the first ones whether the script keeps gradients' memory."""
        if self._keeps_gradients is not None or self._gradient_looks == GRADIENT_LOOKS:
            return
        self._gradient_looks += 1
        self.reshard()
        for one in self._module.parameters():
            if (found := one.grad) is None:
                continue
            before = self._gradients.get(id(one))
            if before is not None:
                self._keeps_gradients = bool(self._keeps_gradients) or before() is found
            self._gradients[id(one)] = weakref.ref(found)
        if self._keeps_gradients is not None:
            self._gradients.clear()

    def _with_gradients(self) -> dict[str, dict[str, bool]]:
        """The parameters that have gradients, if the script keeps these."""
        return {GRADIENTS: dict.fromkeys(self.kept_gradients(), True)} if self._keeps_gradients else {}

    def kept_gradients(self) -> list[str]:
        """The parameters whose gradients the script keeps from step to step."""
        if not self._keeps_gradients:
            return []
        return [path for path, one in self._module_parameters() if _has_dense_gradient(one)]

    def forget_gradients(self) -> None:
        """Others than the script drops them, which is no sign of how it does so itself."""
        self._gradients.clear()

    def zero_gradients(self, paths: Collection[str]) -> None:
        """Gives these parameters gradients of zeros, as `zero_grad(set_to_none=False)` leaves them."""
        for path, one in self._module_parameters():
            if path in paths and one.grad is None:
                one.grad = torch.zeros_like(one, dtype=_gradient_type(one))
                self._keeps_gradients = True

    def _module_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        self.reshard()
        plain = self._plain_names()
        return ((plain(raw), one) for raw, one in self._module.named_parameters())

    def targets(
        self, saved: Mapping[str, Any], items: Mapping[str, Item], late: Collection[str] = ()
    ) -> Iterator[tuple[str, Tensor]]:
        """Each tensor's full name and the live one, except `late` ones that it lacks so far. UserError if the
        checkpoint is of another module."""
        self._make_room(saved["grown"], items)
        live = self.live()
        inside = {name for name, _ in refs(saved["extra"])}
        own = {name for name in items if name.startswith(f"{self._name}.")} - inside
        twins = {f"{self._name}.{name}": ref.name for name, ref in saved["extra"].items() if type(ref) is TwinRef}
        self._check_names((own | set(twins)) - (set(late) - set(live)), set(live))
        for name, value in live.items():
            if name not in own and name not in twins:
                continue
            _refuse_unwritable(name, value)
            item = items[twins.get(name, name)]
            was, now = f"{item.dtype} {list(item.shape)}", f"{tensors.dtype_name(value)} {list(value.shape)}"
            if was != now:
                raise self._misfit(f"{name} is {was} in the checkpoint and {now} in the module")
            if name not in twins:
                yield name, value

    def load(self, state: Mapping[str, Tensor], extra: Mapping[str, Any]) -> list[str]:
        """Restores everything, and returns what it keeps. The tensors of `state` are those of `targets`, filled."""
        saved: dict[str, Any] = {}
        kept: list[str] = []
        for raw, (name, value) in self._state().items():
            full = f"{self._name}.{name}"
            if name in extra or full in state:
                saved[raw] = extra[name] if name in extra else state[full]
            elif self._keeps:
                saved[raw] = value
                kept.append(full)
        try:
            self._module.load_state_dict(saved, strict=True)
        except RuntimeError as error:
            raise self._misfit(str(error)) from error
        return kept

    def _state(self) -> dict[str, tuple[str, Any]]:
        """The state_dict by its own names: the name without wrappers, and the value."""
        self.reshard()
        for raw, parameter in self._module.named_parameters():
            tensors.refuse_odd(f"{self._name}.{raw}", parameter)
        plain = self._plain_names()
        return {raw: (plain(raw), value) for raw, value in self._module.state_dict().items()}

    def _plain_names(self) -> Any:
        """Returns a function that removes wrappers' `module.` and `_orig_mod.` from a state_dict's name, at any
        depth."""
        hidden = {
            f"{path}.{part}".lstrip("."): path
            for path, module in self._module.named_modules(remove_duplicate=False)
            for part in _hidden(module)
        }

        def plain(raw: str) -> str:
            parts: list[str] = []
            path = ""
            for part in raw.split("."):
                path = f"{path}.{part}".lstrip(".")
                if path not in hidden:
                    parts.append(part)
            return ".".join(parts)

        return plain

    def _buffers(self) -> Iterator[tuple[str, nn.Module, str, Tensor | None]]:
        """Name, owner, name there, and the buffer, which may be None."""
        plain = self._plain_names()
        for path, module in self._module.named_modules():
            for key, buffer in module._buffers.items():  # noqa: SLF001  (no public way to one that is None)
                yield plain(f"{path}.{key}".lstrip(".")), module, key, buffer

    def _grown(self) -> dict[str, Any]:
        """First shapes of buffers that have another shape now."""
        now = {name: _shape(buffer) for name, _, _, buffer in self._buffers()}
        return {name: shape for name, shape in self._built.items() if name in now and now[name] != shape}

    def _make_room(self, grown: Mapping[str, Any], items: Mapping[str, Item]) -> None:
        """Gives buffers the shape they were saved in, if they began with the same shape."""
        for name, owner, key, buffer in self._buffers():
            item = items.get(f"{self._name}.{name}")
            if item and name in grown and grown[name] == self._built[name]:
                device = buffer.device if buffer is not None else _device_of(self._module)
                owner._buffers[key] = tensors.empty(item.dtype, item.shape, device)  # noqa: SLF001

    def _check_names(self, saved: set[str], live: set[str]) -> None:
        missing, unknown = sorted(saved - live), sorted(live - saved)
        if missing:
            also = f", and not {_some(unknown)}, which it has" if unknown else ""
            rename = "map old names to new ones with register(rename={...}), " if unknown else ""
            raise self._misfit(f"it holds {_some(missing)}, which the module does not have{also}", rename)
        if unknown and not self._keeps:
            keep = "register(..., absent='keep') what it does not hold, "
            raise self._misfit(f"it does not hold {_some(unknown)}, which the module has", keep)

    def _misfit(self, why: str, remedy: str = "") -> UserError:
        return UserError(
            f"the checkpoint does not fit module {self._name!r}: {why}: build the model it was saved from, {remedy}or "
            f"use another root"
        )


def _hidden(module: nn.Module) -> Sequence[str]:
    if isinstance(module, Replica | DistributedDataParallel | DataParallel):
        return ("module",)
    return (COMPILED,) if COMPILED in module._modules else ()  # noqa: SLF001


def _wrappers(module: nn.Module) -> list[nn.Module]:
    """The wrappers around a module, the outermost first."""
    return [found for part in _hidden(module) for found in (module, *_wrappers(module.get_submodule(part)))]


def _around(path: str, modes: Mapping[str, bool]) -> bool:
    """The mode of the part around this one."""
    return modes[path.rpartition(".")[0]] if path else True


def _refuse_cast(begun: Mapping[str, torch.dtype], now: Mapping[str, torch.dtype]) -> None:
    for name, dtype in now.items():
        if (first := begun.get(name, dtype)) != dtype:
            raise UserError(
                f"tensor {name} was {first} when training began and is {dtype} now, so a resumed run, which begins "
                f"with {first}, could not load it: cast it before the first loop, or use torch.autocast"
            )


def _refuse_unwritable(name: str, tensor: Tensor) -> None:
    tensors.refuse_odd(name, tensor)
    if tensors.overlaps_itself(tensor):
        raise UserError(
            f"tensor {name} has elements that share memory (it is expanded), so nothing can be read into it: register "
            f"a copy of it, made with .clone() or .contiguous()"
        )


def _is_one(tensor: Tensor, other: Tensor) -> bool:
    """Whether both are the same view of one memory: a hook of the module may return something else for one name."""
    kinds = [(boxes.local(each).data_ptr(), each.dtype, each.shape, each.stride()) for each in (tensor, other)]
    return kinds[0] == kinds[1]


def _shape(buffer: Tensor | None) -> list[int] | None:
    return None if buffer is None or is_lazy(buffer) else list(buffer.shape)


def _device_of(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _some(names: list[str]) -> str:
    return ", ".join([*names[:3], "..."] if len(names) > 3 else names)
