"""Disturbs a pod's trainer, the links between pods, and the store, from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from e2e.cluster.s3 import S3
from e2e.harness.lab import Lab
from e2e.harness.operator import kill
from e2e.storms import front

SCRIPT: Final = "holding.py"
BEHIND_PORT: Final = 9003
FRONT_PORT: Final = 9004
START_SECONDS: Final = 20.0
Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Processes:
    """The trainers of pods, on this machine."""

    lab: Lab

    def kill(self, pod: Pod) -> None:
        """SIGKILL to its trainer; its agent lives."""
        kill(self.lab.trainers(pod, SCRIPT))

    def kill_all(self, pod: Pod) -> None:
        """SIGKILL to everything in the pod."""
        self.lab.kill(pod)

    @contextlib.contextmanager
    def frozen(self, pod: Pod) -> Iterator[None]:
        """SIGSTOP to its trainer, SIGCONT when the block is left, if it still lives."""
        pids = self.lab.trainers(pod, SCRIPT)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def cut_off(self, pod: Pod, *peers: Pod) -> Iterator[None]:
        """No traffic between this pod and those; store and API server reach all of them."""
        netns = f"--net=/proc/{next(iter(self.lab.processes(pod)))}/ns/net"
        rules = [
            (chain, flag, str(peer["status"]["podIP"]))
            for peer in peers
            for chain, flag in (("INPUT", "-s"), ("OUTPUT", "-d"))
        ]
        for chain, flag, address in rules:
            _iptables(netns, "-I", chain, flag, address, "-j", "DROP")
        try:
            yield
        finally:
            for chain, flag, address in rules:
                with contextlib.suppress(subprocess.CalledProcessError):  # the pod has gone meanwhile
                    _iptables(netns, "-D", chain, flag, address, "-j", "DROP")


def _iptables(netns: str, *words: str) -> None:
    subprocess.run(["nsenter", netns, "iptables", "-w", *words], check=True, capture_output=True)


@dataclass(frozen=True)
class Store:
    """A storm's own S3 server, behind a front."""

    server: S3
    manner: Path

    @classmethod
    @contextlib.contextmanager
    def started(cls, lab: Lab, name: str) -> Iterator[Store]:
        """A server and its front, until the block is left."""
        behind = lab.cluster.another_s3(name, BEHIND_PORT)
        behind.start()
        store = cls(behind, lab.cluster.folder.root / f"{name}.manner")
        store.manner.write_text("ok")
        words: list[str | Path] = [front.__file__, behind.address, str(FRONT_PORT), str(BEHIND_PORT), store.manner]
        lab.cluster.run_beside(f"{name}-front", [sys.executable, *words])
        try:
            lab.cluster.wait(f"the front of {name}", START_SECONDS, store.listens)
            yield store
        finally:
            behind.processes.stop(f"{name}-front")
            behind.kill()

    @property
    def front(self) -> S3:
        """The endpoint for a job."""
        return replace(self.server, port=FRONT_PORT)

    @contextlib.contextmanager
    def answers(self, manner: str) -> Iterator[None]:
        """In this mode, until the block is left."""
        self._says(manner)
        try:
            yield
        finally:
            self._says("ok")

    def listens(self) -> bool:
        """Whether the front takes connections."""
        try:
            socket.create_connection((self.server.address, FRONT_PORT), timeout=1).close()
        except OSError:
            return False
        return True

    def _says(self, manner: str) -> None:
        beside = self.manner.with_suffix(".new")
        beside.write_text(manner)
        beside.replace(self.manner)
