"""The agent's side of the zygote: a process with all imports of a trainer, which forks one in milliseconds.

It saves a trainer its imports (4-15 s). If anything is wrong with it, the agent executes the command instead, and the
pod's log says why. The agent kills a zygote that does not answer in time. A forked process begins only when the agent
says so, so a zygote that thaws later starts no second trainer. `perdure.agent.fork` is the process itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perdure.agent.environ import with_threads
from perdure.agent.launch import Exec, Launcher, Started
from perdure.agent.linux import cpu_limit
from perdure.agent.program import Program, Unsuited, read_program
from perdure.host.parent import die_with_parent
from perdure.wire import Env

ANSWER_SECONDS: Final = 5.0
"""A fork takes 0.02 s. The agent blocks meanwhile, so this must be short compared with its deadlines."""
MODULES: Final = ("perdure.session.session", "torch._dynamo")
"""Always imported. torch comes with them, and creating an optimizer would import torch._dynamo (5 s)."""
S3_MODULES: Final = ("perdure.store.s3", "perdure.store.clients")
MOST_ATTEMPTS: Final = 3
"""How many packages are left out by name before the zygote imports nothing of the script's."""
NO_PRELOAD: Final = "none"
"""The value of PERDURE_PRELOAD for no zygote, which takes memory."""

_MAIN: Final = "import sys; sys.flags.safe_path or sys.path.pop(0); from perdure.agent.fork import main; main()"
"""Removes the working directory, which -c puts first on sys.path; the program's own folder follows."""
_LARGEST_MESSAGE: Final = 65536


def launcher_for(command: Sequence[str], environ: Mapping[str, str], processes: int, executable: str) -> Launcher:
    """The launcher for this command: a zygote if one can run it; `executable` is the agent's interpreter."""
    preload = environ.get(Env.PRELOAD, "").replace(",", " ").split()
    reads = not environ.get(Env.PRELOAD)
    if preload == [NO_PRELOAD]:
        return Exec(_without(f"{Env.PRELOAD} is {NO_PRELOAD}"))
    program = read_program(command, environ, executable)
    if isinstance(program, Unsuited):
        return Exec(_without(program.why))
    s3 = S3_MODULES if environ.get(Env.ROOT, "").startswith("s3://") else ()
    environment = with_threads(environ, cpu_limit(), processes)
    return Zygote(program, command, [*MODULES, *s3, *preload], environment, reads=reads)


def _without(why: str) -> str:
    return f"there is no zygote: {why}: each start executes the command"


