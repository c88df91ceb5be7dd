"""How a process leaves its run before the goal: with a save at one step, or without one where nothing was trained.

Whether to leave is decided elsewhere (perdure.session.boundary). Called by the session's rooms.
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
"""EX_TEMPFAIL of sysexits.h: the work is not done, and the same command goes on with it."""


class Exit(SystemExit):
    """Leaves the script before the goal: the final commit is in the log, or there is nothing to save."""


def leaving_status(run: Run) -> int:
    """What a process that leaves exits with: an agent is told how the run has ended, a shell has the status alone.

    With 0, `python train.py && python export.py` would export what is half trained.
    """
    return UNFINISHED if run.settings.report_fd is None else 0


def save_and_leave(run: Run, saved: Callable[[], None]) -> NoReturn:
    """All ranks save and leave, at one place; `saved` may keep this process for a while. Collective."""
    save_finally(run)
    saved()
    raise Exit(leaving_status(run))


def save_finally(run: Run) -> None:
    """The run's last commit, at one place of all ranks. Collective; UserError if they stand at different ones."""
    run.pulse.stop()
    request, position = run.requests.current, run.progress.position()
    if request:
        run.timings.note({"agree": time.monotonic() - request.at})
    told = run.peers.gather(
        "saves and leaves",
        {"cause": request.cause if request else "", "place": place(position), "result": run.result.value},
    )
    check_places([found["place"] for found in told])
    cause = next((found["cause"] for found in told if found["cause"]), "a rank was asked to exit")
    run.tell(Leaving(position.step, cause))
    run.share_result(told[0].get("result"))
    run.checkpointer.final(position, cause, run.requests.left)
    run.progress.saved = True
    run.tell_commit()
    tell_leaving(run, cause)
    run.tell(run.ending(ExitKind.CHECKPOINTED))
    run.checkpointer.write_trace(run.requests.left)


def tell_leaving(run: Run, cause: str) -> None:
    """The script's hooks are called; one that ends the script itself does what is being done anyway."""
    with contextlib.suppress(SystemExit):
        run.hooks.run(HookName.LEAVING, cause)
    run.reports.end()


def place(position: Position) -> str:
    """Where a rank stands, to be compared and for people."""
    return f"step {position.step} of epoch {position.epoch}, {json.dumps(position.cursors, sort_keys=True)}"


def check_places(places: list[str]) -> None:
    """UserError unless all ranks stand at the same place."""
    for rank, place in enumerate(places):
        if place != places[0]:
            raise UserError(
                f"the ranks leave at different places: rank 0 at {places[0]}, rank {rank} at {place}: ask every "
                f"loader for the same batches on every rank"
            )


def give_up(run: Run) -> None:
    """Before the run is open: leaves if anybody asked to."""
    if run.requests.seen:
        _stopped(run, "asked to leave before the run was open")
        raise Exit(leaving_status(run))


def stop_without_step(run: Run) -> None:
    """In the requests' thread: nothing was trained, so there is nothing to save, and the main thread may hang.

    Rank 0 alone, as the log is its own: another rank may be a step behind one that is done.
    """
    if run.rank != 0:
        return
    run.checkpointer.close("no-step")
    _stopped(run, "asked to leave before the first step was done")
    _leave_at_once(leaving_status(run))


def lose_peers(run: Run, why: str) -> None:
    """From any thread: the main thread may wait in a collective for ever. The store may be cut off too."""
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
    """From any thread, whatever the others do: nothing is undone, only what was printed is written."""
    sys.stdout.flush()
    os._exit(status)
