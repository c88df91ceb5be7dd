"""Python environments: two world-readable ones for containers, and the repository's own `.venv`.

`/opt/perdure/<hash>/{operator,trainer}` lie at the same path on the host and in every container, made from
/usr/bin/python3 because pods run as uid 65532 and may not look into root's home. Perdure is in them as a wheel.
They are made in two layers, so that an edit of Perdure costs seconds: what constraints.txt pins is installed and
compiled once under `/opt/perdure/dependencies-<hash>`, then hard-linked into the environment that gets the wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.prepare import apt
from e2e.prepare.basics import REPOSITORY, PrepareError, Progress, cache_dir, content_key, locked

SHARED_ROOT = Path("/opt/perdure")
SYSTEM_PYTHON = Path("/usr/bin/python3")
EXTRAS = {"operator": ("operator",), "trainer": ("runtime", "s3", "examples")}
DEV_EXTRAS = ("operator", "runtime", "s3", "hf", "lightning", "examples", "dev")
SOURCES = ("operator/perdure_operator", "runtime/perdure")
CONSTRAINTS = REPOSITORY / "constraints.txt"
PYPROJECT = REPOSITORY / "pyproject.toml"
UV = "uv==0.13.8"
KEPT = 3
RECIPE = b"3"  # raise it when this file makes another environment from the same inputs
DEV_RECIPE = b"4"
COMPILE = "import compileall, sys; compileall.compile_dir(sys.argv[1], maxlevels=20, quiet=2, workers=0)"
"""Packages carry templates, which are no Python: what cannot be compiled is left."""


@dataclass(frozen=True)
class Environments:
    """The two environments that belong to the present source."""

    root: Path

    @property
    def operator(self) -> Path:
        """The operator's: kopf, kubernetes, no torch."""
        return self.root / "operator"

    @property
    def trainer(self) -> Path:
        """The trainer's: torch, boto3, scikit-learn, no kopf."""
        return self.root / "trainer"

    def complete(self) -> bool:
        """They appear together by one rename."""
        return self.root.is_dir()


def environments() -> Environments:
    """Where the environments of the present source are, whether made yet or not."""
    return Environments(SHARED_ROOT / content_key([_dependencies_key().encode(), *_source()]))


def dependencies_installed() -> bool:
    """True when an edit of Perdure costs no more than seconds."""
    return _dependencies().is_dir()


def build(progress: Progress) -> Environments:
    """Make both environments if the source or the pins have changed."""
    wanted = environments()
    os.umask(0o022)  # pods that are not root read these files whatever umask the caller has
    with locked("environments", progress):
        if not wanted.complete():
            uv = prepared_uv(progress)
            _build_dependencies(uv, progress)
            _build_environments(uv, wanted, progress)
        for newest in (wanted.root, _dependencies()):
            os.utime(newest)  # the least recently used are removed
        _remove_old(wanted, progress)
    return wanted


def build_dev(progress: Progress) -> None:
    """The repository's `.venv`: every extra, Perdure editable."""
    venv = REPOSITORY / ".venv"
    stamp = venv / ".perdure-key"
    key = content_key([PYPROJECT.read_bytes(), CONSTRAINTS.read_bytes(), sys.version.encode(), DEV_RECIPE])
    if stamp.exists() and stamp.read_text() == key:
        return
    with locked("dev", progress):
        uv = prepared_uv(progress)
        if not (venv / "bin" / "python").exists():
            run_uv(uv, progress, "making .venv", "venv", "--python", sys.executable, venv)
        extras = ",".join(DEV_EXTRAS)
        _install(uv, progress, "installing the developer's environment", venv, "-e", f"{REPOSITORY}[{extras}]")
        # where PYTHONDONTWRITEBYTECODE is set, each process of the tests would compile torch, which takes 2-6 s;
        # uv compiles what it installs now, not what lies there
        progress.run("compiling it", [venv / "bin" / "python", "-c", COMPILE, _site_packages(venv)])
        stamp.write_text(key)


def _build_dependencies(uv: Path, progress: Progress) -> None:
    final = _dependencies()
    if final.is_dir():
        return
    unfinished = _emptied(final)
    for name in EXTRAS:
        venv = unfinished / name
        run_uv(uv, progress, f"making the {name} environment", "venv", "--python", SYSTEM_PYTHON, venv)
        requirements = unfinished / f"{name}.txt"
        requirements.write_text("\n".join(_requirements(name)) + "\n")
        # compiled here, because pods cannot write what they have compiled
        _install(uv, progress, f"installing what the {name} needs", venv, "--compile-bytecode", "-r", requirements)
    unfinished.rename(final)