class Zygote:
    """A launcher that forks, or executes if it cannot."""

    def __init__(
        self,
        program: Program,
        command: Sequence[str],
        modules: Sequence[str],
        environ: Mapping[str, str],
        answer_seconds: float = ANSWER_SECONDS,
        *,
        reads: bool = False,
    ) -> None:
        """`modules` are always imported; with `reads` also what the program's source imports."""
        self._program, self._command, self._modules = program, list(command), list(modules)
        self._environ = dict(environ)
        self._reads = reads
        self._without: list[str] = []
        """Packages of the program that only trainers import."""
        self._answer_seconds = answer_seconds
        self._exec = Exec()
        self._control: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._warm = False
        self._why = "it was never started"
        self._unsaid: list[str] = []
        self.helper: int | None = None

    @property
    def warming(self) -> bool:
        """Whether it is still importing."""
        return self._control is not None and not self._warm

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Start the process, which begins to import."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        program = self._program
        options = {"control": theirs.fileno(), "modules": self._modules, "command": self._command, "agent": os.getpid()}
        options |= {"target": program.target, "module": program.module, "arguments": program.arguments}
        options |= {"interpreter": program.interpreter, "unbuffered": program.unbuffered}
        options |= {"reads": self._reads, "without": self._without}
        flags = ["-u"] if program.unbuffered else []
        try:
            process = subprocess.Popen(
                [program.interpreter, *flags, "-c", _MAIN, json.dumps(options)],
                # Without it torch.cuda.is_available() would start CUDA, which does not survive a fork.
                env=self._environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - safe: the agent has no threads
            )
        except OSError as error:
            ours.close()
            self._give_up(f"it cannot be started: {error.strerror}")
            return
        finally:
            theirs.close()
        process.returncode = 0  # keeps Popen from waiting for it: the agent's waitpid(-1) does
        self.helper, self._control, self._selector = process.pid, ours, selector
        selector.register(ours, selectors.EVENT_READ)
        more = ", and what is found in the script" if self._reads else ""
        self._unsaid.append(f"the zygote imports {', '.join(self._modules)}{more}")

    def log_lines(self) -> Iterator[str]:
        """See Launcher."""
        while self._control is not None:
            try:
                message = self._control.recv(_LARGEST_MESSAGE)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if message:
                self._take(json.loads(message))
            elif self._warm:
                self._give_up("it has ended")
            else:
                self._begin_without("", "it has ended while it imported")
        said, self._unsaid = self._unsaid, []
        yield from said

    def _take(self, message: Mapping[str, Any]) -> None:
        if "failed" in message:
            if message["package"] is None:
                self._give_up(str(message["failed"]))
            else:
                self._begin_without(str(message["package"]), str(message["failed"]))
            return
        self._warm = True
        found = f", with {', '.join(message['found'])}" if message["found"] else ""
        self._unsaid.append(f"the zygote is warm: {message['seconds']:.1f} s, {message['mib']:.0f} MiB{found}")
        if not message["ends_last"]:
            self._unsaid.append("the agent waits for each trainer's end: other exit handlers were registered first")

    def _begin_without(self, package: str, why: str) -> None:
        """Start again without a package of the script, which must not keep trainers from being forked."""
        selector = self._selector
        if not self._reads or selector is None:
            self._give_up(why)
            return
        if package and len(self._without) < MOST_ATTEMPTS:
            self._without.append(package)
            self._unsaid.append(f"only trainers import {package}: {why}")
        else:
            self._reads = False
            self._unsaid.append(f"only trainers import what the script imports: {why}")
        self._end()
        self.begin(selector)

    def _give_up(self, why: str) -> None:
        """Give the zygote up: from now on each start executes the command."""
        self._why, self._warm = why, False
        self._unsaid.append(_without(why))
        self._end()

    def _end(self) -> None:
        if self._control is not None and self._selector is not None:
            self._selector.unregister(self._control)
            self._control.close()
            self._control = None
        if self.helper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.helper, signal.SIGKILL)
            self.helper = None

    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> Started:
        """See Launcher."""
        why = self._unable()
        if not why:
            pid = self._forked(environment, report, stderr)
            if pid is not None:
                return Started(pid, "forked from the zygote")
            why = self._why
        return self._exec.start(command, environment, report, stderr)._replace(how=f"executed: {why}")

    def _unable(self) -> str:
        """Why it cannot fork now; "" if it can."""
        if self._control is None:
            return self._why
        if not self._warm:
            return "the zygote is still importing"
        if not self._program.module and not Path(self._program.target).is_file():
            return f"{self._program.target} is no file"
        return ""

    def _forked(self, environment: Mapping[str, str], report: int, stderr: int) -> int | None:
        """The new process, which has begun; None if no process was forked, and none will be."""
        if self._control is None:
            return None
        try:
            pid = self._asked(self._control, environment, report, stderr)
        except TimeoutError:
            self._give_up(f"it did not fork within {self._answer_seconds:g} s")
        except OSError as error:
            self._give_up(f"it cannot be asked: {error.strerror}")
        else:
            if pid is None:
                self._give_up("it could not fork")
            return pid
        return None

    def _asked(self, control: socket.socket, environment: Mapping[str, str], report: int, stderr: int) -> int | None:
        """Ask for a fork and let it begin; None if the zygote could not fork. Raises OSError or TimeoutError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, tempfile.TemporaryFile() as request:  # a file, because a socket takes only so much at once
            with theirs:
                request.write(json.dumps(dict(environment)).encode())
                request.flush()
                socket.send_fds(control, [b"fork"], [theirs.fileno(), request.fileno(), report, stderr])
            ours.settimeout(self._answer_seconds)
            answer = ours.recv(64)
            if not answer:
                return None
            ours.send(b"go")
            return int(answer)
