"""For all tests: how they are spread over processes, that nothing is skipped in silence, that no time is asserted, and
that no test finds what another one has left in the process.
"""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from perdure import console

pytest_plugins = ["e2e.harness.heap", "e2e.harness.skips", "e2e.harness.tiers", "e2e.harness.workers"]

settings.register_profile("untimed", deadline=None)  # a machine may be busy with other tests
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _nobody_speaks() -> Iterator[None]:
    """Lines name the run and the rank of the process's last Session, and some tests never close theirs."""
    yield
    console.fall_silent()


@pytest.fixture(autouse=True)
def _the_collector_works() -> Iterator[None]:
    """A hand-over pauses it; a test that begins one and does not end it would leave it off for all tests after it."""
    yield
    if not gc.isenabled():
        gc.enable()
        pytest.fail("this test has left Python's garbage collector switched off")
