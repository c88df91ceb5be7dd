"""Runs an agent with settings of a test: run_agent.py SETTINGS-JSON FOLDER COMMAND...

Beside the agent's own: `modules` for a zygote that imports these, and its `answer_seconds`; `looks_late` for a machine
so busy that each trainer has ended before the agent goes on.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.agent.launch import Exec, Launcher, Started
from perdure.agent.paths import Paths
from perdure.agent.program import Program, read_program
from perdure.agent.shell import Agent
from perdure.agent.state import AgentSettings
from perdure.agent.zygote import Zygote
from perdure.wire import Completion

ANSWER_SECONDS = 60.0
"""More than a zygote takes to fork on a machine that is busy."""


class LateExec(Exec):
    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> Started:
        started = super().start(command, environment, report, stderr)
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        return started


def settings_of(given: dict[str, Any]) -> AgentSettings:
    return AgentSettings(**given | {"completion": Completion(given.get("completion", Completion.LOG))})


def launcher_of(given: dict[str, Any], command: list[str]) -> Launcher:
    modules, answer = given.pop("modules", None), given.pop("answer_seconds", ANSWER_SECONDS)
    if given.pop("looks_late", False):
        return LateExec()
    if modules is None:
        return Exec()
    program = read_program(command, os.environ, sys.executable)
    assert isinstance(program, Program), program
    return Zygote(program, command, modules, os.environ, answer)


if __name__ == "__main__":
    given, folder, *command = sys.argv[1:]
    root = Path(folder)
    paths = Paths(root / "assignment", root / "termination-log", root / "state", root / "cgroup")
    settings = json.loads(given)
    launcher = launcher_of(settings, command)
    sys.exit(Agent(command, paths, settings_of(settings), os.environ, launcher).run())
