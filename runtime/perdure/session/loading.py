"""Reads parts of a commit without a Session: for an evaluation, an export, a warm start.

No other process takes part, whatever world has made the commit. The result is complete and verified, or an error.
`perdure.load` and `perdure.history` are these functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from perdure.checkpoint.codec import decode
from perdure.checkpoint.history import Commit
from perdure.checkpoint.manifest import Manifest
from perdure.checkpoint.stored_commit import StoredCommit, commits
from perdure.checkpoint.tree import join, owner
from perdure.console import warn
from perdure.errors import UserError
from perdure.loop.run import OWN_STOPPING
from perdure.state import modules, optimizers
from perdure.state.merging import parts_of
from perdure.state.pending_state import LATE
from perdure.wire import CommitSelector

_HIDDEN: Final = {OWN_STOPPING, LATE}
"""The session's own objects, of no use to a script."""


class Checkpoint(Mapping[str, dict[Any, Any]]):
    """What `load` has read: for each name the state_dict of the registered object, or of each rank, by number. Tensors
    are on the CPU."""

    def __init__(self, commit: Commit, states: Mapping[str, dict[Any, Any]], missing: tuple[str, ...]) -> None:
        self.commit = commit
        """The commit that was read."""
        self.missing = missing
        """Requested names that the commit does not hold; only with `strict=False`."""
        self._states = states

    def __getitem__(self, name: str) -> dict[Any, Any]:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        return f"<Checkpoint {', '.join(self._states)} of entry {self.commit.seq}, step {self.commit.step}>"


def load(
    uri: str | Path,
    names: Sequence[str] | None = None,
    *,
    epoch: int | None = None,
    step: int | None = None,
    seq: int | None = None,
    pin: str | None = None,
    strict: bool = True,
) -> Checkpoint:
    """Reads what was registered under `names`, by default everything, from a commit of the root `uri`.

    By default that is the newest commit. Otherwise it is the newest one of so many finished `epoch`s (and no batch
    more) or of so many `step`s, that of entry `seq`, or the one that is pinned as `pin`; `perdure.history` lists them.
    Each state_dict has what the object's `load_state_dict` takes: a module's tensors by name without `module.`, an
    optimizer's with its parameters by number. Tensors are new ones on the CPU, with the dtype and shape in which they
    were saved. Only blocks of `names` are read. `session` is `session.state`. For an object registered with `merge=`
    there is the state_dict of each rank, by its number.

    UserError if there is no such commit, if its training deletes it meanwhile, or if it does not hold a name; with
    `strict=False` such names are logged, and are in `missing`. Corrupt if any of it is damaged; no older commit is
    taken instead. StorageRefused, or StorageError, if the store cannot be read: keys and endpoint are those of the
    environment.
    """
    stored = StoredCommit(uri, CommitSelector(epoch, step, seq, pin))
    objects = decode(stored.manifest.objects)
    wanted = _wanted(names, objects)
    missing = tuple(name for name in wanted if name not in objects)
    if missing:
        there = ", ".join(sorted(objects.keys() - _HIDDEN))
        held = f"{stored.where} does not hold {', '.join(missing)}: it holds {there}"
        if strict:
            raise UserError(f"{held}; correct the name, or pass strict=False to do without")
        warn(held)
    present = [name for name in wanted if name in objects]
    with stored.held():
        tensors = stored.tensors(present)
        states = {
            name: _by_rank(name, stored.manifest)
            if objects[name] is None
            else _state_dict(name, objects[name], tensors)
            for name in present
        }
    return Checkpoint(stored.commit, states, missing)


def history(uri: str | Path) -> list[Commit]:
    """The commits of the root `uri` that can be loaded, newest first. Commits that retention has deleted are not
    listed.

    UserError if nothing was ever trained there. StorageRefused, or StorageError, if the store cannot be read.
    """
    return commits(uri)


def _wanted(names: Sequence[str] | None, objects: Mapping[str, Any]) -> list[str]:
    if isinstance(names, str):
        raise UserError(f"names is {names!r}: give a list of names, such as [{names!r}]")
    return sorted(objects.keys() - _HIDDEN) if names is None else list(dict.fromkeys(names))


def _by_rank(name: str, manifest: Manifest) -> dict[Any, Any]:
    return {
        rank: decode(part[name])
        for rank, part in enumerate(parts_of([i.state for i in manifest.indexes]))
        if name in part
    }


def _state_dict(name: str, saved: Any, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    own = {full: tensor for full, tensor in tensors.items() if owner(full) == name}
    if modules.is_module(saved):
        return modules.state_dict_of(name, saved, own)
    if optimizers.is_optimizer(saved):
        return optimizers.state_dict_of(saved, own)
    found: dict[str, Any] = join(saved, own.__getitem__)
    return found
