"""What a cluster leaves on a machine, found from outside: reads the kernel's own lists, none of the cluster's code."""

from __future__ import annotations

import json
import subprocess
from ipaddress import IPv4Network
from pathlib import Path


def traces(cluster: str, block: IPv4Network | None = None) -> dict[str, list[str]]:
    """Every kind of trace with what was found; kinds without any are left out."""
    found = {
        "files": [str(path) for path in Path("/var/cache/perdure").glob(f"{cluster}*")],
        "namespaces": [path.name for path in Path("/run/netns").glob(f"perdure-{cluster}-*")],
        "cgroups": [str(path) for path in _hierarchies() for path in path.glob(f"perdure-{cluster}*")],
        "processes": _processes(f"/var/cache/perdure/{cluster}/"),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if f"/{cluster}/" in line],
        "addresses": _in_block(block) if block else [],
    }
    return {kind: things for kind, things in found.items() if things}


def _hierarchies() -> list[Path]:
    fields = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(point) for _, point, kind, *_ in fields if kind in {"cgroup", "cgroup2"}]


def _processes(folder: str) -> list[str]:
    """Processes that were started on the cluster's files; those that only wait to be reaped have no command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in line:
            found.append(f"{path.parent.name}: {line[:120]}")
    return found


def _in_block(block: IPv4Network) -> list[str]:
    shown = subprocess.run(["ip", "-json", "-4", "route", "show"], capture_output=True, text=True, check=True).stdout
    routes = [route["dst"] for route in json.loads(shown) if route["dst"] != "default"]
    return [route for route in routes if IPv4Network(route).overlaps(block)]
