"""What counts as a component that has died, and how often a wait looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.folder import Folder
from e2e.cluster.processes import LONGEST_REST_SECONDS, POLL_SECONDS, Processes, rest_after


def processes(root: Path) -> Processes:
    folder = Folder(root)
    folder.pids.mkdir(parents=True)
    return Processes(folder, group="perdure-nobody/components", path="/usr/bin:/bin")


def test_a_component_that_is_just_being_started_has_not_died(tmp_path: Path) -> None:
    some = processes(tmp_path)
    (some.folder.pids / "etcd").touch()  # the shell has opened it and not written yet
    assert some.names() == []


def test_a_component_that_was_stopped_on_purpose_has_not_died(tmp_path: Path) -> None:
    some = processes(tmp_path)
    (some.folder.pids / "kubelet-n9").write_text("1\n")
    assert some.dead() == ["kubelet-n9"]
    some.forget("kubelet-n9")
    assert some.dead() == []


def test_a_process_outside_the_clusters_group_is_none_of_its_components(tmp_path: Path) -> None:
    some = processes(tmp_path)
    (some.folder.pids / "etcd").write_text("1\n")
    assert some.names() == ["etcd"]
    assert some.pid("etcd") is None


def test_looks_that_take_time_come_seldom_but_no_wait_rests_for_long() -> None:
    assert rest_after(0.0) == POLL_SECONDS
    assert rest_after(0.1) == pytest.approx(0.4)
    assert rest_after(60.0) == LONGEST_REST_SECONDS
