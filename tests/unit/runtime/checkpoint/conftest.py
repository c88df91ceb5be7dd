"""For all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.undrawn import undrawn


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    """No save and no load, however it ends, draws what the training script would have drawn."""
    with undrawn():
        yield
