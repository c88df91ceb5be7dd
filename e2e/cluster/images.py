"""Container images without a registry and without a build: archives with hardly anything in them.

What a container runs is the host's /usr and an environment below /opt/perdure, bound in by the node (node.py); an image
brings empty mount points, a user, a PATH and perhaps a folder of Python files. Names are ordinary ones
(`perdure-digits:dev`), imported under what CRI makes of them. Real images are built from the Containerfiles.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.prepare import Environments, tool_folders

USER = 65532
PAUSE = "localhost/perdure-pause:1"
OPERATOR = "perdure-operator:dev"
DIGITS = "perdure-digits:dev"
WORKSPACE = "workspace"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNT_POINTS = [
    "usr",
    "lib",
    "lib64",
    "bin",
    "sbin",
    "opt",
    "opt/perdure",
    "proc",
    "sys",
    "dev",
    "etc",
    "run",
    "tmp",
    "var",
    "var/run",
]
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/{WORKSPACE}:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
}
# describes the host's libraries, which containers see; without it ctypes asks a compiler where a library is
LIBRARY_CACHE = Path("/etc/ld.so.cache")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """What makes one image different from another."""

    name: str
    environment: Path | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()

    @property
    def reference(self) -> str:
        """The name under which CRI looks for it."""
        return normalised(self.name)


def normalised(name: str) -> str:
    """What CRI makes of a name in a manifest."""
    first = name.split("/", maxsplit=1)[0]
    has_registry = "/" in name and ("." in first or ":" in first or first == "localhost")
    repository = name if has_registry else f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
    return repository if ":" in repository.rsplit("/", 1)[-1] else f"{repository}:latest"


def base_images(environments: Environments, digits: Path) -> list[Image]:
    """The images every cluster knows."""
    return [
        Image(
            PAUSE,
            files={"pause": (tool_folders()["pause"] / "pause").read_bytes()},
            entrypoint=(f"/{WORKSPACE}/pause",),
        ),
        operator_image(OPERATOR, environments),
        trainer_image(DIGITS, environments, digits),
    ]


def operator_image(name: str, environments: Environments) -> Image:
    """The operator's image."""
    return Image(name, environments.operator)


def trainer_image(name: str, environments: Environments, folder: Path) -> Image:
    """An image with the trainer's environment and that folder's Python files as its working directory."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.py"))}
    return Image(name, environments.trainer, files)


def write_archive(images: Iterable[Image], archive: Path) -> None:
    """Write a docker archive that `ctr images import` reads; the same images give the same bytes."""
    blobs: dict[str, bytes] = {}
    manifest = []
    for image in images:
        layer = _layer(image)
        config = _config(image, layer)
        names = f"{_digest(config)}.json", f"{_digest(layer)}.tar"
        blobs |= {names[0]: config, names[1]: layer}
        manifest.append({"Config": names[0], "RepoTags": [image.reference], "Layers": [names[1]]})
    blobs["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(archive, "w") as tar:
        for name, content in blobs.items():
            _add_file(tar, name, content)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folders = {parent.as_posix() for name in image.files for parent in Path(WORKSPACE, name).parents} - {"."}
        for folder in [*MOUNT_POINTS, *sorted({WORKSPACE} | folders)]:
            _add_folder(tar, folder, 0o1777 if folder == "tmp" else 0o755)
        for name, text in ACCOUNTS.items():
            _add_file(tar, name, text.encode())
        if LIBRARY_CACHE.exists():
            _add_file(tar, LIBRARY_CACHE.relative_to("/").as_posix(), LIBRARY_CACHE.read_bytes())
        for name, content in image.files.items():
            _add_file(tar, f"{WORKSPACE}/{name}", content, 0o755)
    return buffer.getvalue()


def _config(image: Image, layer: bytes) -> bytes:
    path = f"{image.environment}/bin:{SYSTEM_PATH}" if image.environment else SYSTEM_PATH
    machine = platform.machine()
    run = {
        "User": f"{USER}:{USER}",
        "WorkingDir": f"/{WORKSPACE}",
        "Entrypoint": list(image.entrypoint),
        "Env": [f"PATH={path}", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"],
    }
    config = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
    }
    return json.dumps(config).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))
