"""`perdure export`: what one registered object holds in a commit, as a file that needs no Perdure to be read.

Nothing half-written is left under the name that was asked for: it is written beside it and renamed.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

from perdure.checkpoint.inspect import Line
from perdure.errors import UserError
from perdure.session.loading import load
from perdure.wire import CommitSelector

WEIGHTS = "model.safetensors"
"""The name that Hugging Face's `from_pretrained` looks for in a folder."""


class Format(StrEnum):
    """What is written."""

    HF = "hf"
    """A folder with model.safetensors, for `from_pretrained` and other readers of safetensors."""
    TORCH = "torch"
    """A file for `torch.load`, which it reads with `weights_only=True`."""
    DCP = "dcp"
    """A folder for `torch.distributed.checkpoint.load`."""


def export(uri: str, wanted: CommitSelector, name: str, to: Path, form: Format) -> Line:
    """Write the state_dict that the object registered as `name` has in a commit; returns what was written.

    Raises:
        UserError: There is no such commit or object, something is at `to` already, nothing can be written there, or
            the format cannot hold the state.
        Corrupt: The commit is damaged.

    """
    if to.parts and to.parts[0].endswith(":"):
        raise UserError(f"{to} is a URI: name a file or folder of this machine, and copy it from there")
    with _writing(to):
        if to.exists():
            raise UserError(f"{to} exists: name another place, or remove it")
    loaded = load(uri, [name], seq=wanted.seq)
    state = loaded[name]
    beside = to.with_name(f".perdure-export.{os.getpid()}")  # not longer for a long name
    with _writing(to):
        try:
            _WRITERS[form](state, beside)
            beside.rename(to)
        finally:
            _remove(beside)
    count = sum(isinstance(value, Tensor) for value in state.values())
    tensors = f", {count} tensors" if count else ""
    about = {"to": str(to), "name": name, "seq": loaded.commit.seq, "step": loaded.commit.step, "tensors": count}
    return Line(f"{to}: {name} of entry {loaded.commit.seq}, step {loaded.commit.step}{tensors}", about)


@contextmanager
def _writing(to: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, CheckpointException) as error:
        cause = _system_error(error)
        if cause is None:
            raise
        raise UserError(f"{to} cannot be written: {cause.strerror or cause}") from None


def _system_error(error: BaseException) -> OSError | None:
    """The system's error behind one of the libraries that write: a full disk, say."""
    if isinstance(error, CheckpointException):
        error = next(failure for failure, _ in error.failures.values())
    if isinstance(error, SafetensorError) and (number := re.search(r"\(os error (\d+)\)", str(error))):
        return OSError(int(number[1]), os.strerror(int(number[1])))
    return next((one for one in (error, error.__context__) if isinstance(one, OSError)), None)


def _write_hf(state: Mapping[Any, Any], to: Path) -> None:
    """Write safetensors, which holds one of several tied tensors: the first name has it, and the metadata says which
    names share it."""
    other = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if other:
        raise UserError(f"format hf holds tensors alone, and {other[0]} is none: export it as torch")
    names: dict[tuple[int, ...], str] = {}
    shared: dict[str, str] = {"format": "pt"}
    kept: dict[str, Tensor] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), *tensor.shape, *tensor.stride())
        first = names.setdefault(place, name) if tensor.numel() else name
        if first == name:
            kept[name] = tensor.contiguous()
        else:
            shared[name] = first
    to.mkdir(parents=True)
    save_file(kept, to / WEIGHTS, metadata=shared)


def _write_torch(state: Mapping[Any, Any], to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("wb") as file:
        torch.save(dict(state), file)


def _write_dcp(state: Mapping[Any, Any], to: Path) -> None:
    to.mkdir(parents=True)
    with alone():
        save_dcp(dict(state), checkpoint_id=to, no_dist=True)


@contextmanager
def alone() -> Iterator[None]:
    """Silences dcp's warning about a missing process group, which is missing on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_WRITERS: Mapping[Format, Callable[[Mapping[Any, Any], Path], None]] = {
    Format.HF: _write_hf,
    Format.TORCH: _write_torch,
    Format.DCP: _write_dcp,
}
