"""For all tests: how they are spread over processes, and that nothing is skipped in silence."""

pytest_plugins = ["e2e.harness.skips", "e2e.harness.tiers", "e2e.harness.workers"]
