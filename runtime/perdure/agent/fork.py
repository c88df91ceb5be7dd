"""The zygote process: it imports, then forks a trainer at each request, as if a new interpreter had started it.

It only imports (perdure.agent.preload): an OpenMP region entered here would hang every later fork, and a CUDA context
would be useless in one. Each trainer is forked twice, so that the agent adopts it and sees its end. It begins only when
the agent says so, and exits otherwise.

Started by `perdure.agent.zygote` as `python -c ... OPTIONS`. It must not import torch by itself: OPTIONS name the
imports. `run` sets up what a new interpreter would set up for the program.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from perdure.agent import linux
from perdure.agent.imports import imports_of
from perdure.agent.listeners import GroupListeners
from perdure.agent.preload import Unfit, fork, import_found, import_wanted
from perdure.agent.program import Program
from perdure.host.parent import die_with_parent
from perdure.wire import Env
from perdure.wire.channel import write_unwound

MOST_NAMES: Final = 50
"""The most modules listed in a message to the agent, whose size is limited."""

_ADOPTED_POLL_SECONDS: Final = 0.0002
_FILES: Final = 4
"""File descriptors of a request: the channel to the agent, the environment, the report pipe, the stderr pipe."""


@dataclass
class _End:
    """A trainer's last exit handler, because it is registered first, before any import.

    Only the interpreter's shutdown follows, a second or two that the agent need not wait for.
    """

    is_last: bool
    """Whether no handler was registered before it, for instance by sitecustomize."""
    trainer: int = 0
    report: int = -1
    listeners: GroupListeners = field(default_factory=GroupListeners)

    def begin(self, report: int) -> None:
        """Mark this process as a trainer."""
        self.trainer, self.report = os.getpid(), report
        if gloo := getattr(sys.modules.get("torch.distributed"), "ProcessGroupGloo", None):
            self.listeners.watch(gloo)

    def __call__(self) -> None:
        """Collect all garbage, because libraries report uncollected objects as leaks; then flush and report."""
        own = os.getpid() == self.trainer  # not a process that the script has forked
        if own:
            gc.collect()  # finalizers of objects in cycles may still write
        gc.unfreeze()
        if not own:
            return
        _flush()
        if self.is_last:
            write_unwound(self.report, self.listeners.still_open())


def main() -> None:
    """Import and serve. Returns only in a trainer, after its script has ended."""
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
    """Import, and report to the agent. Exits if forks would not work; the agent then executes, or starts another
    zygote."""
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
    """Fork at each request; returns in a trainer that may begin.

    `added` are environment variables that imports set.
    """
    while True:
        message, files, *_ = socket.recv_fds(control, 16, _FILES)
        if not message:
            os._exit(0)  # the agent is gone, or gave this process up
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
    """Fork the trainer; this process between ends at once, so that the agent adopts the trainer."""
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
    die_with_parent()
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
    """Wait until the agent lets it begin; exit if it does not."""
    with channel:
        try:
            channel.send(str(os.getpid()).encode())
            word = channel.recv(16)
        except OSError:
            word = b""
    if not word:
        os._exit(0)


def run(program: Program, command: Sequence[str]) -> None:
    """Run the program in its own `__main__`, and handle an exception as an interpreter does."""
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
    except BaseException as error:  # noqa: BLE001 - any error of a script
        _show(error)
        failed = True
    else:
        failed = False
    if failed:
        raise SystemExit(1)


def _flush() -> None:
    """Flush buffered output now, because the interpreter's shutdown may be cut off."""
    opened = [one for one in gc.get_objects() if type(one) in (io.TextIOWrapper, io.BufferedWriter)]
    texts = [one for one in opened if type(one) is io.TextIOWrapper]
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, *texts, *opened):
        with contextlib.suppress(Exception):  # a script may have closed it, or put anything in its place
            stream.flush()
    linux.flush_stdout()


def _reseed() -> None:
    """Reseed numpy and torch, so that no two processes draw the same; Python's random does it by itself."""
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
    """Print an uncaught exception as the interpreter does, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
