"""kubectl, called as a user calls it. Knows nothing of jobs or clusters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any


class KubectlError(RuntimeError):
    """kubectl failed; the message is the command and its output."""


class Kubectl:
    """kubectl of one cluster: `env` finds the program and the cluster."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def run(self, *words: str, stdin: str | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run to its end, whatever its status."""
        return subprocess.run(
            ["kubectl", *words],
            check=False,
            env=self._env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it in the background; its output can be read as it comes."""
        argv = ["kubectl", *words]
        return subprocess.Popen(argv, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __call__(self, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
        """Its output; KubectlError if its status is not 0."""
        done = self.run(*words, stdin=stdin, seconds=seconds)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def json(self, *words: str) -> dict[str, Any]:
        """The object or list, by `-o json`."""
        return dict(json.loads(self(*words, "--output=json")))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """kubectl apply of some objects."""
        self("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
