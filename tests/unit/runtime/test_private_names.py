"""Which modules know the private names of torch's groups, meshes and shards, which no version of torch promises.

`make torch-versions` tries those two with each supported torch, and perdure.live.trial each torch before it is used.
"""

from __future__ import annotations

import ast
from collections import namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from torch import Tensor, nn
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param, _fsdp_param_group, _fsdp_state
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

RUNTIME: Final = Path(__file__).parents[3] / "runtime" / "perdure"
ROOMS: Final = frozenset({"state/fully_sharded.py", "group/world.py"})
BESIDE: Final[Mapping[str, frozenset[str]]] = {
    "adapters/hf/batches.py": frozenset({"torch.utils.data._utils.pin_memory"}),
    "checkpoint/boxes.py": frozenset({"_local_tensor", "_spec"}),
    "state/shards.py": frozenset({"_get_fsdp_state", "_fsdp_param_groups"}),
    "live/joining.py": frozenset({"torch._dynamo"}),
}
"""What others know, too: how a script pins memory, what a shard holds and how it is laid out, how a module is sharded,
and an import that only costs time."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def of_torch() -> set[str]:
    """The names of its groups, meshes and shards, without those that each tensor, module and object has."""
    kinds = (distributed_c10d, device_mesh, device_mesh.DeviceMesh, FSDPModule, DTensor, DTensorSpec)
    files = (_fsdp_common, _fsdp_param, _fsdp_param_group, _fsdp_state)
    classes = [kind for file in files for kind in vars(file).values() if isinstance(kind, type)]
    named = {name for kind in (*kinds, *files, *classes) for name in dir(kind)}
    annotated = {name for kind in (*kinds, *classes) for name in getattr(kind, "__annotations__", ())}
    anybodys = {*dir(Tensor), *dir(nn.Module), *vars(nn.Module()), *dir(namedtuple("Some", ()))}
    in_rooms = {name for room in ROOMS for name in known_to(room)}
    return {name for name in named | annotated | in_rooms if is_private(name)} - anybodys


def known_to(path: str) -> Iterator[str]:
    """The private names of other objects that a module uses, and the private modules of torch that it imports, but for
    types alone."""
    tree = ast.parse((RUNTIME / path).read_text())
    for_types = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield name
            case ast.ImportFrom(module=str(module)) if id(node) not in for_types:
                yield from _private_modules([module])
            case ast.Import(names=names):
                yield from _private_modules([alias.name for alias in names])


def _private_modules(names: list[str]) -> Iterator[str]:
    for name in names:
        first, *others = name.split(".")
        if first == "torch" and any(map(is_private, others)):
            yield name


def test_two_rooms_know_the_private_names_of_groups_meshes_and_shards() -> None:
    names, others = of_torch(), dict[str, set[str]]()
    for path in sorted(RUNTIME.rglob("*.py")):
        file = path.relative_to(RUNTIME).as_posix()
        used = {name for name in known_to(file) if name in names or "." in name}
        if file not in ROOMS and used:
            others[file] = used
    assert others == BESIDE
