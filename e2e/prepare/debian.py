"""Programs of Debian packages that only tests need: downloaded and unpacked into the cache, and never installed.

Installing them would start services and change the machine. What they link to is Debian's C library alone.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.prepare.basics import PrepareError, Progress, cache_dir, locked


@dataclass(frozen=True)
class Package:
    """A package, and the programs that tests use of it. The version is that of the machine's release."""

    name: str
    programs: tuple[str, ...]

    def folder(self) -> Path:
        """Where its programs are once it is unpacked."""
        return self.root() / "usr" / "bin"

    def root(self) -> Path:
        """Where its files are."""
        return cache_dir() / "debian" / self.name

    def lacking(self) -> list[str]:
        """The programs that are not there."""
        return [program for program in self.programs if not (self.folder() / program).exists()]


PROMETHEUS = Package("prometheus", ("prometheus", "promtool"))


def unpack(package: Package, progress: Progress) -> None:
    """Download and unpack the package if it is not in the cache."""
    if not package.lacking():
        return
    apt_get, dpkg = shutil.which("apt-get"), shutil.which("dpkg")
    if apt_get is None or dpkg is None:
        raise PrepareError(f"no apt-get and dpkg here, which bring {', '.join(package.programs)}")
    with locked("debian", progress):
        if not package.lacking():
            return
        unfinished = package.root().with_name(f".{package.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _download(package, apt_get, unfinished, progress)
        (archive,) = unfinished.glob("*.deb")
        progress.run(f"unpacking {archive.name}", [dpkg, "--extract", archive, unfinished])
        archive.unlink()
        shutil.rmtree(package.root(), ignore_errors=True)
        unfinished.rename(package.root())
        if package.lacking():
            raise PrepareError(f"Debian's package {package.name} has no {', '.join(package.lacking())}")


def _download(package: Package, apt_get: str, folder: Path, progress: Progress) -> None:
    """The package lists are renewed only when the first attempt fails: a new machine has none."""
    doing, argv = f"downloading Debian's package {package.name}", [apt_get, "download", package.name]
    try:
        progress.run(doing, argv, cwd=folder)
    except PrepareError:
        if os.geteuid() != 0:
            raise
        progress.run("renewing the package lists", [apt_get, "update"])
        progress.run(doing, argv, cwd=folder)
