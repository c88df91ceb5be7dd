"""A trainer that hangs fails its own test, with its stacks, and no other."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from tests.unit.runtime.live.nursery import FOLDER, Nursery


def hangs() -> None:
    """A trainer that never ends."""
    threading.Event().wait()


def ends() -> str:
    """A trainer that ends at once."""
    return "ended"


def test_a_trainer_that_hangs_writes_its_stacks_and_ends_and_others_go_on(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path, FOLDER, (), seconds=1)
    try:
        assert nursery.wait(nursery.start("one", "test_nursery.hangs", {}, {})) == -signal.SIGABRT
        assert nursery.wait(nursery.start("another", "test_nursery.ends", {}, {})) == 0
        assert "in hangs" in nursery.output("one")
        assert nursery.result("another") == "ended"
    finally:
        nursery.close()
