"""The zygote itself: imports, then becomes a trainer at each request, as if that had been started by a new interpreter.

It only imports (perdure.agent.preload): an OpenMP region entered here would hang every process forked later, a CUDA
context would be useless in it. Each trainer is forked twice, so that the agent adopts it and sees its end; it begins
only when the agent says so, and is gone if that never comes.

Started by `perdure.agent.zygote` as `python -c ... OPTIONS`; must not import torch by itself: OPTIONS name what to
import. `become` is everything that a new interpreter would have set up for the program.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib.machinery
import io
import json
import os
import runpy
import socket
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from perdure.agent import linux
from perdure.agent.imports import imports_of
from perdure.agent.preload import Unfit, fork, import_found, import_wanted
from perdure.agent.program import Program
from perdure.wire import Env
from perdure.wire.channel import write_unwound

MOST_NAMES: Final = 50
"""So many modules found in the script are told: a message has an end."""

_ADOPTED_POLL_SECONDS: Final = 0.0002
_FILES: Final = 4
"""With each request: the channel to the agent, the environment, the report pipe, the stderr pipe."""


@dataclass
class _End:
    """The last of a trainer's exit handlers: it is the first that is registered, before anything is imported.

    What comes after it is the interpreter's own end, a second or two that somebody may wait for: nobody has to.
    """

    is_last: bool
    """Nobody was before it, as what is started with the interpreter may be (sitecustomize)."""
    trainer: int = 0
    report: int = -1

    def begin(self, report: int) -> None:
        """This process is a trainer from now on."""
        self.trainer, self.report = os.getpid(), report

    def __call__(self) -> None:
        """Collected is all there is: what nobody collects at the end, libraries tell as leaks."""
        own = os.getpid() == self.trainer  # not a process that the script has forked
        if own:
            gc.collect()  # what lies in cycles writes now what it has to write
        gc.unfreeze()
        if not own:
            return
        _flush()
        if self.is_last:
            write_unwound(self.report)


def main() -> None:
    """Imports and serves; returns only in a trainer, whose script has ended by itself."""
    end = _End(atexit._ncallbacks() == 0)  # noqa: SLF001 - nothing else tells
    atexit.register(end)
    options = json.loads(sys.argv[1])
    program = Program(
        options["interpreter"],
        options["target"],
        options["module"],
        options["unbuffered"],
        tuple(options["arguments"]),
    )
    control = socket.socket(fileno=options["control"])
    if not sys.flags.safe_path:
        sys.path.insert(0, program.folder)
    sys.argv = program.argv  # libraries may look at it
    before = set(os.environ)
    _import(options, program, control, ends_last=end.is_last)
    added = {name: value for name, value in os.environ.items() if name not in before}
    _serve(control, options["agent"], added)
    end.begin(int(os.environ[Env.REPORT_FD]))
    run(program, options["command"])


def _import(options: Mapping[str, Any], program: Program, control: socket.socket, *, ends_last: bool) -> None:
    """Tells the agent how it went; does not return where trainers had better be executed, or it is begun anew."""
    begun = time.monotonic()
    gc.disable()
    found: list[str] = []
    try:
        import_wanted(options["modules"])
        if options["reads"]:
            found = import_found(imports_of(program.target, module=program.module), options["without"])
    except Unfit as unfit:
        _fail(control, unfit)
    gc.freeze()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    warm = {"seconds": time.monotonic() - begun, "mib": mib, "found": found[:MOST_NAMES], "ends_last": ends_last}
    _tell(control, warm)


def _fail(control: socket.socket, unfit: Unfit) -> NoReturn:
    _tell(control, {"failed": str(unfit)[:4000], "package": unfit.package})
    os._exit(1)


def _tell(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.send(json.dumps(message).encode())


def _serve(control: socket.socket, agent: int, added: Mapping[str, str]) -> None:
    """Forks at each request; returns in a process that has been told to begin.

    `added` are variables that imports have set for what comes after them.
    """
    while True:
        message, files, *_ = socket.recv_fds(control, 16, _FILES)
        if not message:
            os._exit(0)  # the agent is gone, or has given this process up
        try:
            between = fork()
        except OSError:  # the agent sees the channel closed, and executes
            between = -1
        if between == 0:
            control.close()
            _fork_again(agent, added, files)
            return
        for file in files:
            os.close(file)
        if between > 0:
            os.waitpid(between, 0)


def _fork_again(agent: int, added: Mapping[str, str], files: Sequence[int]) -> None:
    """The process between ends at once, so that the agent adopts the one behind it."""
    channel, request, report, stderr = files
    parent = os.getpid()
    try:
        pid = fork()
    except OSError:
        os._exit(1)
    if pid:
        os._exit(0)
    os.setsid()
    while os.getppid() == parent:
        time.sleep(_ADOPTED_POLL_SECONDS)
    linux.die_with_parent()
    if os.getppid() != agent:
        os._exit(0)
    with os.fdopen(request, "rb") as file:
        file.seek(0)
        environment = json.load(file)
    os.dup2(stderr, 2)
    os.close(stderr)
    os.set_inheritable(report, True)
    _begin(socket.socket(fileno=channel))
    os.environ.clear()
    os.environ.update({**added, **environment, Env.REPORT_FD: str(report)})


def _begin(channel: socket.socket) -> None:
    """Waits for the agent's word; without it this process has never been."""
    with channel:
        try:
            channel.send(str(os.getpid()).encode())
            word = channel.recv(16)
        except OSError:
            word = b""
    if not word:
        os._exit(0)


def run(program: Program, command: Sequence[str]) -> None:
    """Runs the program in a `__main__` of its own; ends the process as an interpreter does where it raises."""
    gc.enable()
    _reseed()
    linux.name_process(Path(program.target).name)  # its command line is the zygote's
    sys.argv, sys.orig_argv = program.argv, list(command)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__dict__.update(__annotations__={}, __builtins__=builtins)
    try:
        if program.module:
            runpy._run_module_as_main(program.target)  # type: ignore[attr-defined] # noqa: SLF001 - what -m itself calls
        else:
            _run_script(os.path.join(os.getcwd(), program.target), module)  # noqa: PTH109, PTH118 - as Python does
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a script raises
        _show(error)
        failed = True
    else:
        failed = False
    if failed:
        raise SystemExit(1)


def _flush() -> None:
    """What is printed, or written to a pipe, and lies in a buffer: the interpreter's end writes it, if it comes."""
    opened = [one for one in gc.get_objects() if type(one) in (io.TextIOWrapper, io.BufferedWriter)]
    texts = [one for one in opened if type(one) is io.TextIOWrapper]
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, *texts, *opened):
        with contextlib.suppress(Exception):  # a script may have closed it, or put anything in its place
            stream.flush()
    linux.flush_stdout()


def _reseed() -> None:
    """No two processes draw the same; Python's own random sees to it by itself."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def _run_script(path: str, module: types.ModuleType) -> None:
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    source = Path(path).read_bytes()
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - it is the user's script


def _show(error: BaseException) -> None:
    """As the interpreter does for an exception that nobody has caught, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
