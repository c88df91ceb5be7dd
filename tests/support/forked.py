"""Python programs that start in no time: forked from a process that has imported torch and Perdure, and no more.

`Forked` is a `subprocess.Popen` of this interpreter, or of another one; its process is a child of the test's own, ends
with it, and finds what a new interpreter would have set up: arguments, `__main__`, working directory, environment,
files, random numbers. What a library or the interpreter reads once, at its start, is as in a process that is executed,
too: each such environment has a parent of its own. A parent that has imported more is forked from it. What differs:
modules are imported, the collector leaves them out, as in what an agent's zygote forks, sets have one order in all of
an environment's processes, and the interpreter ends after its exit handlers, without taking its modules down (a
second). Tests that look at these execute theirs.

`ForkedAgent` is an agent whose first zygote is forked as well. What this zygote forks is as in a pod, but that it ends
as above.
`ForkedLauncher` is torchrun, whose ranks are forked as well.
`forked_ranks` makes `perdure.testing.processes` fork its ranks, and `run_forked` is subprocess.run.

The parent is this module run as a program. It forks twice, so that the test's process, for this moment a subreaper,
adopts the one behind.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, ClassVar

from perdure.host.parent import die_with_parent

MODULES = ("torch", "torch._dynamo", "perdure.session.session")
"""With what torch imports when the first optimizer is made."""
EXAMPLES = ("sklearn.datasets",)
"""What examples/digits imports: agents of tests train it."""
READ_AT_A_START = (
    *("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "TZ", "TMP", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("TORCH", "CUDA_", "HF_"),
)
"""Gloo reads its own when it connects."""
POLL_SECONDS = 0.0002
_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES, _MOST_FILES = 1 << 20, 32


class Executed(subprocess.Popen[str]):
    """`python ARGUMENTS`; of Popen's options it knows those that it names."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        python: str = sys.executable,
    ) -> None:
        """As Popen does."""
        super().__init__(
            [python, *arguments],
            cwd=cwd,
            env=env,
            pass_fds=pass_fds,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )


class Forked(Executed):
    """The same, forked; where there is no subreaper, it is executed."""

    _is_agent = _is_keeper = _is_launcher = False
    _modules: Sequence[str] = MODULES

    def _execute_child(self, *given: Any) -> None:
        execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        if sys.platform != "linux":
            execute(self, *given)
            return
        asked = inspect.signature(execute).bind(self, *given).arguments
        request, files = _request(asked)
        try:
            request |= {"agent": self._is_agent, "keeper": self._is_keeper, "launcher": self._is_launcher}
            with _ONE_AT_A_TIME:
                self.pid = _Parent.of(asked["args"][0], asked["env"], self._modules).child(request, files)
            self._child_created = True
        finally:
            self._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]


class ForkedRank(Forked):
    """A rank of examples/digits."""

    _modules = (*MODULES, *EXAMPLES)

    @classmethod
    def start(cls, command: Sequence[str], **options: Any) -> ForkedRank:
        """What e2e.harness.local_run asks for."""
        del options["text"]  # it always is
        return cls(command[1:], python=command[0], **options)


class ForkedAgent(Forked):
    """`python -m perdure.cli.main run ...`, and a process that has imported torch and becomes its zygote.

    A second zygote is executed.
    """

    _is_agent, _modules = True, (*MODULES, *EXAMPLES)


class ForkedKeeper(Forked):
    """`python -m perdure.testing.keeper ...`, in a session of its own, and the rank that it starts."""

    _is_keeper = True

    def __init__(self, modules: Sequence[str], command: Sequence[str], *, start_new_session: bool, **options: Any):
        """As perdure.testing.processes asks for it."""
        assert start_new_session
        self._modules = (*MODULES, *modules)
        super().__init__(command[1:], python=command[0], **options)


class ForkedLauncher(Forked):
    """`python -m torch.distributed.run ...`: the Python processes that it starts are forked from one of its own."""

    _is_launcher = True


