"""What the tests of real processes have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.runtime.live.nursery import Nursery


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One for all tests of a file."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()
