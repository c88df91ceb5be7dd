"""Starts one command as an agent does: run_starts.py OPTIONS-JSON COMMAND...; its last line tells what came of it.

OPTIONS: `modules` for a zygote that imports these, absent for exec, with `reads` also what the program does; `times` it
is started.
"""

import json
import os
import selectors
import sys
from typing import Any

from perdure.agent import linux
from perdure.agent.launch import Exec, Launcher
from perdure.agent.program import Program, read_program
from perdure.agent.zygote import Zygote
from perdure.contract import Env


def launcher_of(options: dict[str, Any], command: list[str]) -> Launcher:
    if "modules" not in options:
        return Exec()
    program = read_program(command, os.environ, sys.executable)
    assert isinstance(program, Program), program
    return Zygote(program, command, options["modules"], os.environ, reads=options.get("reads", False))


def main() -> None:
    options, command = json.loads(sys.argv[1]), sys.argv[2:]
    linux.adopt_orphans()
    launcher = launcher_of(options, command)
    said: list[str] = []
    with selectors.DefaultSelector() as selector:
        launcher.begin(selector)
        while launcher.warming:
            selector.select(30)
            said += launcher.news()
    statuses, hows = [], []
    for number in range(options.get("times", 1)):
        report, write = os.pipe()
        started = launcher.start(command, {**os.environ, "NUMBER": str(number), Env.REPORT_FD: str(write)}, write, 2)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1]))
        hows.append(started.how)
        os.close(report)
        os.close(write)
    print("\n" + json.dumps({"statuses": statuses, "hows": hows, "said": said}), flush=True)


if __name__ == "__main__":
    main()
