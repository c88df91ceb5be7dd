"""Images: the names that CRI looks for, and the contents of the archives."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.images import Image, normalised, trainer_image, write_archive
from e2e.prepare import Environments

ENVIRONMENTS = Environments(Path("/opt/perdure/0123"))


@pytest.mark.parametrize(
    ("written", "looked_for"),
    [
        ("perdure-digits:dev", "docker.io/library/perdure-digits:dev"),
        ("perdure-digits", "docker.io/library/perdure-digits:latest"),
        ("team/digits:1", "docker.io/team/digits:1"),
        ("localhost/pause:1", "localhost/pause:1"),
        ("ghcr.io/team/digits:1", "ghcr.io/team/digits:1"),
        ("registry:5000/digits", "registry:5000/digits:latest"),
    ],
)
def test_a_name_is_imported_as_cri_will_look_for_it(written: str, looked_for: str) -> None:
    assert normalised(written) == looked_for


def entries(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {info.name: info for info in tar}


def content(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    (folder / "parts").mkdir(parents=True)
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "parts" / "model.py").write_text("")
    (folder / "README.md").write_text("not code")
    return folder


def test_an_image_has_the_folders_python_files_and_finds_the_trainers_python(scripts: Path, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    write_archive([trainer_image("mine:dev", ENVIRONMENTS, scripts)], archive)
    whole = archive.read_bytes()

    (image,) = json.loads(content(whole, "manifest.json"))
    assert image["RepoTags"] == ["docker.io/library/mine:dev"]
    layer = content(whole, image["Layers"][0])
    assert content(layer, "workspace/train.py") == b"print('trained')\n"
    assert "workspace/parts/model.py" in entries(layer)
    assert "workspace/README.md" not in entries(layer)
    config = json.loads(content(whole, image["Config"]))["config"]
    assert config["WorkingDir"] == "/workspace"
    assert config["User"] == "65532:65532"
    assert not config["Entrypoint"]
    assert any(variable.startswith("PATH=/opt/perdure/0123/trainer/bin:") for variable in config["Env"])


def test_an_image_can_be_read_by_the_user_it_names(scripts: Path, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    write_archive([trainer_image("mine:dev", ENVIRONMENTS, scripts)], archive)
    (image,) = json.loads(content(archive.read_bytes(), "manifest.json"))
    layer = content(archive.read_bytes(), image["Layers"][0])

    assert b"nonroot:x:65532:65532:" in content(layer, "etc/passwd")
    assert all(info.mode & 0o005 == 0o005 for info in entries(layer).values() if info.isdir())
    assert all(info.mode & 0o004 for info in entries(layer).values())


def test_the_same_images_give_the_same_bytes(scripts: Path, tmp_path: Path) -> None:
    images = [trainer_image("mine:dev", ENVIRONMENTS, scripts), Image("other:1", entrypoint=("/x",))]
    for name in ("one.tar", "two.tar"):
        write_archive(images, tmp_path / name)

    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
