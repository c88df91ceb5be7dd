"""Runs an agent with settings of a test: run_agent.py SETTINGS-JSON FOLDER COMMAND..."""

import json
import os
import sys
from pathlib import Path

from perdure.agent.paths import Paths
from perdure.agent.shell import Agent
from perdure.agent.state import Settings

if __name__ == "__main__":
    settings, folder, *command = sys.argv[1:]
    root = Path(folder)
    paths = Paths(root / "assignment", root / "termination-log", root / "state")
    sys.exit(Agent(command, paths, Settings(**json.loads(settings)), os.environ).run())
