"""One commit, read without taking part in its run: found, kept from retention meanwhile, whole and verified."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from perdure.checkpoint import history
from perdure.checkpoint.history import Commit, Listed, find
from perdure.checkpoint.load import read_items
from perdure.checkpoint.manifest import Manifest, fetch_manifest, is_deleted
from perdure.checkpoint.reading import reading
from perdure.checkpoint.tree import owner
from perdure.errors import Corrupt, UserError
from perdure.store import Store, open_store
from perdure.wire import CommitSelector
from perdure.wire.settings import as_uri


def commits(uri: str | Path) -> list[Commit]:
    """The commits of the root `uri` that can be loaded, newest first. UserError if nothing was ever trained there."""
    return [listed.commit for listed in history.history(open_store(as_uri(uri), os.environ))]


class StoredCommit:
    """The commit of the root `uri` that fits `wanted`. UserError if there is none, Corrupt if it is damaged."""

    def __init__(self, uri: str | Path, wanted: CommitSelector) -> None:
        self._store: Store = open_store(as_uri(uri), os.environ)
        self._listed: Listed = find(self._store, wanted)
        self.commit: Commit = self._listed.commit
        self.where = f"entry {self.commit.seq} of {self._store.uri}"
        """The commit, as messages name it."""
        with self._named():
            self.manifest: Manifest = fetch_manifest(self._store, self._listed.event)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No training deletes it within the block, and errors of reading name it."""
        with self._named(), reading(self._store, self.commit.seq):
            yield

    def tensors(self, names: Collection[str]) -> Mapping[str, Tensor]:
        """The tensors of the objects with these names. Within `held`."""
        return read_items(
            self._store, self.manifest, [item for item in self.manifest.tensors if owner(item.name) in names]
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Adds the commit to errors, and distinguishes damage from a commit deleted while it was read."""
        try:
            yield
        except Corrupt as error:
            if is_deleted(self._store, self._listed.event):
                raise UserError(
                    f"{self.where} was deleted by its training while it was read: take a newer one, or `perdure pin` "
                    f"it before"
                ) from error
            raise Corrupt(f"{self.where} cannot be loaded: {error}: choose another commit by seq=") from error
