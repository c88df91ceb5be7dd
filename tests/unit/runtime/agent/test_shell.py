"""The assignment file, which the kubelet swaps while the agent reads it."""

from __future__ import annotations

from pathlib import Path

from perdure.agent.shell import AssignmentFile
from perdure.agent.state import AssignmentRead, Unreadable
from perdure.wire import Standby, Train, write_assignment

RUN1 = Train(1, 2, 6, "10.0.0.1:29500")


def swap(volume: Path, version: str, text: str) -> None:
    """Replaces the volume's content as the kubelet does: a new folder, and one rename of a link to it."""
    (volume / version).mkdir(parents=True)
    (volume / version / "assignment").write_text(text)
    (volume / "..data_tmp").symlink_to(version)
    (volume / "..data_tmp").rename(volume / "..data")
    if not (volume / "assignment").is_symlink():
        (volume / "assignment").symlink_to("..data/assignment")


def test_a_file_that_is_not_there_yet_is_no_news(tmp_path: Path) -> None:
    assert AssignmentFile(tmp_path / "assignment").changed() is None


def test_each_swap_of_the_volume_is_seen_once(tmp_path: Path) -> None:
    file = AssignmentFile(tmp_path / "assignment")
    swap(tmp_path, "..1", write_assignment(Standby()))
    assert file.changed() == AssignmentRead(Standby())
    assert file.changed() is None
    swap(tmp_path, "..2", write_assignment(RUN1))
    assert file.changed() == AssignmentRead(RUN1)
    assert file.changed() is None


def test_a_malformed_assignment_is_reported_once(tmp_path: Path) -> None:
    file = AssignmentFile(tmp_path / "assignment")
    swap(tmp_path, "..1", "[]")
    told = file.changed()
    assert isinstance(told, Unreadable)
    assert not told.unsupported
    assert file.changed() is None


def test_an_unknown_version_is_distinguished_from_a_malformed_assignment(tmp_path: Path) -> None:
    swap(tmp_path, "..1", '{"v": 2}')
    told = AssignmentFile(tmp_path / "assignment").changed()
    assert isinstance(told, Unreadable)
    assert told.unsupported
