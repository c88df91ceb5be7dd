"""The agent's part in the bench of starts: starting.py ROUNDS, prints JSON. And the script that it starts: no argument.

A program of its own, because who starts trainers adopts what they leave.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import sys
import time
from pathlib import Path
from typing import Any

from perdure.agent import linux
from perdure.agent.launch import Exec, Launcher
from perdure.agent.zygote import MODULES, Zygote, launcher_for
from perdure.contract import Env


def main(rounds: int) -> None:
    linux.adopt_orphans()
    command = [sys.executable, __file__]
    zygote = launcher_for(command, os.environ, 1, sys.executable)
    assert isinstance(zygote, Zygote)
    said: list[str] = []
    with selectors.DefaultSelector() as selector:
        zygote.begin(selector)
        while zygote.warming:
            selector.select()
            said += zygote.news()
    assert zygote.helper, said
    found: dict[str, Any] = {"said": said, "exec": [], "fork": [], "trainer": {}}
    for _ in range(rounds):
        for way, launcher in (("exec", Exec()), ("fork", zygote)):
            seconds, mib = _started(launcher, command)
            found[way].append(seconds)
            found["trainer"][way] = mib
    found["private"] = private_mib(zygote.helper)
    print(json.dumps(found))


def _started(launcher: Launcher, command: list[str]) -> tuple[float, float]:
    """Seconds to the first line, and the memory that is the trainer's alone then."""
    reader, writer = os.pipe()
    begun = time.monotonic()
    pid = launcher.start(command, {**os.environ, "BENCH_BEGUN": repr(begun), Env.REPORT_FD: str(writer)}, writer, 2).pid
    os.close(writer)
    with os.fdopen(reader) as pipe:
        seconds, mib = json.loads(pipe.readline())
    os.waitpid(pid, 0)
    return seconds, mib


def private_mib(pid: int | str) -> float:
    """What would be free without this process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def trainer() -> None:
    for module in MODULES:
        importlib.import_module(module)
    seconds = time.monotonic() - float(os.environ["BENCH_BEGUN"])
    print(json.dumps([seconds, private_mib("self")]), file=os.fdopen(int(os.environ[Env.REPORT_FD]), "w"))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(int(sys.argv[1]))
    else:
        trainer()
