"""Waits for thousands of objects with one watch that counts, and reads a process's resource use. Never polls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.cluster.apiserver import ApiServer

RUNNING_PODS = "/api/v1/pods?watch=1&fieldSelector=status.phase%3DRunning"
TRAINING_JOBS = "/apis/perdure.dev/v1alpha1/trainingjobs?watch=1"
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024
CHECK_SECONDS = 2.0
Json = dict[str, Any]


class NotInTime(RuntimeError):
    """The cluster did not get there; the message says how far it got."""


class Count:
    """The objects of a watch for which a condition has held, each with the time of the first such event."""

    def __init__(self, server: ApiServer, path: str, holds: Callable[[Json], bool] = lambda _: True) -> None:
        self._server, self._path, self._holds = server, path, holds
        self._changed = threading.Condition()
        self._times: dict[str, float] = {}
        self._over = False

    def __enter__(self) -> Self:
        self._process = self._watch()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._over = True
            self._process.kill()
        self._thread.join()

    def _watch(self) -> subprocess.Popen[str]:
        argv = ["kubectl", "get", "--raw", self._path]
        return subprocess.Popen(
            argv, env=self._server.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def _read(self) -> None:
        """A busy server ends watches that read too slowly; a new one begins with the full state."""
        while True:
            with self._process:
                for line in self._process.stdout or ():
                    if line.endswith("\n"):  # otherwise it was cut off
                        self._see(json.loads(line))
            with self._changed:
                if self._over:
                    return
                self._process = self._watch()

    def _see(self, event: Json) -> None:
        seen = event["object"]
        uid = seen["metadata"].get("uid")  # an ERROR has none
        if uid and uid not in self._times and self._holds(seen):
            with self._changed:
                self._times[uid] = time.time()
                self._changed.notify_all()

    def wait(self, count: int, *, seconds: float) -> float:
        """When the last of so many got there."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(self._times) < count:
                if time.monotonic() > deadline:
                    raise NotInTime(f"{len(self._times)} of {count} after {seconds:g} s: {self._path}")
                self._changed.wait(CHECK_SECONDS)
                self._server.check()
            return sorted(self._times.values())[count - 1]


def in_phase_running(job: Json) -> bool:
    """Whether a TrainingJob's status says Running."""
    return bool(job.get("status", {}).get("phase") == "Running")


def cpu_seconds(pid: int) -> float:
    """The process's resource use so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mebibytes(pid: int) -> float:
    """Its peak memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / MIB if found else 0.0
