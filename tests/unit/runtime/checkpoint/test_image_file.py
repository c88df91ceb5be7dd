"""An image of another format is refused in words, whatever else is in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from perdure.checkpoint.image_file import FORMAT, Image, Label, read_images, write_image
from perdure.checkpoint.stage import stage
from perdure.errors import Corrupt
from perdure.log.entry import checksum
from perdure.log.images import Stamp
from perdure.state.registry import Registry
from perdure.wire.channel import IMAGE_MAGIC
from tests.unit.runtime.checkpoint.world import UID, position, state


def test_an_image_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.touch()
    label = Label(Stamp(UID, 1, 17, 0, 1), position(17), "a", (), None)
    assert write_image(path, label, stage(state(17), 0, 1), lambda: True)
    assert Image(path).label == label
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), (FORMAT + 1).to_bytes(8, "little"), len(IMAGE_MAGIC))
    with pytest.raises(Corrupt, match=f"has format {FORMAT + 1}, and this version of perdure reads {FORMAT}"):
        Image(path)


def test_a_second_image_counts_behind_the_first_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.touch()
    labels = [Label(Stamp(UID, 1, step, 0, 4), position(step), "a", (), None, (), 1, 2, "l") for step in (17, 18)]
    end = write_image(path, labels[0], stage(state(17), 1, 2), lambda: True)
    seen: list[int] = []

    def still_stands() -> bool:
        seen.append(len(list(read_images(path))))
        return True

    assert write_image(path, labels[1], stage(state(18), 1, 2), still_stands, end) > end
    assert seen == [1]
    assert [image.label for image in read_images(path)] == labels
    assert not write_image(path, labels[1], stage(state(18), 1, 2), lambda: False, end)
    assert [image.label for image in read_images(path)] == labels[:1]


def test_memory_that_is_gone_when_it_is_written_kills_nobody_and_leaves_no_image(tmp_path: Path) -> None:
    """As a script may do while a part is copied: only the kernel reads what is there, and says so if it is not."""
    path, backing, registry = tmp_path / "image", tmp_path / "backing", Registry()
    path.touch()
    backing.write_bytes(bytes(4096))
    model = nn.ParameterList([torch.from_file(str(backing), shared=True, size=1024)])
    registry.add("model", model)
    staged = stage(registry.state(None), 0, 1)
    os.truncate(backing, 0)  # a process that reads the memory itself gets SIGBUS from here on
    label = Label(Stamp(UID, 1, 17, 0, 1), position(17), "a", (), None)
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        write_image(path, label, staged, lambda: True)
    with pytest.raises(Corrupt):
        Image(path)


def test_one_that_has_another_checksum_than_the_state_had_is_not_left(tmp_path: Path) -> None:
    path, staged = tmp_path / "image", stage(state(17), 0, 1)
    path.touch()
    label = Label(Stamp(UID, 1, 17, 0, 1), position(17), "a", (), None)
    whole = checksum(b"".join(map(bytes, staged.blocks())))
    assert write_image(path, label, staged, lambda: True, whole=whole)
    assert not write_image(path, label, stage(state(18), 0, 1), lambda: True, whole=whole)
    with pytest.raises(Corrupt):
        Image(path)
