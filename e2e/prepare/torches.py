"""Python environments with the older versions of torch that pyproject.toml promises, for `make torch-versions`.

Each has what the runtime and its tests need, from constraints.txt, except for torch. The CUDA libraries are those of
the newest torch, though torch's wheels ask for others of the same major version: no test here calls one, and so each
version costs one more download instead of twenty.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from e2e.prepare import envs
from e2e.prepare.basics import Progress, cache_dir, content_key, locked

VERSIONS: Final = ("2.13.0", "2.14.1")
"""The newest patch of each minor version below the one in constraints.txt."""
TOOLKIT: Final = "cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx"
"""The parts of CUDA that these versions load."""
WANTED: Final = (
    "numpy",
    "safetensors",
    "awscrt",
    "rich",
    "boto3",
    "botocore[crt]",
    "pytest",
    "pytest-xdist",
    "hypothesis",
)
_OF_CUDA: Final = ("cuda-", "nvidia-", "triton")


def python_of(version: str) -> Path:
    """The interpreter of this version's environment, whether made yet or not."""
    key = content_key([envs.CONSTRAINTS.read_bytes(), sys.version.encode(), repr((WANTED, TOOLKIT)).encode()])
    return cache_dir() / "torches" / key / version / "bin" / "python"


def build(progress: Progress) -> None:
    """Make those that are missing, and remove those of other pins."""
    with locked("torches", progress):
        kept = python_of("").parents[1]
        for other in kept.parent.glob("*"):
            if other != kept:
                shutil.rmtree(other, ignore_errors=True)
        for version in VERSIONS:
            if not python_of(version).exists():
                _build(version, progress)


def _build(version: str, progress: Progress) -> None:
    final = python_of(version).parents[1]
    uv, unfinished = envs.prepared_uv(progress), final.with_name(f"{version}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    envs.run_uv(
        uv, progress, f"making an environment with torch {version}", "venv", "--python", sys.executable, unfinished
    )
    pins = [line for line in envs.CONSTRAINTS.read_text().splitlines() if not line.startswith("torch==")]
    with tempfile.TemporaryDirectory() as folder:
        others, of_cuda = Path(folder, "constraints.txt"), Path(folder, "overrides.txt")
        others.write_text("\n".join(pins) + "\n")
        of_cuda.write_text("\n".join(map(_with_parts, filter(_is_of_cuda, pins))) + "\n")
        envs.run_uv(
            uv, progress, f"installing torch {version}", "pip", "install", "--python", unfinished / "bin" / "python",
            "-c", others, "--override", of_cuda, f"torch=={version}", *WANTED,
        )  # fmt: skip
    unfinished.rename(final)


def _is_of_cuda(pin: str) -> bool:
    return pin.startswith(_OF_CUDA)


def _with_parts(pin: str) -> str:
    """An override replaces what torch asks for, the parts included."""
    return pin.replace("cuda-toolkit==", f"cuda-toolkit[{TOOLKIT}]==")
