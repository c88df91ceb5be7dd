"""The agent's part in the bench of starts: starting.py ROUNDS, prints JSON. It starts started.py.

A program of its own, because a process that starts trainers adopts their orphans.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.agent import linux
from perdure.agent.launch import Exec, Launcher
from perdure.agent.zygote import Zygote, launcher_for
from perdure.wire import Env

SCRIPT = Path(__file__).with_name("started.py")
UNREAD = {Env.PRELOAD: "json"}
"""A given list of imports counts: the script is not read."""


def main(rounds: int) -> None:
    linux.adopt_orphans()
    command = [sys.executable, str(SCRIPT)]
    said: list[str] = []
    zygotes = {name: _warm(command, environ, said) for name, environ in {"fork": {}, "unread": UNREAD}.items()}
    found: dict[str, Any] = {"said": said, "exec": [], "fork": [], "unread": [], "trainer": {}}
    launchers: dict[str, Launcher] = {"exec": Exec(), **zygotes}
    for _ in range(rounds):
        for way, launcher in launchers.items():
            seconds, mib = _started(launcher, command)
            found[way].append(seconds)
            found["trainer"][way] = mib
    found["private"] = private_mib(zygotes["fork"].helper or 0)
    print(json.dumps(found))


def _warm(command: list[str], environ: Mapping[str, str], said: list[str]) -> Zygote:
    zygote = launcher_for(command, {**os.environ, **environ}, 1, sys.executable)
    assert isinstance(zygote, Zygote)
    with selectors.DefaultSelector() as selector:
        zygote.begin(selector)
        while zygote.warming:
            selector.select()
            said += zygote.log_lines()
    assert zygote.helper, said
    return zygote


def _started(launcher: Launcher, command: list[str]) -> tuple[float, float]:
    """Seconds to the first line, and the trainer's own memory then."""
    reader, writer = os.pipe()
    begun = time.monotonic()
    pid = launcher.start(command, {**os.environ, "BENCH_BEGUN": repr(begun), Env.REPORT_FD: str(writer)}, writer, 2).pid
    os.close(writer)
    with os.fdopen(reader) as pipe:
        seconds, mib = json.loads(pipe.readline())
    os.waitpid(pid, 0)
    return seconds, mib


def private_mib(pid: int | str) -> float:
    """The memory that its end would free."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    main(int(sys.argv[1]))
