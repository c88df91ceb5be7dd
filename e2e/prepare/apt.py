"""Installs the few Debian packages the local cluster needs, only those that are missing.

Nothing here starts a service. On a machine without apt the same commands only have to be there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from e2e.prepare.basics import PrepareError, Progress

SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Need:
    """A package and how to see that what it brings is there."""

    package: str
    command: str = ""
    pkg_config: str = ""

    def met(self) -> bool:
        """True when the machine has it, from any source."""
        if self.pkg_config:
            pkg_config = shutil.which("pkg-config")
            return (
                pkg_config is not None
                and subprocess.run([pkg_config, "--exists", self.pkg_config], check=False).returncode == 0
            )
        return shutil.which(self.command, path=f"{os.environ.get('PATH', '')}:{SEARCHED}") is not None


NEEDS = (
    Need("gcc", command="gcc"),
    Need("libc6-dev", command="gcc"),
    Need("pkg-config", command="pkg-config"),
    Need("libseccomp-dev", pkg_config="libseccomp"),
    Need("iproute2", command="ip"),
    Need("iptables", command="iptables"),
    Need("openssl", command="openssl"),
    Need("util-linux", command="nsenter"),
    Need("util-linux", command="setpriv"),
    Need("util-linux", command="setsid"),
    Need("mount", command="mount"),
)


def unmet() -> list[Need]:
    """The missing packages."""
    return [need for need in NEEDS if not need.met()]


def install(progress: Progress) -> None:
    """Install the cluster's missing packages."""
    install_packages([need.package for need in unmet()], progress)
    left = [need.package for need in unmet()]
    if left:
        raise PrepareError(f"installed, but still not usable: {', '.join(left)}")


def install_packages(packages: list[str], progress: Progress) -> None:
    """Install these packages; the package lists are renewed only when the first attempt fails."""
    if not packages:
        return
    apt_get = shutil.which("apt-get")
    if apt_get is None or os.geteuid() != 0:
        raise PrepareError(f"as root, install what these Debian packages bring: {', '.join(packages)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    argv = [apt_get, "install", "--yes", "--no-install-recommends", *packages]
    try:
        progress.run(f"installing {', '.join(packages)}", argv, env=env)
    except PrepareError:
        progress.run("renewing the package lists", [apt_get, "update"], env=env)
        progress.run(f"installing {', '.join(packages)}", argv, env=env)
