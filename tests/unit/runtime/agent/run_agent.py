"""Runs an agent with settings of a test: run_agent.py SETTINGS-JSON FOLDER COMMAND..."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from perdure.agent.paths import Paths
from perdure.agent.shell import Agent
from perdure.agent.state import Settings
from perdure.contract import Completion


def settings_of(given: dict[str, Any]) -> Settings:
    return Settings(**given | {"completion": Completion(given.get("completion", Completion.LOG))})


if __name__ == "__main__":
    given, folder, *command = sys.argv[1:]
    root = Path(folder)
    paths = Paths(root / "assignment", root / "termination-log", root / "state", root / "cgroup")
    sys.exit(Agent(command, paths, settings_of(json.loads(given)), os.environ).run())
