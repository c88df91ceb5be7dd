"""kubectl and helm with the right environment, and failures in their own words."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.processes import GO, ClusterError

NO_PROXY = "127.0.0.0/8,100.64.0.0/10,localhost"
# A tool that outlived its killed caller would write into the cluster's folder while that is being removed.
DIES_WITH_CALLER = ("setpriv", "--pdeathsig", "KILL", "--")


class CommandFailed(ClusterError):
    """kubectl or helm ended with an error; `result` has its output."""

    def __init__(self, message: str, result: subprocess.CompletedProcess[str]) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class Commands:
    """Runs the tools against one API server."""

    kubeconfig: Path
    scratch: Path
    folders: tuple[Path, ...]
    dead: Callable[[], str]

    @property
    def env(self) -> dict[str, str]:
        """The caller's environment, turned to this server; caches stay in its folder."""
        path = ":".join([*map(str, self.folders), os.environ.get("PATH", "/usr/bin:/bin")])
        return {
            **clean_environment(os.environ),
            "PATH": path,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.scratch / "kube-cache"),
            "HELM_CACHE_HOME": str(self.scratch / "helm-cache"),
            "HELM_CONFIG_HOME": str(self.scratch / "helm-config"),
            "HELM_DATA_HOME": str(self.scratch / "helm-data"),
            **GO,
        }

    def run(
        self,
        program: str,
        *words: str | Path,
        check: bool,
        input: str | None,  # noqa: A002 - subprocess's own word
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end."""
        argv = [program, *map(str, words)]
        done = subprocess.run(
            [*DIES_WITH_CALLER, *argv],
            env=self.env,
            input=input,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            message = f"`{' '.join(argv)}` ended with status {done.returncode}: {said}"
            raise CommandFailed("\n".join(filter(None, [message, self.dead()])), done)
        return done


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without a kubeconfig, and with the cluster's addresses kept away from any proxy."""
    kept = {name: value for name, value in environment.items() if name != "KUBECONFIG"}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(filter(None, [environment.get(name), NO_PROXY]))
    return kept
