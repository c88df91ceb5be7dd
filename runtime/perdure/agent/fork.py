"""The zygote itself: imports, then becomes a trainer at each request, as if that had been started by a new interpreter.

It only imports: an OpenMP region entered here would hang every process forked later, a CUDA context would be useless in
it. Whether a fork of this process can compute is tried once, by one. Each trainer is forked twice, so that the agent
adopts it and sees its end; it begins only when the agent says so, and is gone if that never comes.

Started by `perdure.agent.zygote` as `python -c ... OPTIONS`; must not import torch by itself: OPTIONS name what to
import. `become` is everything that a new interpreter would have set up for the program.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from perdure.agent import linux
from perdure.agent.program import Program
from perdure.contract import Env

PROBE_SECONDS: Final = 10.0
"""What a fork gets to add numbers up: a moment, or for ever."""
_PARALLEL: Final = 1 << 20
"""Elements: enough for torch to use all of its threads."""
_ADOPTED_POLL_SECONDS: Final = 0.0002
_FILES: Final = 4
"""With each request: the channel to the agent, the environment, the report pipe, the stderr pipe."""


def main() -> None:
    """Imports and serves; returns only in a trainer, whose script has ended by itself."""
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
    _import(options["modules"], control)
    _serve(control, options["agent"])
    run(program, options["command"])


def _import(modules: Sequence[str], control: socket.socket) -> None:
    """Tells the agent how it went; does not return where trainers had better be executed."""
    begun = time.monotonic()
    gc.disable()
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - whatever a library raises: the agent executes instead
            _fail(control, f"{module} cannot be imported: {type(error).__name__}: {error}")
    if trouble := _trouble():
        _fail(control, trouble)
    gc.freeze()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    control.send(json.dumps({"seconds": time.monotonic() - begun, "mib": mib}).encode())


def _fail(control: socket.socket, why: str) -> NoReturn:
    control.send(json.dumps({"failed": why[:4000]}).encode())
    os._exit(1)


def _trouble() -> str:
    """Why a fork of this process would not be a good trainer; empty if it would."""
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        return f"what it imports has started threads, which no fork has: {', '.join(others)}"
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return ""
    if torch.cuda.is_initialized():
        return "what it imports has started CUDA, which no fork can use"
    pid = _fork()
    if pid == 0:
        torch.ones(_PARALLEL).sum()
        os._exit(0)
    end = time.monotonic() + PROBE_SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.005)
    if ended[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "a fork of it hangs: something that it imports computes with several threads"
    return f"a fork of it cannot compute: status {os.waitstatus_to_exitcode(ended[1])}" if ended[1] else ""


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any thread; BLAS sees to its own
        return os.fork()


def _serve(control: socket.socket, agent: int) -> None:
    """Forks at each request; returns in a process that has been told to begin."""
    while True:
        message, files, *_ = socket.recv_fds(control, 16, _FILES)
        if not message:
            os._exit(0)  # the agent is gone, or has given this process up
        try:
            between = _fork()
        except OSError:  # the agent sees the channel closed, and executes
            between = -1
        if between == 0:
            control.close()
            _fork_again(agent, *files)
            return
        for file in files:
            os.close(file)
        if between > 0:
            os.waitpid(between, 0)


def _fork_again(agent: int, channel: int, request: int, report: int, stderr: int) -> None:
    """The process between ends at once, so that the agent adopts the one behind it."""
    parent = os.getpid()
    try:
        pid = _fork()
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
    os.environ.update(environment | {Env.REPORT_FD: str(report)})


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
    atexit.register(gc.unfreeze)  # the last of the handlers: what nobody collects at the end, libraries tell as leaks
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
