"""`perdure import`: a file of another program becomes a checkpoint root that holds one object.

Nothing that a file says is executed. Tensors are read by `torch.load(weights_only=True)`, whose unpickler knows a list
of harmless types. The index of a dcp checkpoint is a pickle, too: it is read by an unpickler that knows dcp's own types
and no others. It is the only one of Perdure's.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp

from perdure.checkpoint.first_commit import commit_first, first_run
from perdure.checkpoint.inspect import Line
from perdure.cli.export import WEIGHTS, alone
from perdure.errors import UserError
from perdure.session.importing import as_registered
from perdure.store import Store

SHARDED_WEIGHTS: Final = "model.safetensors.index.json"
_NO_TENSORS: Final = "holds something else than tensors and plain values"
_HARMLESS: Final = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}
"""What the index of a dcp checkpoint may name."""


def import_into(store: Store, name: str, source: Path, take: str | None) -> Line:
    """Write what is at `source` as the first commit of an empty root, as if a script had registered it as `name`.

    `source` is a file of `torch.save`, a folder of `torch.distributed.checkpoint`, or a file or folder of safetensors.
    `take` is the place of the state_dict in it, its keys joined by dots. Returns what was written.

    Raises:
        UserError: The root has a log, `source` cannot be read, names code, or has no state_dict at that place.

    """
    run = first_run(store)
    if not source.exists():
        raise UserError(f"there is no {source}: name a file of torch.save, or a folder of dcp or safetensors")
    state = _taken(_read(source), take, source)
    commit_first(store, run, as_registered(name, state))
    count = sum(isinstance(value, torch.Tensor) for value in state.values())
    return Line(f"{store.uri}: {name}, {count} tensors", {"root": store.uri, "name": name, "tensors": count})


def _read(source: Path) -> Any:
    try:
        if (source / ".metadata").is_file():
            return _read_dcp(source)
        if source.is_dir():
            return _read_safetensors(source)
        if source.suffix == ".safetensors":
            return load_file(source)
        return torch.load(source, map_location="cpu", weights_only=True)
    except CheckpointException as error:
        inner = next(failure for failure, _ in error.failures.values())
        code = isinstance(inner, pickle.UnpicklingError)
        raise UserError(f"{source} {_NO_TENSORS if code else 'cannot be read'}: {_first(inner)}") from None
    except pickle.UnpicklingError as error:
        raise UserError(f"{source} {_NO_TENSORS}: {_first(error)}") from None
    except Exception as error:  # noqa: BLE001 - what readers raise for bytes that are none of theirs is in no list
        raise UserError(f"{source} cannot be read: {_first(error)}") from None


def _read_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    index = folder / SHARDED_WEIGHTS
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else [WEIGHTS]
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{index} names {name}, which is not beside it")
    return {key: tensor for name in names for key, tensor in load_file(folder / name).items()}


def _read_dcp(folder: Path) -> dict[str, Any]:
    reader = _IndexReader(folder)
    metadata = reader.read_metadata()
    flat = {
        name: torch.empty(stored.size, dtype=stored.properties.dtype)
        if isinstance(stored, TensorStorageMetadata)
        else None
        for name, stored in metadata.state_dict_metadata.items()
    }
    with alone():
        load_dcp(
            flat,
            storage_reader=reader,
            planner=_Planner(flatten_state_dict=False, flatten_sharded_tensors=False),
            no_dist=True,
        )
    places: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    state: dict[Any, Any] = {}
    for name, value in flat.items():
        _put(state, places.get(name, (name,)), value)
    return {key: _with_lists(value) for key, value in state.items()}


def _put(state: dict[Any, Any], place: tuple[Any, ...], value: Any) -> None:
    *path, last = place
    for key in path:
        state = state.setdefault(key, {})
    state[last] = value


def _with_lists(value: Any) -> Any:
    """dcp names the places of a list by numbers, the keys of a dictionary by strings."""
    if not isinstance(value, dict):
        return value
    inside = {key: _with_lists(each) for key, each in value.items()}
    return [inside[key] for key in sorted(inside)] if inside and all(isinstance(key, int) for key in inside) else inside


def _taken(found: Any, take: str | None, source: Path) -> Mapping[Any, Any]:
    for key in take.split(".") if take else ():
        if not isinstance(found, Mapping) or key not in found:
            there = (
                f"there are {', '.join(map(str, found))}" if isinstance(found, Mapping) else "what is there has no keys"
            )
            raise UserError(f"{source} has nothing at {take}: {there}")
        found = found[key]
    if not isinstance(found, Mapping):
        raise UserError(f"{source} holds {type(found).__name__}, no state_dict: name its place in it with --take")
    if set(found) >= {"state", "param_groups"} and all(str(key).isdigit() for key in found["state"]):
        return {**found, "state": {int(key): value for key, value in found["state"].items()}}
    return found


def _first(error: BaseException) -> str:
    """What torch adds to it is how to execute the file after all."""
    return re.split(r"(?<=\.) |\n", str(error).strip())[0] or type(error).__name__


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _HARMLESS.get(module, ()):
            raise pickle.UnpicklingError(f"its index names {module}.{name}, which is none of dcp's own types")
        return super().find_class(module, name)


class _IndexReader(FileSystemReader):
    """torch's reader with a safe unpickler for the index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _unpickled(file)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _unpickled(file: IO[bytes]) -> Metadata:
    metadata = _Unpickler(file).load()
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"its index is {type(metadata).__name__}")
    return metadata


class _Planner(DefaultLoadPlanner):
    """Refuses what torch's own loader would pass to an unpickler, which executes what it finds."""

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, map_location="cpu", weights_only=True)
