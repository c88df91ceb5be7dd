"""Shared by the processes of one test run: locks, results that are made once, and the tests finished by each.

A folder, made by the first process of the run and removed by it; the others find it in their environment. Knows nothing
of clusters and jobs. A lock ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "TEST_RUN_OF_PERDURE"
PREFIX = "perdure-tests-"
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class SharedRun:
    """One test run, as any of its processes sees it."""

    folder: Path

    @classmethod
    def begin(cls) -> SharedRun:
        """A new run, for this process and those it starts; what killed ones have left is removed."""
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if not cls(folder).alive():
                shutil.rmtree(folder, ignore_errors=True)
        run = cls(Path(tempfile.mkdtemp(prefix=PREFIX)))
        (run.folder / "owner").write_text(str(os.getpid()))
        os.environ[VARIABLE] = str(run.folder)
        return run

    @classmethod
    def current(cls) -> SharedRun:
        """The run this process belongs to."""
        return cls(Path(os.environ[VARIABLE]))

    def end(self) -> None:
        """Nothing of it stays."""
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def alive(self) -> bool:
        """Whether its first process still runs; true where none has said yet that it is."""
        try:
            return Path("/proc", str(self.owner)).exists()
        except (OSError, ValueError):
            return True

    @property
    def owner(self) -> int:
        """The first process: the run ends with it."""
        return int((self.folder / "owner").read_text())

    @property
    def audit_logs(self) -> Path:
        """Where the audit logs of API servers stay until the run's end."""
        return self.folder / "audit"

    def add_cluster(self, name: str) -> None:
        """From now on this cluster is the run's: it is removed when the run ends."""
        (self.folder / f"{name}.cluster").touch()

    def forget_cluster(self, name: str) -> None:
        """It is removed."""
        (self.folder / f"{name}.cluster").unlink()

    def clusters(self) -> list[str]:
        """The run's clusters."""
        return sorted(path.stem for path in self.folder.glob("*.cluster"))

    @contextlib.contextmanager
    def locked(self, name: str, *, shared: bool = False) -> Iterator[None]:
        """Keeps the run's other processes out, or only those that want it for themselves alone."""
        with (self.folder / f"{name}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def one_of(self, names: Collection[str]) -> Iterator[str]:
        """Any of these that no other process has."""
        while True:
            for name in names:
                with (self.folder / f"{name}.lock").open("a") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield name
                    return
            time.sleep(POLL_SECONDS)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, as JSON; the first process that asks makes it, the others wait for that."""
        path = self.folder / f"{name}.json"
        with self.locked(name):
            if not path.exists():
                path.write_text(json.dumps(make()))
            return json.loads(path.read_text())

    def finished(self, test: str) -> None:
        """Records that a test is over, whatever its result."""
        path = self._note(test)
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def wait_for(self, tests: Collection[str], *, seconds: float) -> list[str]:
        """Returns when all these tests are over, or with those that are not after `seconds`."""
        deadline = time.monotonic() + seconds
        while left := [test for test in tests if not self._note(test).exists()]:
            if time.monotonic() > deadline:
                return left
            time.sleep(POLL_SECONDS)
        return []

    def _note(self, test: str) -> Path:
        return self.folder / "finished" / hashlib.sha256(test.encode()).hexdigest()
