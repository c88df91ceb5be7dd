"""A package is unpacked once. A script stands for apt-get, and hands out a package that the real dpkg made."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.prepare.basics import PrepareError, Progress
from e2e.prepare.debian import Package, unpack

TOOL = Package("tool", ("tool",))
APT_GET = """#!/bin/sh
echo "$1" >> {calls}
case $1 in
update) touch {lists};;
download) [ -e {lists} ] || {{ echo 'E: Unable to locate package'; exit 100; }}; cp {archive} .;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="Debian's packages are for Debian")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What apt-get was asked; the machine has no package lists yet."""
    made = tmp_path / "made"
    for folder in ("DEBIAN", "usr/bin"):
        (made / folder).mkdir(parents=True)
    control = "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDescription: x\n"
    (made / "DEBIAN" / "control").write_text(control)
    (made / "usr" / "bin" / "tool").write_text("#!/bin/sh\n")
    archive = tmp_path / "tool_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", made, archive], check=True, capture_output=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apt-get").write_text(
        APT_GET.format(calls=tmp_path / "calls", lists=tmp_path / "lists", archive=archive)
    )
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / "calls"


def test_it_is_unpacked_once_and_the_lists_are_renewed_where_there_are_none(calls: Path) -> None:
    assert TOOL.lacking() == ["tool"]
    for _ in range(2):
        unpack(TOOL, Progress())
    assert TOOL.lacking() == []
    assert calls.read_text().split() == ["download", "update", "download"]
    assert [path.name for path in TOOL.root().iterdir()] == ["usr"]


def test_a_package_without_the_program_is_refused(calls: Path) -> None:
    with pytest.raises(PrepareError, match="has no other"):
        unpack(Package("tool", ("other",)), Progress())
    assert calls.exists()
