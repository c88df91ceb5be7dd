"""Real processes for tests: one imports torch, and more, and forks a trainer whenever a test wants one.

`Nursery` is the test's end; the other is this module run as a program. It computes nothing before it forks, as a
thread pool of the parent's would hang its children. A trainer is a function of a module beside the tests; what it
returns (JSON) is in a file. One that hangs writes its stacks into its output and ends: its test fails, and no other.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.forked import Forked
from tests.support.forks import die_with_parent

REPOSITORY = Path(__file__).parents[4]
SECONDS = 120
"""The default timeout of a test's waits."""
ABORT_SECONDS = 20
MARGIN_SECONDS = 30
"""Until a trainer that hangs has ended on a busy machine."""
FOLDER = "tests.unit.runtime.live"
MODULES = ("torch", "torch._dynamo", "perdure.session.session", f"{FOLDER}.scripts", f"{FOLDER}.variants")


class Nursery:
    """Starts trainers, and tells how they have ended."""

    def __init__(
        self, folder: Path, package: str = FOLDER, modules: Sequence[str] = MODULES, *, seconds: float = SECONDS
    ) -> None:
        """`modules` are imported before anything is forked; functions are those of modules of `package`.

        A trainer that a test waits for for longer than `seconds` hangs.
        """
        self.folder = folder
        self.undisturbed: dict[str, dict[str, Any]] = {}
        """See .jobs."""
        self._seconds = seconds
        self._package = package
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        environ |= {"OMP_NUM_THREADS": "1"}
        command = ["-m", "tests.unit.runtime.live.nursery", *modules]
        self._process = Forked(command, cwd=REPOSITORY, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, name: str, function: str, arguments: Mapping[str, Any], environ: Mapping[str, str]) -> int:
        """One more trainer; its process number."""
        whole = f"{self._package}.{function}"
        told = {"name": name, "function": whole, "arguments": dict(arguments), "environ": dict(environ)}
        self._tell({"start": told, "folder": str(self.folder)})
        return int(self._answer()["pid"])

    def wait(self, pid: int) -> int:
        """How it has ended: the exit status, or minus the signal's number."""
        self._tell({"wait": pid, "seconds": self._seconds})
        return int(self._answer()["status"])

    def result(self, name: str) -> Any:
        """What the trainer of this name has returned."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else {"missing": self.output(name)[-4000:]}

    def output(self, name: str) -> str:
        """Its output."""
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        """Ends it, and its children."""
        self._process.kill()
        self._process.communicate()

    def _tell(self, command: Mapping[str, Any]) -> None:
        if self._process.stdin:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def _answer(self) -> Any:
        stdout = self._process.stdout
        if stdout is None or not select.select([stdout], [], [], self._seconds + MARGIN_SECONDS)[0]:
            raise TimeoutError("the nursery does not answer: a trainer is stopped")
        return json.loads(stdout.readline())


def _main() -> None:
    die_with_parent()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # as where the agent forks trainers: what looks at all that lives does not look at this
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        match json.loads(line):
            case {"start": dict(told), "folder": str(folder)}:
                answer = {"pid": _fork(Path(folder), told)}
            case {"wait": int(pid), "seconds": seconds}:
                answer = {"status": _wait(pid, seconds)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _wait(pid: int, seconds: float) -> int:
    """How it has ended. One that hangs gets SIGABRT, at which it writes its stacks, and SIGKILL if it is stopped."""
    process = os.pidfd_open(pid)
    for limit, then in ((seconds, signal.SIGABRT), (ABORT_SECONDS, signal.SIGKILL)):
        if select.select([process], [], [], limit)[0]:
            break
        os.kill(pid, then)
    os.close(process)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(folder: Path, told: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    die_with_parent()
    output = os.open(folder / f"{told['name']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(told["environ"])
    faulthandler.enable(output)  # and not its timer, a thread that tests would count
    status = 1
    try:
        module, _, function = told["function"].rpartition(".")
        result = getattr(importlib.import_module(module), function)(**told["arguments"])
        (folder / f"{told['name']}.json").write_text(json.dumps(result))
        status = 0
    except BaseException:  # noqa: BLE001 - the test reads it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _main()
