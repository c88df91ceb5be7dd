"""How a process leaves its run before the goal: with a save at one step, or without one if nothing was trained.

perdure.session.boundary decides whether to leave. Called by the session's rooms.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

from perdure.console import say
from perdure.errors import PerdureError, UserError
from perdure.log.position import Position
from perdure.loop.hooks import HookName
from perdure.loop.run import Run
from perdure.loop.telemetry.events import Leaving
from perdure.wire import ExitKind

UNFINISHED: Final = 75
"""EX_TEMPFAIL of sysexits.h: the work is not done, and the same command continues it."""


class Exit(SystemExit):
    """Leaves the script before the goal: the final commit is in the log, or there is nothing to save."""


def leaving_status(run: Run) -> int:
    """The exit status of a process that leaves. An agent learns the outcome in other ways; a shell has only the status.

    With status 0, `python train.py && python export.py` would export a half-trained model.
    """
    return UNFINISHED if run.settings.report_fd is None else 0


def save_and_leave(run: Run, saved: Callable[[], None]) -> NoReturn:
    """Saves and leaves, on all ranks at the same place. `saved` may keep this process for a while. Collective."""
    save_finally(run)
    saved()
    raise Exit(leaving_status(run))


def save_finally(run: Run) -> None:
    """Makes the run's last commit, with all ranks at the same place. Collective; UserError if they are at different
    ones."""
    run.heartbeat.stop()
    request, position = run.requests.current, run.progress.position()
    if request:
        run.timings.note({"agree": time.monotonic() - request.at})
    reports = run.peers.gather(
        "saves and leaves",
        {"cause": request.cause if request else "", "place": place(position), "result": run.result.value},
    )
    check_places([found["place"] for found in reports])
    cause = next((found["cause"] for found in reports if found["cause"]), "a rank was asked to exit")
    run.tell(Leaving(position.step, cause))
    run.share_result(reports[0].get("result"))
    streamed = run.background.leave(
        position, run.requests.left, lambda left: run.checkpointer.final(position, cause, left), hurries=True
    )
    run.progress.saved = True
    if streamed:
        run.tell_commit()
    tell_leaving(run, cause)
    run.tell(run.ending(ExitKind.CHECKPOINTED))
    run.checkpointer.write_trace(run.requests.left)


def tell_leaving(run: Run, cause: str) -> None:
    """Calls the script's `leaving` hooks. A hook may end the script: it leaves anyway."""
    with contextlib.suppress(SystemExit):
        run.hooks.run(HookName.LEAVING, cause)
    run.reports.end()


def place(position: Position) -> str:
    """A rank's position as text, for comparison and for people."""
    return f"step {position.step} of epoch {position.epoch}, {json.dumps(position.cursors, sort_keys=True)}"


def check_places(places: list[str]) -> None:
    """UserError unless all ranks are at the same place."""
    for rank, place in enumerate(places):
        if place != places[0]:
            raise UserError(
                f"the ranks leave at different places: rank 0 at {places[0]}, rank {rank} at {place}: ask every "
                f"loader for the same batches on every rank"
            )


def give_up(run: Run) -> None:
    """Leaves before the run is open, if an exit was requested."""
    if run.requests.seen:
        _stopped(run, "asked to leave before the run was open")
        raise Exit(leaving_status(run))


def stop_without_step(run: Run) -> None:
    """Leaves at once from the requests' thread: nothing was trained, so there is nothing to save, and the main thread
    may hang.

    Only on rank 0, which owns the log: another rank may be a step behind.
    """
    if run.rank != 0:
        return
    run.checkpointer.close("no-step")
    _stopped(run, "asked to leave before the first step was done")
    _leave_at_once(leaving_status(run))


def lose_peers(run: Run, why: str) -> None:
    """Ends this process after it has lost its peers. From any thread: the main thread may hang in a collective, and the
    store may be cut off too."""
    run.images.leave()
    run.tell(run.ending(ExitKind.PEER_LOST))
    say(why)
    with contextlib.suppress(PerdureError):
        run.trace.flush()
    _leave_at_once(1)


def _stopped(run: Run, why: str) -> None:
    with contextlib.suppress(PerdureError):
        run.trace.flush()
    run.tell(run.ending(ExitKind.STOPPED))
    say(why)


def _leave_at_once(status: int) -> NoReturn:
    """Exits from any thread, whatever the others are doing. Flushes printed output, and undoes nothing."""
    sys.stdout.flush()
    os._exit(status)
