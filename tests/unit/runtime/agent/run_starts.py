"""Starts one command as an agent does: run_starts.py OPTIONS-JSON COMMAND...; its last line reports the result.

OPTIONS: `modules` for a zygote that imports these, absent for exec, with `reads` also the program's imports; `times` it
is started; `cut` kills it as soon as it has reported that only its interpreter's shutdown is left.
"""

import json
import os
import selectors
import signal
import sys
from typing import Any

from perdure.agent import linux
from perdure.agent.launch import Exec, Launcher
from perdure.agent.program import Program, read_program
from perdure.agent.zygote import Zygote
from perdure.wire import Env
from perdure.wire.channel import read_unwound

ANSWER_SECONDS = 60.0
"""More than a zygote takes to fork on a machine that is busy."""


def launcher_of(options: dict[str, Any], command: list[str]) -> Launcher:
    if "modules" not in options:
        return Exec()
    program = read_program(command, os.environ, sys.executable)
    assert isinstance(program, Program), program
    return Zygote(program, command, options["modules"], os.environ, ANSWER_SECONDS, reads=options.get("reads", False))


def cut(report: int, pid: int) -> list[str]:
    """What the program reports; none of its interpreter's end is left to it."""
    told = []
    for line in os.fdopen(report, "rb", closefd=False):
        told.append(line.decode().rstrip())
        if read_unwound(line.rstrip(b"\n")) is not None:
            os.kill(pid, signal.SIGKILL)
    return told


def main() -> None:
    options, command = json.loads(sys.argv[1]), sys.argv[2:]
    linux.adopt_orphans()
    launcher = launcher_of(options, command)
    said: list[str] = []
    with selectors.DefaultSelector() as selector:
        launcher.begin(selector)
        while launcher.warming:
            selector.select(30)
            said += launcher.log_lines()
    statuses, hows, reports = [], [], []
    for number in range(options.get("times", 1)):
        report, write = os.pipe()
        started = launcher.start(command, {**os.environ, "NUMBER": str(number), Env.REPORT_FD: str(write)}, write, 2)
        os.close(write)
        if options.get("cut"):
            reports += cut(report, started.pid)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1]))
        hows.append(started.how)
        os.close(report)
    print("\n" + json.dumps({"statuses": statuses, "hows": hows, "said": said, "reports": reports}), flush=True)


if __name__ == "__main__":
    main()