def run_forked(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float,
    start: type[Forked] = Forked,
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` to its end, forked, with what it has written."""
    process = start(arguments, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(arguments, process.returncode, *said)


@contextmanager
def forked_ranks(*modules: str) -> Iterator[None]:
    """The ranks of perdure.testing.processes are forked from a process that has imported these modules, too."""
    module: Any = importlib.import_module("perdure.testing.processes")
    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT", "TimeoutExpired")}
    module.subprocess = types.SimpleNamespace(Popen=partial(ForkedKeeper, modules), **names)
    try:
        yield
    finally:
        module.subprocess = subprocess


_ONE_AT_A_TIME = threading.Lock()
"""Several threads of a test may start processes."""
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _request(asked: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """What Popen's arguments ask for, and the files that go with it."""
    ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    files = [own if end == -1 else end for own, end in enumerate(ends)]
    request = {
        "command": asked["args"],
        "cwd": str(asked["cwd"] or Path.cwd()),
        "environ": dict(asked["env"]),
        "numbers": [0, 1, 2, *asked["pass_fds"]],
    }
    return request, [*files, *asked["pass_fds"]]


class _Parent:
    """The test's end of a process that forks; it ends with the test's."""

    _ALL: ClassVar[dict[str, _Parent]] = {}
    _PROCESSES: ClassVar[list[subprocess.Popen[bytes]]] = []

    @classmethod
    def of(cls, python: str, environ: Mapping[str, str], modules: Sequence[str]) -> _Parent:
        """That of this interpreter and environment with these modules; started when it is first asked for."""
        assert tuple(modules[: len(MODULES)]) == MODULES
        lasting = {name: value for name, value in environ.items() if name.startswith(READ_AT_A_START)}
        further = modules[len(MODULES) :]
        key = json.dumps([os.getpid(), python, lasting, further], sort_keys=True)
        if key not in cls._ALL:
            found = {name: environ[name] for name in ("PATH", "HOME") if name in environ}
            cls._ALL[key] = (
                cls.of(python, environ, MODULES)._with(further) if further else cls._started(python, lasting | found)
            )
        return cls._ALL[key]

    @classmethod
    def _started(cls, python: str, environ: Mapping[str, str]) -> _Parent:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            cls._PROCESSES.append(
                subprocess.Popen(
                    [python, __file__, str(theirs.fileno())],
                    env=environ,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            )
        return cls(ours)

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def _with(self, modules: Sequence[str]) -> _Parent:
        """One that has imported these, too."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [json.dumps({"modules": modules}).encode()], [theirs.fileno()])
        return _Parent(ours)

    def child(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        """The number of a new process, which is a child of this one."""
        with _subreaper():
            socket.send_fds(self._control, [json.dumps(request).encode()], files)
            answer = self._control.recv(16)
        assert answer, "the process that forks has ended"
        return int(answer)


@contextmanager
def _subreaper() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _serve(control: socket.socket, handlers: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Forks at each request; returns the request in the process that should run its command."""
    while True:
        message, files, *_ = socket.recv_fds(control, _MOST_BYTES, _MOST_FILES)
        if not message:
            os._exit(0)
        request: dict[str, Any] = json.loads(message)
        if "modules" in request:
            if not os.fork():
                control.close()
                control = socket.socket(fileno=files[0])
                die_with_parent()
                _import(request["modules"], handlers)
            else:
                os.close(files[0])
            continue
        between = os.fork()
        if between:
            for file in files:
                os.close(file)
            os.waitpid(between, 0)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:
            time.sleep(POLL_SECONDS)
        control.send(str(os.getpid()).encode())
        return _become(control, request, files)


def _import(modules: Sequence[str], handlers: list[tuple[Any, ...]]) -> None:
    """The collector leaves out what this makes; their exit handlers go to the others."""
    gc.disable()  # it would look at all that imports have made, again and again
    with _recorded(handlers):
        for module in modules:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()


def _become(control: socket.socket, request: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
    """This process has what the request names, and nothing else; the request."""
    control.detach()  # otherwise its end would close a reused descriptor
    _take(files, request["numbers"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    return request


def _take(files: Sequence[int], numbers: Sequence[int]) -> None:
    """These files, under these numbers, are all that is open."""
    free = max(*numbers, *files) + 1
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, free) for file in files]
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) not in numbers:
            _close(int(path.name))


def _close(file: int) -> None:
    try:
        os.close(file)
    except OSError:  # the listing's own
        return


class _End:
    """The last of all exit handlers: it is registered before anything is imported."""

    def __init__(self) -> None:
        self.process, self.status = 0, 0

    def __call__(self) -> None:
        if os.getpid() == self.process:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # a script may have closed it, or put anything in its place
                    stream.flush()
            if self.status < 0:
                signal.signal(-self.status, signal.SIG_DFL)
                os.kill(self.process, -self.status)
            os._exit(self.status)


def _run(command: Sequence[str], end: _End) -> None:
    """As the interpreter would."""
    end.process = os.getpid()
    sys.modules["numpy"].random.seed()  # Python's own sees to it by itself
    sys.modules["torch"].default_generator.seed()
    sys.orig_argv[:] = command
    first, *rest = command[1:]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    try:
        if first == "-m":
            sys.argv, sys.path = rest, [str(Path.cwd()), *sys.path]
            runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined] # what -m itself calls
        elif first == "-c":
            sys.argv, sys.path = ["-c", *rest[1:]], ["", *sys.path]
            exec(compile(rest[0], "<string>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        else:
            path = Path(first).absolute()
            sys.argv, sys.path = [first, *rest], [str(path.resolve().parent), *sys.path]
            loader = importlib.machinery.SourceFileLoader("__main__", str(path))
            module.__dict__.update(__file__=str(path), __cached__=None, __loader__=loader)
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except SystemExit as left:
        end.status = _status_of(left)
        raise
    except BaseException as error:  # noqa: BLE001 - any error of a program
        end.status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        _show(error)


def _status_of(left: SystemExit) -> int:
    code = 0 if left.code is None else left.code
    return code & 0xFF if isinstance(code, int) else 1


def _call(call: Any, end: _End, command: Sequence[str], *, close_fds: bool, preexec_fn: Callable[[], object]) -> int:
    """subprocess.call of a rank in its keeper."""
    assert not close_fds
    if rank := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    preexec_fn()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    subprocess.call = call
    sys.path.pop(0)  # the keeper's own
    with contextlib.suppress(SystemExit):  # it would go through what the keeper does in the end
        _run(command, end)
    threading._shutdown()  # type: ignore[attr-defined] # what the interpreter itself calls
    atexit._run_exitfuncs()
    raise AssertionError("the last exit handler ends the process")


def _zygote(handlers: Sequence[tuple[Any, ...]]) -> types.CodeType | None:
    """Forks a process that waits until the agent starts its zygote, and returns there the command to execute.

    It is forked before the agent has begun, so it inherits nothing of the agent's.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        subprocess.Popen._execute_child = partialmethod(_start_zygote, subprocess.Popen._execute_child, pid, ours)  # type: ignore[attr-defined]
        return None
    ours.close()
    die_with_parent()
    message, files, *_ = socket.recv_fds(theirs, _MOST_BYTES, _MOST_FILES)
    if not message:
        os._exit(0)
    request = _become(theirs, json.loads(message), files)
    os.setsid()
    _register_first(handlers)
    script, options = request["command"][-2:]
    sys.argv, sys.path, sys.orig_argv = ["-c", options], ["", *sys.path], request["command"]
    return compile(script, "<string>", "exec", dont_inherit=True)


def _be_zygote(zygote: types.CodeType, end: _End) -> None:
    """Returns, or raises, in a trainer that it has forked."""
    try:
        exec(zygote, {"__name__": "__main__"})  # noqa: S102 - what the agent has asked for
    except SystemExit as left:  # the zygote sees to any other error of a script
        end.status = _status_of(left)
        raise
    except KeyboardInterrupt:
        end.status = -signal.SIGINT
        raise
    finally:
        end.process = os.getpid()


def _launch(handlers: list[tuple[Any, ...]]) -> dict[str, Any] | None:
    """Forks a process that forks what the launcher starts; returns the request there, in each of its children.

    It is forked before the launcher has begun, so it inherits nothing of the launcher's.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        subprocess.Popen._execute_child = partialmethod(_start_rank, subprocess.Popen._execute_child, _Parent(ours))  # type: ignore[attr-defined]
        return None
    ours.close()
    die_with_parent()
    request = _serve(theirs, handlers)
    die_with_parent()
    for one in (signal.SIGHUP, signal.SIGQUIT):  # torchrun handles them, so what it executes does not ignore them
        signal.signal(one, signal.SIG_DFL)
    if request["unbuffered"]:
        _unbuffer()
    if request["own session"]:
        os.setsid()
    return request


def _unbuffer() -> None:
    """As the interpreter does for -u."""
    for number, name in (1, "stdout"), (2, "stderr"):
        stream = getattr(sys, name)
        raw = io.FileIO(number, "w", closefd=False)
        made = io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)
        vars(sys).update({name: made, f"__{name}__": made})


def _start_rank(process: subprocess.Popen[bytes], execute: Any, parent: _Parent, *given: Any) -> None:
    """Popen._execute_child in a launcher."""
    asked = inspect.signature(execute).bind(process, *given).arguments
    if asked["args"][0] != sys.executable:
        execute(process, *given)
        return
    request, files = _request(asked)
    request["command"] = [word for place, word in enumerate(asked["args"]) if (place, word) != (1, "-u")]
    request |= {"unbuffered": "-u" in asked["args"][1:2], "own session": asked["start_new_session"]}
    process.pid, process._child_created = parent.child(request, files), True  # type: ignore[attr-defined]
    process._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]


def _start_zygote(
    process: subprocess.Popen[bytes], execute: Any, pid: int, waiting: socket.socket, *given: Any
) -> None:
    """Popen._execute_child in the agent."""
    asked = inspect.signature(execute).bind(process, *given).arguments
    if waiting.fileno() == -1 or not any("perdure.agent.fork" in word for word in map(str, asked["args"])):
        execute(process, *given)
        return
    request, files = _request(asked)
    with waiting:
        socket.send_fds(waiting, [json.dumps(request).encode()], files)
    process.pid, process._child_created = pid, True  # type: ignore[attr-defined]
    process._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]


@contextmanager
def _recorded(handlers: list[tuple[Any, ...]]) -> Iterator[None]:
    """The exit handlers."""
    register = atexit.register

    def record(*given: Any, **options: Any) -> Any:
        handlers.append((given, options))
        return register(*given, **options)

    atexit.register = record
    try:
        yield
    finally:
        atexit.register = register


def _register_first(handlers: Sequence[tuple[Any, ...]]) -> None:
    """The next handler that is registered is before these, but for our own, as if it had been registered before all
    imports."""
    register, (own, *imported) = atexit.register, handlers
    atexit._clear()

    def first(*given: Any, **options: Any) -> Any:
        atexit.register = register
        for handler, how in (own, (given, options), *imported):
            register(*handler, **how)
        return given[0]

    atexit.register = first


def _show(error: BaseException) -> None:
    """As the interpreter does, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)


def _main() -> None:
    handlers: list[tuple[Any, ...]] = []
    with _recorded(handlers):
        atexit.register(end := _End())
    sys.path.pop(0)  # this file's folder
    die_with_parent()
    _import(MODULES, handlers)
    request = _serve(socket.socket(fileno=int(sys.argv[1])), handlers)
    die_with_parent()
    if request["agent"] and (zygote := _zygote(handlers)):
        _be_zygote(zygote, end)
        return
    if request["launcher"]:
        request = _launch(handlers) or request
    if request.get("keeper"):
        os.setsid()
        subprocess.call = partial(_call, subprocess.call, end)
    _run(request["command"], end)


if __name__ == "__main__":
    _main()
