"""Makes wheel, sdist and chart of a folder of sources; the same sources and time give the same bytes.

They are the project's own tools that make them: uv and hatchling, and helm.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

from e2e.prepare import PrepareError, Progress
from e2e.prepare.envs import run_uv

PINS: Final = Path(__file__).with_name("build-constraints.txt")
CHECKSUMS: Final = "SHA256SUMS"


@dataclass(frozen=True)
class Builders:
    """The programs that build."""

    uv: Path
    helm: Path


@dataclass(frozen=True)
class Built:
    """What was made of a folder of sources."""

    wheel: Path
    sdist: Path
    chart: Path


def build(source: Path, time: int, into: Path, tools: Builders, progress: Progress) -> Built:
    """Make all three in the folder `into`; every file in them was last changed at `time`, in seconds of Unix."""
    into.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(source, time, into, tools, progress)
    run_uv(
        tools.uv, progress, "building the sdist", "build", "--sdist", "--build-constraints", PINS, "--out-dir", into,
        source, more=_time(time),
    )  # fmt: skip
    return Built(wheel, _only(into, "perdure-*.tar.gz"), pack_chart(source, time, into, tools, progress))


def build_wheel(source: Path, time: int, into: Path, tools: Builders, progress: Progress) -> Path:
    """Make a wheel of a folder of sources, or of an sdist."""
    doing = f"building the wheel from {'the sdist' if source.is_file() else 'the sources'}"
    words = ("build", "--wheel", "--build-constraints", PINS, "--out-dir", into, source)
    run_uv(tools.uv, progress, doing, *words, more=_time(time))
    return _only(into, "perdure-*.whl")


def pack_chart(source: Path, time: int, into: Path, tools: Builders, progress: Progress) -> Path:
    """Pack the chart of a folder of sources. Helm keeps the times of the files that it packs."""
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(source / "helm" / "perdure", Path(folder, "perdure"))
        _set_times(copied.rglob("*"), time)
        _helm(tools, progress, "packing the chart", ["package", copied, "--destination", into])
    return _only(into, "perdure-*.tgz")


def differences(first: Built, second: Built) -> list[str]:
    """The names of what has other bytes the second time."""
    pairs = ((first.wheel, second.wheel), (first.sdist, second.sdist), (first.chart, second.chart))
    return [one.name for one, other in pairs if one.read_bytes() != other.read_bytes()]


def export(repository: Path, folder: Path) -> int:
    """Write the files of the commit that is checked out into `folder`; returns the commit's time.

    Raises:
        PrepareError: something in the working tree is not committed.

    """
    changed = _git(repository, "status", "--porcelain").decode().splitlines()
    if changed:
        raise PrepareError(f"a release is made of a commit, and these differ from it: {', '.join(changed)}")
    with tarfile.open(fileobj=BytesIO(_git(repository, "archive", "--format=tar", "HEAD"))) as packed:
        packed.extractall(folder, filter="data")
    return int(_git(repository, "log", "-1", "--format=%ct"))


def write_checksums(folder: Path) -> Path:
    """Write a file that `sha256sum --check` reads, with every other file of the folder."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    written = folder / CHECKSUMS
    written.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files))
    return written


def lint(chart: Path, tools: Builders, progress: Progress) -> None:
    """Ask helm about a packed chart: its templates, and its values against their schema."""
    _helm(tools, progress, "linting the chart", ["lint", "--strict", chart])


def _set_times(paths: Iterable[Path], time: int) -> None:
    for path in paths:
        os.utime(path, (time, time))


def _helm(tools: Builders, progress: Progress, doing: str, words: Sequence[str | Path]) -> None:
    with tempfile.TemporaryDirectory() as home:
        homes = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        progress.run(doing, [tools.helm, *words], env={**os.environ, **homes})


def _time(time: int) -> dict[str, str]:
    return {"SOURCE_DATE_EPOCH": str(time)}


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def _git(repository: Path, *words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=repository, capture_output=True, check=False)
    if done.returncode:
        raise PrepareError(f"git {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout
