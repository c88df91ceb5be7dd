"""What this machine lacks for the local cluster, in words a user can act on. Changes nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from e2e.prepare import apt, debian, envs, tools

EXISTING_CLUSTER = (
    "To use a cluster that you already have instead: set KUBECONFIG and install the chart in helm/perdure "
    "with your own images (see README.md)."
)
API_PROGRAMS = ("kube-apiserver", "etcd", "kubectl")
PREPARE = "run `python3 -m e2e.prepare cluster` (or `make prepare`)"


def cannot_run(lacks: list[str]) -> str:
    """The whole message for a user."""
    return "\n".join(["the local cluster cannot run here:", *(f"  - {lack}" for lack in lacks), EXISTING_CLUSTER])


def missing(*, before_prepare: bool = False) -> list[str]:
    """One sentence per thing that is missing, empty when the cluster can be booted.

    `before_prepare` asks only for what preparation cannot bring itself.
    """
    lacks = machine()
    if lacks:
        return lacks
    if before_prepare:
        return _builders()
    return _prepared()


def missing_for_api() -> list[str]:
    """The same for an API server without nodes, which needs neither root nor environments."""
    lacks = [] if platform.system() == "Linux" else machine()
    lacks += [f"the program {name}" for name in ("openssl", "setpriv") if shutil.which(name) is None]
    unbuilt = [program for program in API_PROGRAMS if program in tools.unbuilt()]
    if unbuilt:
        lacks.append(f"the programs {', '.join(unbuilt)}: {PREPARE}")
    return lacks


def missing_for_scale() -> list[str]:
    """The same for the scale bench, whose nodes do not exist."""
    unbuilt = tools.unbuilt(tools.FOR_SCALE)
    prepare = "run `python3 -m e2e.prepare scale`"
    return missing_for_api() + ([f"the programs {', '.join(unbuilt)}: {prepare}"] if unbuilt else [])


def missing_for_autoscaling() -> list[str]:
    """The same for the scenarios with an autoscaler."""
    unbuilt = tools.unbuilt(tools.FOR_AUTOSCALING)
    prepare = "run `python3 -m e2e.prepare autoscaler`"
    return missing() + ([f"the programs {', '.join(unbuilt)}: {prepare}"] if unbuilt else [])


def missing_for_prometheus() -> list[str]:
    """What tests with a real Prometheus lack."""
    lacking = debian.PROMETHEUS.lacking()
    return [f"the programs {', '.join(lacking)}: run `python3 -m e2e.prepare for-tests`"] if lacking else []


def machine() -> list[str]:
    """What no preparation can change."""
    if platform.system() != "Linux":
        return [f"Linux: this is {platform.system()}, and the cluster is made of Linux namespaces"]
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root: namespaces, mounts and cgroups are made; run as root")
    if not os.access("/sys/fs/cgroup", os.W_OK):
        lacks.append("a writable /sys/fs/cgroup: inside a container, run it privileged")
    if "overlay" not in Path("/proc/filesystems").read_text():
        lacks.append("the overlay file system: `modprobe overlay`")
    return lacks


def _builders() -> list[str]:
    lacks = []
    if not envs.SYSTEM_PYTHON.exists() or not _at_least(_python_version(), (3, 11)):
        lacks.append(f"{envs.SYSTEM_PYTHON} >= 3.11: containers use the machine's own Python; install python3")
    if tools.unbuilt() and not _at_least(_go_version(), (1, 21)):
        lacks.append(f"Go: {tools.GO_HINT}")
    if apt.unmet() and shutil.which("apt-get") is None:
        lacks.append(f"what these Debian packages bring: {', '.join(need.package for need in apt.unmet())}")
    return lacks


def _prepared() -> list[str]:
    lacks = []
    if apt.unmet():
        lacks.append(f"Debian packages {', '.join(need.package for need in apt.unmet())}: {PREPARE}")
    if tools.unbuilt():
        lacks.append(f"the programs {', '.join(tools.unbuilt())}: {PREPARE}")
    if not envs.dependencies_installed():
        lacks.append(f"the Python environments below {envs.SHARED_ROOT}: {PREPARE}")
    return lacks


def _at_least(version: tuple[int, ...] | None, wanted: tuple[int, int]) -> bool:
    return version is not None and version >= wanted


def _python_version() -> tuple[int, ...] | None:
    return _version([str(envs.SYSTEM_PYTHON), "--version"])


def _go_version() -> tuple[int, ...] | None:
    go = shutil.which("go")
    return _version([go, "env", "GOVERSION"]) if go else None


def _version(argv: list[str]) -> tuple[int, ...] | None:
    found = re.search(r"(\d+)\.(\d+)", subprocess.run(argv, capture_output=True, text=True, check=False).stdout)
    return tuple(int(number) for number in found.groups()) if found else None
