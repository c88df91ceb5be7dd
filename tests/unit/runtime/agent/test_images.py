"""The files in which images outlive a trainer: opened by their path, kept while they are whole, released."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from perdure.agent.images import ImageFiles
from perdure.wire.channel import IMAGE_MAGIC
from tests.unit.runtime.checkpoint.background.parts import open_files


@pytest.fixture
def images() -> Iterator[ImageFiles]:
    one = ImageFiles()
    yield one
    one.next_trainer(0)
    one.forget()


def left(images: ImageFiles, what: bytes, local_rank: int = 0) -> None:
    path = images.place(local_rank)
    assert path
    path.write_bytes(what)


def held(images: ImageFiles, local_rank: int = 0) -> bytes | None:
    paths = images.held(local_rank)
    return paths[0].read_bytes() if paths else None


def open_images() -> int:
    """How many of these files this process has. Others may be closed at any time, with garbage of earlier tests."""
    return sum(name.startswith("/memfd:perdure-image") for name in open_files())


def test_the_first_trainer_finds_nothing(images: ImageFiles) -> None:
    images.next_trainer(2)
    assert (images.held(0), images.held(1)) == ([], [])
    assert images.place(0) != images.place(1)


def test_what_a_trainer_leaves_the_next_one_finds(images: ImageFiles) -> None:
    images.next_trainer(2)
    left(images, IMAGE_MAGIC + b"of rank 1", 1)
    images.next_trainer(2)
    assert (held(images, 0), held(images, 1)) == (None, IMAGE_MAGIC + b"of rank 1")
    path = images.place(1)
    assert path
    assert path.read_bytes() == b""


@pytest.mark.parametrize("torn", [b"", bytes(8) + b"the body of an image that was never finished"])
def test_one_that_is_not_whole_does_not_take_the_place_of_the_one_before(images: ImageFiles, torn: bytes) -> None:
    images.next_trainer(1)
    left(images, IMAGE_MAGIC + b"first")
    images.next_trainer(1)
    left(images, torn)
    images.next_trainer(1)
    assert held(images) == IMAGE_MAGIC + b"first"


def test_of_two_the_newer_one_is_kept(images: ImageFiles) -> None:
    for text in (b"first", b"second"):
        images.next_trainer(1)
        left(images, IMAGE_MAGIC + text)
    images.next_trainer(1)
    assert held(images) == IMAGE_MAGIC + b"second"


def test_one_that_is_of_no_more_use_is_let_go(images: ImageFiles) -> None:
    images.next_trainer(1)
    left(images, IMAGE_MAGIC)
    images.next_trainer(1)
    before = open_images()
    images.forget()
    assert images.held(0) == []
    assert open_images() == before - 1


def test_of_a_mirror_the_whole_snapshots_are_kept_and_the_torn_ones_are_not() -> None:
    images = ImageFiles(mirrors=True)
    images.next_trainer(2)
    files = images.mirror_files(1)
    for path, what in zip(files, [IMAGE_MAGIC + b"own", bytes(8) + b"torn", b"", IMAGE_MAGIC + b"kept"], strict=True):
        path.write_bytes(what)
    assert {path.read_bytes() for path in images.left()} == {IMAGE_MAGIC + b"own", IMAGE_MAGIC + b"kept"}
    before = open_images()
    images.next_trainer(2)
    assert [path.read_bytes() for path in images.held(1)] == [IMAGE_MAGIC + b"own", IMAGE_MAGIC + b"kept"]
    assert images.held(0) == []
    assert [path.read_bytes() for path in images.mirror_files(1)] == [b""] * 4
    assert open_images() == before + 2
    images.next_trainer(0)
    images.forget()


def test_without_a_mirror_there_are_no_files_for_one(images: ImageFiles) -> None:
    images.next_trainer(1)
    assert images.mirror_files(0) == []


def test_no_file_is_inherited_by_a_program_that_is_executed(images: ImageFiles) -> None:
    images.next_trainer(1)
    path = images.place(0)
    assert path
    assert not os.get_inheritable(int(path.name))


def test_where_none_can_be_made_a_line_says_what_that_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_name: str, _flags: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refused)
    images = ImageFiles()
    images.next_trainer(1)
    assert images.place(0) is None
    assert "Function not implemented" in images.trouble
