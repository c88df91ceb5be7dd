"""`make torch-versions`: tests of what knows torch's private names, with each older torch that pyproject.toml promises.

One of them moves a model that FSDP2 shards from two gloo processes to three while it trains, and compares it with what
three processes resume from a commit. `make test` runs all tests with the newest torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from e2e.prepare import torches
from e2e.prepare.basics import REPOSITORY

TESTS: Final = (
    "tests/unit/runtime/live/test_trial.py",
    "tests/unit/runtime/state/test_fully_sharded.py",
    "tests/unit/runtime/live/test_sharded_live.py::test_a_run_of_another_size_goes_on_as_after_a_restart[2-to-3-and-a-block-rests]",
)
PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)


def failed_with(version: str) -> bool:
    """Whether a test fails with this torch."""
    begun = time.monotonic()
    paths = os.pathsep.join(str(REPOSITORY / folder) for folder in ("runtime", "operator"))
    command: list[str | Path] = [torches.python_of(version), *PYTEST, "-n", "2"]
    ended = subprocess.run(command, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": paths}, check=False)
    print(
        f"torch {version}: {'FAILED' if ended.returncode else 'passed'}, {time.monotonic() - begun:.0f} s", flush=True
    )
    return ended.returncode != 0


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether each test that is named here exists")
    if parser.parse_args().check:
        return subprocess.run([sys.executable, *PYTEST, "-q", "--collect-only"], cwd=REPOSITORY, check=False).returncode
    return any([failed_with(version) for version in torches.VERSIONS])  # noqa: C419 - each of them is to run


if __name__ == "__main__":
    sys.exit(main())
