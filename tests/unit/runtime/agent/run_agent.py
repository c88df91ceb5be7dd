"""Runs an agent with settings of a test: run_agent.py SETTINGS-JSON FOLDER COMMAND...

Beside the agent's own: `modules` for a zygote that imports these, and its `answer_seconds`; `looks_late` for a machine
so busy that each trainer has ended before the agent goes on, and `ends_as_it_makes_way` for one so busy that a trainer
that only has its interpreter to shut down has ended before the agent looks again.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.agent.launch import Exec, Launcher, Started
from perdure.agent.paths import Paths
from perdure.agent.processes import Children
from perdure.agent.program import Program, read_program
from perdure.agent.shell import Agent
from perdure.agent.state import AgentSettings, MakesWay, ReportReceived
from perdure.agent.zygote import Zygote
from perdure.wire import Completion

ANSWER_SECONDS = 60.0
"""More than a zygote takes to fork on a machine that is busy."""


class LateExec(Exec):
    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> Started:
        started = super().start(command, environment, report, stderr)
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        return started


class LateChildren(Children):
    def pump(self) -> Iterator[ReportReceived | MakesWay]:
        for event in super().pump():
            if isinstance(event, MakesWay):
                pid = next(child.pid for child in self.members if child.rank == event.rank)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            yield event


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
    paths = Paths(
        root / "assignment", root / "termination-log", root / "state", root / "cgroup", root / "report", root / "token"
    )
    settings = json.loads(given)
    launcher, late = launcher_of(settings, command), settings.pop("ends_as_it_makes_way", False)
    agent = Agent(command, paths, settings_of(settings), os.environ, launcher)
    if late:
        agent._children = LateChildren(paths.cgroups, launcher)
    sys.exit(agent.run())
