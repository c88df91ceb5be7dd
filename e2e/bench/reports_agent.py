"""An agent of `e2e.bench reports`: as `perdure run`, but its channel and its token lie beside its assignment."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from perdure.agent.paths import Paths
from perdure.agent.shell import Agent
from perdure.agent.zygote import launcher_for
from perdure.cli.main import settings_from

CHANNEL = "report"
TOKEN = "token"
"""The names of the files."""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--assignment", "--termination-log", "--state"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("trainer", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.state.mkdir(mode=0o700)
    folder, command = options.assignment.parent, options.trainer[1:]
    paths = Paths(
        assignment=options.assignment,
        termination_log=options.termination_log,
        scratch=options.state,
        channel=folder / CHANNEL,
        report_token=folder / TOKEN,
    )
    settings = settings_from(os.environ)
    launcher = launcher_for(command, os.environ, settings.processes, sys.executable)
    return Agent(command, paths, settings, os.environ, launcher).run()


if __name__ == "__main__":
    sys.exit(main())
