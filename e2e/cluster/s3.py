"""The cluster's S3 server: versitygw over a folder, at the control plane's address, for pods and host alike.

It can be killed and frozen: that is what the tests of storage failures need. The objects stay in the folder. A test
that does so to a cluster it shares asks for a server of its own (`Cluster.another_s3`).
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from e2e.cluster.processes import Place, Processes
from e2e.prepare import tool_folders

NAME = "s3"
PORT = 9000
START_SECONDS = 20.0
CONNECT_SECONDS = 1.0


@dataclass(frozen=True)
class S3:
    """Where the server is, how to sign in, and its switches."""

    address: str
    netns: str
    access_key: str
    secret_key: str
    folder: Path
    processes: Processes
    region: str = "us-east-1"
    name: str = NAME
    port: int = PORT

    @property
    def endpoint(self) -> str:
        """The same from pods and from the host."""
        return f"http://{self.address}:{self.port}"

    def start(self) -> None:
        """Start it (again), over the same objects."""
        self.folder.mkdir(exist_ok=True)
        argv: list[str | Path] = [
            tool_folders()["versitygw"] / "versitygw",
            "--port",
            f"{IPv4Address(self.address)}:{self.port}",
            "--region",
            self.region,
            self.folder,
        ]
        keys = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        self.processes.start(self.name, argv, Place(self.netns), env=keys)
        self.processes.wait("the S3 server", START_SECONDS, self._answers)

    def kill(self) -> None:
        """kill -9: connections break, new ones are refused."""
        self.processes.stop(self.name)

    def freeze(self) -> None:
        """SIGSTOP: connections hang."""
        self.processes.freeze(self.name)

    def thaw(self) -> None:
        """SIGCONT."""
        self.processes.thaw(self.name)

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.address, self.port), timeout=CONNECT_SECONDS).close()
        except OSError:
            return False
        return True