def _build_environments(uv: Path, wanted: Environments, progress: Progress) -> None:
    wheels = cache_dir() / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    run_uv(uv, progress, "building Perdure's wheel", "build", "--wheel", "--out-dir", wheels, REPOSITORY)
    wheel = next(wheels.glob("perdure-*.whl"))
    unfinished = _emptied(wanted.root)
    for name in EXTRAS:
        venv = unfinished / name
        run_uv(uv, progress, f"making {wanted.root / name}", "venv", "--python", SYSTEM_PYTHON, venv)
        packages = _site_packages(venv)
        shutil.rmtree(packages)
        shutil.copytree(_site_packages(_dependencies() / name), packages, copy_function=os.link)
        _install(uv, progress, f"installing Perdure into the {name}'s", venv, "--no-deps", "--compile-bytecode", wheel)
        _move_scripts(venv, wanted.root / name)
    unfinished.rename(wanted.root)


def _move_scripts(venv: Path, final: Path) -> None:
    """Console scripts name their interpreter by its absolute path, and the folder is about to be renamed."""
    for script in (venv / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_text(errors="surrogateescape")
        script.write_text(text.replace(str(venv), str(final)), errors="surrogateescape")


def _emptied(final: Path) -> Path:
    unfinished = final.with_name(f"{final.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
    except PermissionError as error:
        raise PrepareError(f"cannot write below {SHARED_ROOT}: run as root") from error
    return unfinished


def _site_packages(venv: Path) -> Path:
    return next((venv / "lib").glob("python3*/site-packages"))


def _dependencies() -> Path:
    return SHARED_ROOT / f"dependencies-{_dependencies_key()}"


def _dependencies_key() -> str:
    names = [line for name in EXTRAS for line in (name, *_requirements(name))]
    python = str(SYSTEM_PYTHON.readlink()) if SYSTEM_PYTHON.is_symlink() else ""
    return content_key([RECIPE, CONSTRAINTS.read_bytes(), python.encode(), "\n".join(names).encode()])


def _requirements(name: str) -> list[str]:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    wanted: list[str] = list(project.get("dependencies", []))
    for extra in EXTRAS[name]:
        wanted += project["optional-dependencies"][extra]
    return wanted


def _source() -> Iterator[bytes]:
    yield PYPROJECT.read_bytes()
    for folder in SOURCES:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(REPOSITORY).as_posix().encode()
                yield path.read_bytes()


def prepared_uv(progress: Progress) -> Path:
    """The installer, installed first if it is missing."""
    venv = cache_dir() / "uv"
    uv = venv / "bin" / "uv"
    with locked("uv", progress):
        if not uv.exists():
            if importlib.util.find_spec("ensurepip") is None:
                apt.install_packages(["python3-venv"], progress)
            progress.run("making a place for uv", [sys.executable, "-m", "venv", "--clear", venv])
            progress.run("installing uv", [venv / "bin" / "python", "-m", "pip", "install", "--quiet", UV])
    return uv


def _install(uv: Path, progress: Progress, doing: str, venv: Path, *what: str | Path) -> None:
    run_uv(uv, progress, doing, "pip", "install", "--python", venv / "bin" / "python", "-c", CONSTRAINTS, *what)


def run_uv(uv: Path, progress: Progress, doing: str, *words: str | Path, more: Mapping[str, str] | None = None) -> None:
    """Run one of its commands, with the project's cache, and with `more` variables in its environment."""
    progress.run(doing, [uv, "--no-config", *words], env={**uv_environment(), **(more or {})})


def uv_environment() -> dict[str, str]:
    """The environment in which uv has the project's cache."""
    env = {**os.environ, "UV_CACHE_DIR": str(cache_dir() / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never"}
    env.pop("VIRTUAL_ENV", None)
    return env


def _remove_old(wanted: Environments, progress: Progress) -> None:
    for unfinished in SHARED_ROOT.glob("*.unfinished"):
        shutil.rmtree(unfinished, ignore_errors=True)
    entries = [path for path in SHARED_ROOT.iterdir() if path.is_dir()]
    for kind in (True, False):
        group = [path for path in entries if path.name.startswith("dependencies-") == kind]
        group.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in group[KEPT:]:
            if path not in (wanted.root, _dependencies()) and not _in_use(path):
                progress.say(f"removing {path}, which nobody uses any more")
                shutil.rmtree(path, ignore_errors=True)


def _in_use(environment: Path) -> bool:
    """Containers have its path in PATH, containerd in PERDURE_ENVIRONMENTS."""
    wanted = str(environment).encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environ.read_bytes():
                return True
        except OSError:  # it has ended, or is not ours to read
            continue
    return False
