"""A folder as a store: for a laptop, for one node, for a shared file system that has hard links.

An object appears under its name whole or not at all, and survives a crash right after `put` has returned: it is written
to a temporary file, synced, then linked or renamed. The folder is synced too, and each folder above it that this
process has not synced yet, because another rank may just have made it. Exclusive create alone would leave a torn object
after SIGKILL.

A full disk or quota is temporary: retention makes room, here or in another job, and so do people. An error that needs
another mount, owner or path is not.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from perdure.errors import StorageError, StorageRefused, UserError
from perdure.store.protocol import KeyExists, NoSuchKey, ObjectInfo, every_key

LARGE_BYTES: Final = 1024 * 1024
"""Larger blocks go to the disk one by one, smaller ones all at once."""
INCOMING = ".incoming"
"""The folder for temporary files. Files that a killed process leaves here are never listed."""
NAME_CHARACTERS: Final = 200
"""So many of a key are in the name of its temporary file, which may have 255."""

PLACING_TRIES: Final = 100
"""Each but the last has met a deletion that removed the folder between two calls."""

_STAYS: Final = {
    errno.EACCES: "this process (uid {uid}) may not: change the folder's owner or mode, or the pod's fsGroup",
    errno.EPERM: "this process (uid {uid}) may not: change the folder's owner or attributes",
    errno.EROFS: "the file system is read-only: mount it to be written, without readOnly",
    errno.EEXIST: "a part of the path is a file: correct the checkpoint root",  # mkdir's word for it
    errno.ENOTDIR: "a part of the path is a file: correct the checkpoint root",
    errno.EISDIR: "it is a folder: correct the checkpoint root",
    errno.ELOOP: "the path goes round in links: correct the checkpoint root",
    errno.ENAMETOOLONG: "the path is too long: shorten the checkpoint root",
    errno.EFBIG: "the file is larger than its file system or a limit of this process allows: raise it",
}
"""Errors that only a person can resolve, with the remedy."""
_PASSES: Final = {
    errno.ENOSPC: "make room there; the same call succeeds then",
    errno.EDQUOT: "make room there or raise the quota; the same call succeeds then",
}
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


class FileStore:
    """Objects are files under `folder`; see perdure.store.Store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: set[Path] = set()
        """Folders whose names are known to be on disk."""

    @property
    def uri(self) -> str:
        return f"file://{self._folder}"

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        path = self._path(key)
        with self._failing_as("write", path), self._written_beside([memoryview(data)], path) as temporary:
            self._place(temporary, path, if_absent=if_absent)

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:
        path = self._path(key)
        with self._failing_as("write", path), self._written_beside(blocks, path) as temporary:
            if (found := temporary.stat().st_size) != size:
                raise StorageError(f"cannot write {path}: {found} bytes came instead of {size}")
            self._place(temporary, path, if_absent=if_absent)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with self._opened(key) as file:
            file.seek(start)
            if length is None:
                return file.read()
            left = max(os.fstat(file.fileno()).st_size - start, 0)
            return file.read(min(length, left))  # memory for the whole length is taken before anything is read

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        with self._opened(key) as file:
            file.seek(start)
            return file.readinto(buffer)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with self._failing_as("look at", path):
            try:
                found = path.stat()
            except FileNotFoundError:
                return None
        return ObjectInfo(found.st_size, None, found.st_mtime)

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        folder = self._folder / prefix.rpartition("/")[0]
        with self._failing_as("list", folder):
            keys = sorted(key for key in self._keys(folder) if key.startswith(prefix) and key > after)
        return keys[:limit]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self._path(key)
            with self._failing_as("delete", path):
                path.unlink(missing_ok=True)
            self._remove_empty(path.parent)

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:
        swept, limit = 0, time.time() - older_than
        with self._failing_as("look through", self._folder / INCOMING):
            for path in list((self._folder / INCOMING).glob("*")):
                with suppress(FileNotFoundError):  # its writer has moved or removed it
                    if where(_key_of(path)) and path.is_file() and path.stat().st_mtime < limit:
                        path.unlink()
                        swept += 1
        return swept

    @contextmanager
    def _opened(self, key: str) -> Iterator[BufferedReader]:
        path = self._path(key)
        with self._failing_as("read", path):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                raise NoSuchKey(f"{self.uri} has no {key}") from None
            with file:
                yield file

    def _path(self, key: str) -> Path:
        return self._folder / key

    def _keys(self, folder: Path) -> Iterator[str]:
        for parent, folders, files in os.walk(folder, onerror=_raise_unless_missing):
            if Path(parent) == self._folder and INCOMING in folders:
                folders.remove(INCOMING)
            for name in files:
                yield (Path(parent) / name).relative_to(self._folder).as_posix()

    @contextmanager
    def _written_beside(self, blocks: Iterable[memoryview], path: Path) -> Iterator[Path]:
        """Writes a temporary file for `path`, synced."""
        self._make_folder(self._folder / INCOMING)
        temporary = self._folder / INCOMING / _name_for(path.relative_to(self._folder).as_posix())
        try:
            with temporary.open("xb") as file:
                for block in blocks:
                    file.write(block)
                    if len(block) >= LARGE_BYTES:
                        _begin_writing(file, len(block))
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, temporary: Path, path: Path, *, if_absent: bool) -> None:
        """Gives the file its name, synced, in a folder that a deletion may remove as empty until then."""
        for tries_left in reversed(range(PLACING_TRIES)):
            try:
                self._make_folder(path.parent)
                _move(temporary, path, if_absent=if_absent)
                break
            except FileNotFoundError:
                if not tries_left:
                    raise
        _sync_folder(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """Like mkdir(parents=True), but the folder's name is on disk when this returns, whichever process made it.

        This process may not be able to open the folders above the root. There it syncs only those that it made.
        """
        there = folder.is_dir()
        if there and (folder in self._synced or not folder.is_relative_to(self._folder) or folder == self._folder):
            return
        self._make_folder(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            with suppress(FileNotFoundError):  # a deletion has removed it since
                if not stat.S_ISDIR(folder.stat().st_mode):
                    raise
        _sync_folder(folder.parent)
        self._synced.add(folder)

    def _remove_empty(self, folder: Path) -> None:
        with suppress(OSError):  # not empty, or used by another process by now: both are fine
            while folder != self._folder:
                folder.rmdir()
                folder = folder.parent

    @contextmanager
    def _failing_as(self, verb: str, path: Path) -> Iterator[None]:
        """Turns an OSError into a StorageError, or a StorageRefused if another try is in vain."""
        try:
            yield
        except OSError as error:
            what = f"cannot {verb} {path}: {error.strerror or error}"
            if error.errno in _STAYS:
                raise StorageRefused(f"{what}: {_STAYS[error.errno].format(uid=os.geteuid())}") from error
            raise StorageError(f"{what}: {_PASSES.get(error.errno or 0, 'check the disk of this folder')}") from error


def _name_for(key: str) -> str:
    """A new name of a temporary file for `key`."""
    return f"{quote(key, safe='')[:NAME_CHARACTERS]}.{secrets.token_hex(8)}"


def _key_of(temporary: Path) -> str:
    """The key that it was written for, its beginning if it is long; "" for that of an older Perdure."""
    return unquote(temporary.name.rpartition(".")[0])


def _move(temporary: Path, path: Path, *, if_absent: bool) -> None:
    if if_absent:
        _link(temporary, path)
    else:
        temporary.replace(path)


def _link(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        if not path.samefile(temporary):  # NFS reports this for a link whose first answer was lost
            raise KeyExists(f"{path} exists already") from None
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise UserError(
                f"cannot write {path}: its file system has no hard links, so two writers could not be kept apart: "
                f"use a local disk, NFS or s3:// for the checkpoints"
            ) from error
        raise


def _begin_writing(file: BufferedWriter, size: int) -> None:
    """Lets the disk work on the last `size` bytes while the next are made, instead of on all at the end.

    Linux does this at once for POSIX_FADV_DONTNEED: it does not drop dirty pages, it begins to write them.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # it is advice, which a file system may not support
            os.posix_fadvise(file.fileno(), file.tell() - size, size, os.POSIX_FADV_DONTNEED)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
