"""Programs that tell what they find, for the comparison of a forked trainer with an executed one: programs.py KIND."""

import atexit
import ctypes
import gc
import json
import logging.handlers
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

kept: list[Any] = []
"""What a script leaves to the interpreter's shutdown, which frees the last one first."""


class Point:
    """Of __main__: pickled by that name."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __getitem__(self, index: int) -> int:
        return self.x + index

    def __len__(self) -> int:
        return 3


def twice(point: Point) -> int:
    return 2 * point.x


def copied(point: Point) -> Point:
    found = pickle.loads(pickle.dumps(point))  # noqa: S301 - its own bytes
    assert isinstance(found, Point)
    return found


def surroundings() -> None:
    """Everything that a program can ask its interpreter about how it was started."""
    environ = {name: value for name, value in os.environ.items() if name != "PERDURE_REPORT_FD"}
    streams = [(s.line_buffering, s.write_through, s.encoding, s.fileno()) for s in (sys.stdout, sys.stderr)]  # type: ignore[union-attr]
    found: dict[str, Any] = {
        "argv": [sys.argv, sys.orig_argv, sys.executable, str(sys.flags)],
        "path": sys.path,
        "names": {
            name: str(value) for name, value in globals().items() if name.startswith("__") and name != "__spec__"
        },
        "spec": str(__spec__ and __spec__.name),
        "folder": str(Path.cwd()),
        "environ": environ,
        "stdin": sys.stdin.read(),
        "streams": streams,
        "leads its session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "handlers": [str(signal.getsignal(number)).partition(" at ")[0] for number in signal.Signals],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "gc": [gc.isenabled(), gc.get_threshold()],
        "threads": [thread.name for thread in threading.enumerate()],
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "report is passed on": os.get_inheritable(int(os.environ["PERDURE_REPORT_FD"])),
        "dies with": parent_death_signal(),
    }
    found["names"].pop("__loader__", None)
    print(json.dumps(found, indent=1))


def parent_death_signal() -> int:
    import ctypes

    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))
    return number.value


def status() -> None:
    sys.exit(3)


def message() -> None:
    sys.exit("the last words")


def at_once() -> None:
    print("what is buffered is lost", end="")
    os._exit(7)


def caused() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        raise RuntimeError("after it") from error


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def handled() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


def hooked() -> None:
    sys.excepthook = lambda kind, error, trace: print(kind, trace and trace.tb_lineno, error.__traceback__ is trace)
    raise ValueError("boom")


def unraisable() -> None:
    atexit.register(print, "at the end")

    class Bad:
        def __del__(self) -> None:
            raise ValueError("in __del__")

    Bad()


def order() -> None:
    """The script, its threads, exit handlers from the last to the first; what they use is still there."""

    def late() -> None:
        threading.main_thread().join()
        print("thread", copied(Point(1)).x)

    atexit.register(print, "first registered")
    atexit.register(lambda: print("last registered", copied(Point(2)).x))
    threading.Thread(target=late).start()
    print("script")


class Waits:
    """Blocks the interpreter's shutdown forever."""

    def __del__(self, pause: Callable[[], None] = signal.pause) -> None:
        pause()


class Deaf:
    """Stands for stdout, and does not flush it."""

    def __init__(self) -> None:
        self.behind = sys.stdout

    def write(self, text: str) -> None:
        self.behind.write(text)

    def flush(self) -> None:
        pass


class Cycle:
    """Tells its end, which only the collector finds."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        print("collected")


def unwritten() -> None:
    """Everything that a script may leave in buffers, and register for its end."""
    kept.append(Waits())
    ctypes.CDLL(None).printf(b"of C\n")
    kept.append(memory := logging.handlers.MemoryHandler(100, target=logging.StreamHandler()))
    memory.emit(logging.makeLogRecord({"msg": "logged", "levelno": logging.INFO}))
    kept.append(finalized := Point(0))
    weakref.finalize(finalized, print, "finalized")
    kept.append(written := Path("fifo").open("w"))  # noqa: SIM115 - it is left open
    written.write("piped")
    atexit.register(lambda: print("last registered"))
    Cycle()
    sys.stdout = Deaf()


def forking() -> None:
    """A process that it has forked ends as it does itself."""
    if pid := os.fork():
        os.waitpid(pid, 0)
    os.write(int(os.environ["PERDURE_REPORT_FD"]), b"parent\n" if pid else b"child\n")


def remembered() -> None:
    atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback is not None))
    raise ValueError("boom")


def closed() -> None:
    os.close(1)
    print("to nobody")


def processes() -> None:
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(twice, [Point(1), Point(2)]))


def with_torch() -> None:
    """Workers of its loaders, and parallel regions, with the threads that the environment gives."""
    import torch
    from torch.utils.data import DataLoader

    for method in ("fork", "spawn"):
        loader: DataLoader[int] = DataLoader(Point(4), num_workers=1, multiprocessing_context=method)  # type: ignore[arg-type]
        print(method, [int(batch) for batch in loader])
    matrix = torch.ones(512, 512)
    print(torch.get_num_threads(), torch.cuda.is_initialized(), float((matrix @ matrix).sum()))


def neighbours() -> None:
    """A file beside the script, and one in the working directory."""
    import beside  # type: ignore[import-not-found]

    print(beside.WORD, Path("data.txt").read_text())


def drawn() -> None:
    """What no two processes may share."""
    import numpy as np
    import torch

    print("DRAWN", random.random(), np.random.rand(), float(torch.rand(())))  # noqa: S311


if __name__ == "__main__":
    kinds: dict[str, Callable[[], None]] = {n: f for n, f in globals().items() if callable(f)}
    kinds[sys.argv[1]]()
