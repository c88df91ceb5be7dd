"""Removes all that a cluster may have left, however it ended, knowing nothing but its name.

Order matters: processes first (their mounts go with them), then what they held.
"""

from __future__ import annotations

import contextlib
import shutil

from e2e.cluster import cgroups, network
from e2e.cluster.folder import STATE_ROOT, Folder
from e2e.cluster.names import cgroup_of, check_name, netns_pattern


def remove(cluster: str) -> None:
    """Leave nothing of this cluster; nothing there is fine too."""
    check_name(cluster)
    folder = Folder.of(cluster)
    names = folder.read_names()
    cgroups.kill(cgroup_of(cluster))
    cgroups.remove(cgroup_of(cluster))
    network.remove(netns_pattern(cluster))
    if names is not None:
        network.remove_host_device(names.host_device)
    shutil.rmtree(folder.root, ignore_errors=True)
    with contextlib.suppress(OSError):  # another cluster's files are in there, or there never were any
        STATE_ROOT.rmdir()
