"""For all tests: how they are spread over processes, that nothing is skipped in silence, that no time is asserted."""

from hypothesis import settings

pytest_plugins = ["e2e.harness.heap", "e2e.harness.skips", "e2e.harness.tiers", "e2e.harness.workers"]

settings.register_profile("untimed", deadline=None)  # a machine may be busy with other tests
settings.load_profile("untimed")
