"""Imports in the zygote, and checks that forks of it still make good trainers.

Requested modules have to be fit for forking; otherwise each start executes the command. A module found in the script
need not be: if it starts threads or CUDA, keeps files open or reads the run's variables, it is reported by name, and
the zygote starts again without it, because an import cannot be undone. Called by perdure.agent.fork; imports torch only
on request.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from perdure.agent.environ import OF_A_RUN
from perdure.agent.imports import Import

PROBE_SECONDS: Final = 10.0
"""Time for a fork to add up numbers: it takes a moment or hangs forever."""
_PARALLEL: Final = 1 << 20
"""Elements that make torch use all its threads."""


class Unfit(Exception):
    """A fork of this process would not make a good trainer."""

    def __init__(self, why: str, package: str | None = None) -> None:
        super().__init__(why)
        self.package = package
        """The script's package at fault; "" if one of them is but it is unknown which; None if none is."""


def import_wanted(modules: Sequence[str]) -> None:
    """Import the requested modules. Raises Unfit if that fails or makes forks unfit."""
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - any error of a library: the agent executes instead
            raise Unfit(f"{module} cannot be imported: {type(error).__name__}: {error}") from None
    if trouble := _left_behind() or _computes():
        raise Unfit(trouble)


def import_found(found: Sequence[Import], without: Sequence[str]) -> list[str]:
    """Import what the script will import, and return the new modules. Raises Unfit with the package to leave out.

    A failing import is skipped: the script may not need it, or will report it itself.
    """
    imported: list[str] = []
    threads, files = _native_threads(), _files()
    for wanted in found:
        package, asked = wanted.module.partition(".")[0], set[str]()
        if package in without or _is_imported(wanted):
            continue
        known = wanted.module in sys.modules
        with _listening(asked):
            if not _imported(wanted):
                continue
        trouble = _left_behind()
        if asked:
            trouble = f"it reads {', '.join(sorted(asked))} when it is imported"
        elif not trouble and _files() - files:
            trouble = "it keeps files open"
        elif not trouble and _native_threads() > threads:
            trouble = "it has started threads, which no fork has"
        if trouble:
            raise Unfit(trouble, package)
        if not known:
            imported.append(wanted.module)
    if imported and (trouble := _computes()):
        raise Unfit(trouble, "")
    return imported


def fork() -> int:
    """os.fork without Python 3.12's warning about threads; BLAS handles its own threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _is_imported(wanted: Import) -> bool:
    """Whether importing it would do nothing. Without getattr, by which a package may import a module."""
    module = sys.modules.get(wanted.module)
    return module is not None and all(name in vars(module) for name in wanted.names)


def _imported(wanted: Import) -> bool:
    try:
        __import__(wanted.module, fromlist=wanted.names)
    except BaseException:  # noqa: BLE001 - any error of a library: the script gets it too, if it gets there
        return False
    return True


@contextmanager
def _listening(asked: set[str]) -> Iterator[None]:
    """Add to `asked` each of the run's variables that is read meanwhile; they are not set yet."""
    kind: Any = type(os.environ)
    get = kind.__getitem__

    def listen(environ: Any, name: str) -> Any:
        if name in OF_A_RUN:
            asked.add(name)
        return get(environ, name)

    kind.__getitem__ = listen
    try:
        yield
    finally:
        kind.__getitem__ = get


def _left_behind() -> str:
    """What makes forks unfit; "" if nothing does."""
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        return f"what it imports has started threads, which no fork has: {', '.join(others)}"
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "what it imports has started CUDA, which no fork can use"
    return ""


def _files() -> set[str]:
    """The open files, which all forks would share."""
    folder = Path("/proc/self/fd")
    found = set()
    for number in os.listdir(folder):  # noqa: PTH208 - iterdir would keep its own open
        try:
            found.add(f"{number} {os.readlink(folder / number)}")  # noqa: PTH115 - there may be no such file
        except OSError:
            continue  # the one that the folder was read by
    return found


def _native_threads() -> int:
    """The number of threads after a fork; BLAS ends its own before one."""
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _computes() -> str:
    """Why a fork of this process cannot compute; "" if it can."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return ""
    pid = fork()
    if pid == 0:
        torch.ones(_PARALLEL).sum()
        os._exit(0)
    end = time.monotonic() + PROBE_SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.005)
    if ended[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "a fork of it hangs: something that it imports computes with several threads"
    return f"a fork of it cannot compute: status {os.waitstatus_to_exitcode(ended[1])}" if ended[1] else ""
