"""A drain's end is noted when kubectl returns, and not when a test asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.harness.drain import Drain
from e2e.harness.kubectl import Kubectl
from e2e.harness.watching import Late


def _kubectl(folder: Path, script: str) -> Kubectl:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Kubectl({"PATH": f"{folder}:/usr/bin:/bin"})


def test_a_drain_ended_when_kubectl_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with Drain(_kubectl(tmp_path, 'echo "$@"; exit 3'), "n1") as drain:
        first = drain.finish()
        assert drain.finish() == first
    assert (first.node, first.status, first.output) == ("n1", 3, "drain n1 --ignore-daemonsets\n")
    assert first.started <= first.ended


def test_a_drain_that_does_not_return_is_late_and_says_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with (
        Drain(_kubectl(tmp_path, "echo evicting; exec sleep 60"), "n1") as drain,
        pytest.raises(Late, match="n1 has not come back within 1 s"),
    ):
        drain.finish(seconds=1)
    assert not drain.still_waits()
