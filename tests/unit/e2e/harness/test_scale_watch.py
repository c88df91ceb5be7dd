"""The scale bench's counter goes on when the server ends its watch in the middle of a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from e2e.bench.scale_watch import Count
from e2e.cluster.apiserver import ApiServer

KUBECTL = """#!/bin/sh
if [ -e "$0.ran" ]; then cat "$0.second"; exec sleep 60; fi
touch "$0.ran"; cat "$0.first"
"""


class Server:
    """What Count takes of an API server: where kubectl is, and whether all is well."""

    def __init__(self, folder: Path) -> None:
        self.env = {"PATH": f"{folder}:{os.environ['PATH']}"}

    def check(self) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Server:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    (tmp_path / "kubectl.first").write_text(event("a") + event("b")[:20])
    gone: dict[str, Any] = {"type": "ERROR", "object": {"metadata": {}, "code": 410}}
    (tmp_path / "kubectl.second").write_text(json.dumps(gone) + "\n" + event("a") + event("b"))
    return Server(tmp_path)


def event(uid: str) -> str:
    return json.dumps({"type": "ADDED", "object": {"metadata": {"uid": uid}}}) + "\n"


def test_objects_are_counted_once_however_often_a_watch_starts_over(server: Server) -> None:
    with Count(cast(ApiServer, server), "/api/v1/pods?watch=1") as count:
        first, second = count.wait(1, seconds=30), count.wait(2, seconds=30)
    assert first <= second
