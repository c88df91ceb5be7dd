"""A trainer that orders a save in the background and goes on: a program, for tests that kill it.

    python -m tests.unit.runtime.checkpoint.background.owner ROOT main|thread|fork|held

Prints the uploader's process id once the save is ordered. `thread`: another thread starts the uploader, and stays.
`fork`: a forked worker stays, too, and its id is printed. `held`: as `thread`, and another process has the pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from perdure.checkpoint.background.arena import Arena
from perdure.checkpoint.background.uploading import Uploader
from tests.unit.runtime.checkpoint.background.parts import FOLDER, filled


def main() -> None:
    root, how = sys.argv[1:3]
    arena = Arena()
    uploader = Uploader(arena, root)

    if how in ("thread", "held"):
        started = threading.Event()

        def begin() -> None:
            uploader.start()
            started.set()
            threading.Event().wait()

        threading.Thread(target=begin, daemon=True).start()
        started.wait()
    uploader.order(FOLDER, filled(arena))
    worker = 0
    if how == "fork":
        worker = os.fork()
        if not worker:
            signal.pause()
    if how == "held" and uploader._process:
        worker = subprocess.Popen(
            ["sleep", "600"], pass_fds=[uploader._process.orders.fileno()], stdout=subprocess.DEVNULL
        ).pid
    print(uploader.pid, worker, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
