"""kubectl, called the way a person calls it. Knows nothing of jobs or clusters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any


class KubectlError(RuntimeError):
    """kubectl said no; the message is the command and what it said."""


class Kubectl:
    """kubectl of one cluster: `env` finds the program and the cluster."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def run(self, *words: str, stdin: str | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs to its end, whatever its status."""
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
        """Starts it beside us; what it prints can be read as it comes."""
        argv = ["kubectl", *words]
        return subprocess.Popen(argv, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __call__(self, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
        """What it printed; KubectlError where its status is not 0."""
        done = self.run(*words, stdin=stdin, seconds=seconds)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def json(self, *words: str) -> dict[str, Any]:
        """The object or list, as `-o json` shows it."""
        return dict(json.loads(self(*words, "--output=json")))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """kubectl apply of some objects."""
        self("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
