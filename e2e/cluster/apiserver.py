"""A real kube-apiserver with its etcd and nothing else: no nodes, no root, five seconds to boot.

For tests of the CRD, of RBAC and of the operator against the API. Both processes listen on a loopback address of
their own, so that several can run side by side, and end with the thread that started them, even when it is killed.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.cluster import control_plane
from e2e.cluster.commands import Commands, clean_environment
from e2e.cluster.control_plane import Etcd, KubeApiserver
from e2e.cluster.pki import Pki, kubeconfig
from e2e.cluster.processes import GO, ClusterError, ComponentDied, looks, tail
from e2e.prepare import cache_dir, tool_folders

BOOT_SECONDS = 180.0
ANSWER_SECONDS = 60.0
JSON = "application/json"
_serials = itertools.count()


class Refused(ClusterError):
    """The API server refuses a request; `status` is its answer."""

    def __init__(self, request: str, status: dict[str, Any]) -> None:
        super().__init__(f"{request}: {status['message']}")
        self.status = status


class ApiServer:
    """`with ApiServer() as server:`; enter and leave it on the same, living thread."""

    def __init__(
        self, *, controller_manager: bool = False, audit_log: Path | None = None, extra: Sequence[str] = ()
    ) -> None:
        """`extra` are further options of kube-apiserver."""
        self._controllers = controller_manager
        self._audit_log = audit_log
        self._extra = tuple(extra)
        self._serial = next(_serials)
        self.folder = _root() / f"{os.getpid()}-{self._serial}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._pki = Pki(self.folder / "pki")
        self._bin = tool_folders()["kubernetes"]
        self._server = self._describe()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """Every request, one JSON object a line, level Metadata, without the stage RequestReceived."""
        return self._audit_log or self.folder / "audit.log"

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return self._server.url

    @property
    def address(self) -> str:
        """A loopback address that no other process uses while this server runs."""
        return self._server.address

    @property
    def pki(self) -> Pki:
        """Its authority and certificates."""
        return self._pki

    @property
    def env(self) -> dict[str, str]:
        """An environment in which kubectl and clients find this server."""
        return self._commands.env

    def kubectl(
        self,
        *words: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - subprocess's own word
        timeout: float = 180.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; with `check`, a failure is raised with kubectl's own words."""
        return self._commands.run("kubectl", *words, check=check, input=input, timeout=timeout)

    def ask(self, path: str, method: str = "GET", body: object = None, content: str = JSON) -> dict[str, Any]:
        """What the API server answers to the administrator. For what is asked again and again: a kubectl computes for a
        tenth of a second."""
        context = ssl.create_default_context(cafile=self._pki.authority)
        context.load_cert_chain(self._pki.certificate("admin"), self._pki.key("admin"))
        connection = http.client.HTTPSConnection(
            self.address, self._server.port, timeout=ANSWER_SECONDS, context=context
        )
        try:
            given = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, given, {"Content-Type": content, "Accept": JSON})
            answer = connection.getresponse()
            said = dict(json.loads(answer.read()))
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise Refused(f"{method} {path}", said)
        return said

    def kubeconfig_for_service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of that ServiceAccount, which must exist."""
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", "--duration=24h").stdout.strip()
        path = self.folder / f"{namespace}-{name}.kubeconfig"
        path.write_text(kubeconfig(name, self.url, self._pki.authority, {"token": token}))
        return path

    def __enter__(self) -> ApiServer:
        _remove_abandoned()
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def _commands(self) -> Commands:
        return Commands(self.kubeconfig, self.folder / "tmp", tuple(tool_folders().values()), self._describe_dead)

    def _describe(self) -> KubeApiserver:
        address, shift = _own_loopback_address(os.getpid()), 100 * self._serial
        etcd = Etcd(self._bin / "etcd", self.folder / "etcd", address, 2379 + shift)
        return KubeApiserver(
            binary=self._bin / "kube-apiserver",
            pki=self._pki,
            etcd=etcd,
            address=address,
            port=6443 + shift,
            services="100.127.0.0/24",
            audit_policy=self.folder / "audit-policy.json",
            audit_log=self.audit_log,
            # a loopback address cannot be the endpoint of the Service `kubernetes`
            extra=("--endpoint-reconciler-type=none", *self._extra),
        )

    def _start(self) -> None:
        (self.folder / "tmp").mkdir(parents=True)
        self.audit_log.parent.mkdir(parents=True, exist_ok=True)
        self.run("etcd", self._server.etcd.argv())
        control_plane.issue_certificates(self._pki, [self._server.address])
        self._server.audit_policy.write_text(json.dumps(control_plane.AUDIT_POLICY))
        self.kubeconfig.write_text(self._pki.kubeconfig("admin", self.url))
        self.run("kube-apiserver", self._server.argv())
        self._wait_ready()
        if self._controllers:
            config = self.folder / "controller-manager.kubeconfig"
            config.write_text(self._pki.kubeconfig("controller-manager", self.url))
            argv = control_plane.controller_manager_argv(self._bin / "kube-controller-manager", self._pki, config)
            self.run("kube-controller-manager", argv)

    def run(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> int:
        """Start a program that ends with this server; its process. Its output is `name`.log in the folder."""
        if not Path(argv[0]).exists():
            raise ClusterError(f"{argv[0]} is not built: run `python3 -m e2e.prepare cluster`")
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(os.environ) | GO | dict(env or {}),
                start_new_session=True,  # Ctrl-C is for the test run, which then stops us
            )
        return self._processes[name].pid

    def check(self) -> None:
        """Raise when one of its processes has ended, with the end of its log."""
        if dead := self._describe_dead():
            raise ComponentDied(dead)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _describe_dead(self) -> str:
        dead = [name for name, process in self._processes.items() if process.poll() is not None]
        return "\n".join(f"{name} has died: {tail(self._log(name))}" for name in dead)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        for _ in looks():
            if self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0:
                return
            dead = self._describe_dead()
            if dead:
                raise ComponentDied(dead)
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"kube-apiserver not ready within {BOOT_SECONDS:.0f} s: {self._log('kube-apiserver')}"
                )

    def _stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _own_loopback_address(pid: int) -> str:
    """All of 127/8 is loopback on Linux and a pid has 22 bits: no search for free ports, and no race for them."""
    return f"127.{64 + (pid >> 16 & 0x3F)}.{pid >> 8 & 0xFF}.{pid & 0xFF}"


def _root() -> Path:
    return cache_dir() / "apiservers"


def _remove_abandoned() -> None:
    """The folders of processes that were killed before they could remove them."""
    for folder in _root().glob("*-*"):
        if not Path("/proc", folder.name.split("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)
