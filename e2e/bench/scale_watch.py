"""Waits for thousands of objects with one watch that counts, and reads what a process has used. Never polls."""

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
    """The cluster has not got there; the message says how far it came."""


class Count:
    """The objects of a watch for which a condition has held, each with the time of its first event that said so."""

    def __init__(self, server: ApiServer, path: str, holds: Callable[[Json], bool] = lambda _: True) -> None:
        self._server, self._path, self._holds = server, path, holds
        self._changed = threading.Condition()
        self._times: dict[str, float] = {}

    def __enter__(self) -> Self:
        argv = ["kubectl", "get", "--raw", self._path]
        self._process = subprocess.Popen(argv, env=self._server.env, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._thread.join()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            seen = json.loads(line)["object"]
            uid = seen["metadata"]["uid"]
            if uid not in self._times and self._holds(seen):
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
    """Whether a TrainingJob says that it runs."""
    return bool(job.get("status", {}).get("phase") == "Running")


def cpu_seconds(pid: int) -> float:
    """What the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mebibytes(pid: int) -> float:
    """The most memory it has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / MIB if found else 0.0
