"""The operator as a process of its own, as the chart would run it, with the rights of the chart's ServiceAccount."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster.commands import clean_environment

END_SECONDS = 120.0
"""It bounds a hang; how long an operator may take to end is no test's matter."""


@dataclass
class OperatorProcess:
    """`with OperatorProcess(...) as operator:`; its log is a file."""

    kubeconfig: Path
    log: Path
    name: str = "operator-0"
    lease_seconds: int = 15
    more: tuple[str, ...] = ()
    """Further words of the command line."""
    lease_namespace: str = "perdure-system"

    def __enter__(self) -> Self:
        argv = [sys.executable, "-m", "perdure_operator.cli.main", "run", "--all-namespaces"]
        argv += [f"--kubeconfig={self.kubeconfig}", f"--lease-namespace={self.lease_namespace}", "--health-port=0"]
        argv += [f"--lease-seconds={self.lease_seconds}", "--log-format=text", "--log-level=info"]
        argv += self.more
        environment = clean_environment(os.environ) | {"POD_NAME": self.name}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out, env=environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        if error is not None:
            sys.stderr.write(self.log.read_text()[-6000:])

    @property
    def leading(self) -> bool:
        """Whether it has ever led."""
        return f"leading as {self.name}_" in self.log.read_text()

    @property
    def worked(self) -> bool:
        """Whether it has ever written anything about a job."""
        return "perdure_operator.loop.worker" in self.log.read_text()

    def kill(self) -> None:
        """As if its machine had vanished."""
        self.process.kill()
        self.process.wait()
