"""A limit of this machine that several clusters at once outgrow, raised if permitted.

kubelet, containerd and kube-proxy watch files: each node takes nine inotify instances, each control plane four, each
`kubectl logs --follow` one. All nodes belong to one user, who may have 128 of them by default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from e2e.prepare.basics import Progress

INSTANCES: Final = Path("/proc/sys/fs/inotify/max_user_instances")
WANTED: Final = 1024
"""Twice what kind asks for: https://kind.sigs.k8s.io/docs/user/known-issues/#pod-errors-due-to-too-many-open-files"""


def raise_limits(progress: Progress, instances: Path = INSTANCES) -> None:
    """Until the next boot; never lowered. Where it may not be changed it stays, and a word says what may come of it."""
    has = int(instances.read_text())
    if has >= WANTED:
        return
    try:
        instances.write_text(f"{WANTED}\n")
    except OSError as error:
        progress.say(
            f"fs.inotify.max_user_instances stays {has} ({error.strerror}): it is short for two clusters at once"
        )
    else:
        progress.say(f"fs.inotify.max_user_instances: {has} -> {WANTED}, until the next boot: a node takes nine")
