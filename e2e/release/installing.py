"""Installs a wheel with each extra in a clean environment outside the repository, and runs what it brings.

uv installs, because it takes what it has in its cache; constraints.txt pins the versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.prepare import PrepareError, Progress, cache_dir, tool_folders
from e2e.prepare.envs import CONSTRAINTS, PYPROJECT, run_uv, uv_environment


@dataclass(frozen=True)
class Trial:
    """Extras that a user installs together, and what works then."""

    extras: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...] = ()
    """Each is run with --help."""
    imports: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Packages that do not come with it."""


HELP: Final = (("perdure",),)
OF_OPERATOR: Final = ("kopf", "kubernetes", "aiohttp", "prometheus-client", "cryptography")
OF_RUNTIME: Final = ("torch", "numpy", "safetensors", "awscrt")
OF_S3: Final = ("boto3", "botocore")
SHARED: Final = ("pydantic", "pyyaml", "rich")
"""Of what the extras operator, kubectl, runtime and s3 ask for: whose a package is, or that several have it."""
TRIALS: Final = (
    Trial((), HELP, ("perdure",), without=(*OF_OPERATOR, *OF_RUNTIME, *OF_S3, *SHARED)),
    Trial(("operator",), (("perdure-operator",),), ("perdure_operator.loop",), without=(*OF_RUNTIME, *OF_S3)),
    Trial(
        ("kubectl",),
        (("kubectl-perdure",), ("kubectl", "perdure")),
        without=(*OF_OPERATOR, *OF_RUNTIME, *OF_S3),
    ),
    Trial(("runtime",), HELP, ("perdure.session",), without=(*OF_OPERATOR, *OF_S3, "pydantic")),
    Trial(("runtime", "s3"), HELP, ("perdure.store.s3",), without=(*OF_OPERATOR, "pydantic")),
    Trial(("runtime", "hf"), HELP, ("perdure.adapters.hf",), without=("kopf", "kubernetes")),
    Trial(("runtime", "lightning"), HELP, ("perdure.adapters.lightning",), without=("kopf", "kubernetes")),
    Trial(("runtime", "examples"), HELP, ("perdure.session", "sklearn"), without=(*OF_OPERATOR, *OF_S3)),
)
"""Each extra but `dev`, which is for who changes Perdure."""
_LOAD: Final = """
import importlib, importlib.metadata, sys
for script in importlib.metadata.distribution("perdure").entry_points:
    script.load()
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def install_and_run(wheel: Path, trial: Trial, uv: Path, progress: Progress) -> list[str]:
    """Install it in an environment of its own, and run its commands; returns the names of all packages there.

    Raises:
        PrepareError: it cannot be installed, has packages that disagree, or a command or an import fails.

    """
    name = named(trial.extras)
    cache_dir().mkdir(parents=True, exist_ok=True)
    # beside uv's cache, whose files it links instead of copying them
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="release-") as folder:
        venv = Path(folder, "venv")
        python = venv / "bin" / "python"
        run_uv(uv, progress, f"making a clean environment for {name}", "venv", "--python", sys.executable, venv)
        wanted = requirement(wheel, trial.extras)
        run_uv(uv, progress, f"installing {name}", "pip", "install", "--python", python, "-c", CONSTRAINTS, wanted)
        run_uv(uv, progress, "asking whether its packages agree", "pip", "check", "--python", python)
        alone = _alone(venv, Path(folder))
        progress.run("importing its entry points", [python, "-c", _LOAD, *trial.imports], env=alone, cwd=Path(folder))
        for words in trial.commands:
            program = shutil.which(words[0], path=alone["PATH"])
            if program is None:
                raise PrepareError(f"{name}: there is no {words[0]} to run on PATH; `make prepare` builds kubectl")
            progress.run(f"{' '.join(words)} --help", [program, *words[1:], "--help"], env=alone, cwd=Path(folder))
        listed = subprocess.run(
            [uv, "--no-config", "pip", "freeze", "--python", python],
            env=uv_environment(), capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return names_of(listed)


def resolved(wheel: Path, extras: Sequence[str], uv: Path) -> list[str]:
    """The names of all packages that an installation of these extras would bring; nothing is installed."""
    done = subprocess.run(
        [uv, "--no-config", "pip", "compile", "--no-header", "--no-annotate", "--quiet", "-c", CONSTRAINTS, "-"],
        env=uv_environment(), input=requirement(wheel, extras), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise PrepareError(f"no versions go together for {named(extras)}: {done.stderr.strip()}")
    return names_of(done.stdout)


def requirement(wheel: Path, extras: Sequence[str]) -> str:
    """This wheel with these extras, as installers write it."""
    return f"{named(extras)} @ {wheel.resolve().as_uri()}"


def named(extras: Sequence[str]) -> str:
    """Perdure with these extras."""
    return f"perdure[{','.join(extras)}]" if extras else "perdure"


def names_of(listed: str) -> list[str]:
    """The packages in an installer's list, without their versions."""
    return sorted({_name(line) for line in listed.splitlines() if line.strip()})


def foreign(trial: Trial, installed: Sequence[str]) -> list[str]:
    """The packages that came though they belong to other extras: a line each."""
    return [f"{named(trial.extras)} brings {one}" for one in trial.without if one in installed]


def extras_of_project() -> dict[str, list[str]]:
    """What pyproject.toml asks for, by extra."""
    found: dict[str, list[str]] = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    return found


def _name(wanted: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", wanted.strip(), maxsplit=1)[0]).lower()


def _alone(venv: Path, home: Path) -> dict[str, str]:
    """An environment with nothing of the repository, and its commands first, where kubectl finds its plugin."""
    kubectl = tool_folders()["kubernetes"]
    path = os.pathsep.join(map(str, (venv / "bin", kubectl, os.environ.get("PATH", os.defpath))))
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}
