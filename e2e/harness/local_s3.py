"""A real S3 server (versitygw) on a free loopback port, over a folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import boto3
from botocore.config import Config

from e2e.harness.local_run import free_port
from e2e.prepare import tool_folders
from perdure.wire import Env

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ACCESS: Final = "perdure"
SECRET: Final = "perdure-secret"
REGION: Final = "us-east-1"
START_SECONDS: Final = 60


def versitygw() -> Path:
    """The server's program, which `make prepare` builds."""
    return tool_folders()["versitygw"] / "versitygw"


class S3Server:
    """One server process with its own folder."""

    def __init__(self, folder: Path, access: str = ACCESS, secret: str = SECRET) -> None:
        """It accepts these keys alone."""
        self._folder, self._access, self._secret = folder, access, secret
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What a trainer's environment says of this server."""
        return {
            Env.S3_ENDPOINT: f"http://127.0.0.1:{self._port}",
            Env.S3_REGION: REGION,
            Env.S3_PATH_STYLE: "true",
            "AWS_ACCESS_KEY_ID": self._access,
            "AWS_SECRET_ACCESS_KEY": self._secret,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Returns once the server accepts connections."""
        objects = self._folder / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [versitygw(), "--port", f"127.0.0.1:{self._port}", objects],
                env={
                    "ROOT_ACCESS_KEY": self._access,
                    "ROOT_SECRET_KEY": self._secret,
                    "PATH": os.environ["PATH"],
                },
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"versitygw did not start: {(self._folder / 'server.log').read_text()[-2000:]}")

    def freeze(self) -> None:
        """The server keeps its connections and answers nothing, from the return on."""
        self._signal(signal.SIGSTOP)
        if self._process:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # each of its threads has stopped

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def create_bucket(self, name: str) -> None:
        self.client().create_bucket(Bucket=name)

    def client(self) -> S3Client:
        """For what no store of ours does."""
        return boto3.client(
            "s3",
            endpoint_url=self.environ[Env.S3_ENDPOINT],
            region_name=REGION,
            aws_access_key_id=self._access,
            aws_secret_access_key=self._secret,
            config=Config(s3={"addressing_style": "path"}),
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(number)

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.1)
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
