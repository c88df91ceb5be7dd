"""The session of `perdure describe -- python train.py`: runs the script up to its first batch, and describes the rest.

It opens, restores, saves and trains nothing, and calls no hook. The process exits with status 0 where the script
requests its first batch, where its first loop has nothing left to train, or at its end. Made by `Session`, instead of
its boundary and its epoch loops.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from perdure.checkpoint.codec import decode
from perdure.checkpoint.opening import Opening
from perdure.checkpoint.outlook import StartOutlook, look_ahead
from perdure.checkpoint.stage import stage
from perdure.errors import Corrupt, UserError
from perdure.loop.data.source import Source
from perdure.loop.leaving import Exit
from perdure.loop.position.stopping import Goal, Limit, StopCondition
from perdure.loop.run import Run
from perdure.session.boundary import Boundary
from perdure.session.describing import scripts_own, would_start
from perdure.session.description import Description, Finding, StartPoint
from perdure.session.job import EpochLoops, Status
from perdure.session.late import awaits
from perdure.session.resuming import NOTHING_REGISTERED
from perdure.wire import ExitKind
from perdure.wire.names import PREVIEW_JSON, PREVIEW_TEXT


class Preview:
    """Takes the place of a training."""

    def __init__(self, run: Run, describe: Callable[[], Description], folder: Path) -> None:
        """Rank 0 leaves the description in `folder`."""
        self._run = run
        self._describe = describe
        self._folder = folder
        self.boundary = _Boundary(run, self)
        self.loops = _EpochLoops(run, self.boundary, self)
        self.start: StartPoint | None = None
        """Where the training would begin, once that is known."""
        self.done = False
        """True once it is described."""
        self.refused: list[Finding] = []
        """Why the training would be refused."""
        self._outlook: StartOutlook | None = None

    def restore(self) -> None:
        """Finds where the training would begin, and sets that position. Loads nothing."""
        if self.start:
            return
        run = self._run
        self._outlook = outlook = look_ahead(run.settings, run.store)
        if outlook.position:
            run.progress.resume(outlook.position)
        self.start = would_start(outlook, run.store.uri)
        run.opening = Opening(outlook.run, outlook.run, outlook.goal, None)

    def tell(self) -> None:
        """Describes the session, once. Returns when all ranks have done so. Collective."""
        if self.done:
            return
        self.restore()
        self.done, run = True, self._run
        run.heartbeat.stop()
        described = self._describe()
        if not any(finding.certain for finding in described.findings):  # otherwise this finds the same in other words
            self._rehearse()
        described = replace(described, findings=(*described.findings, *self.refused))
        if run.rank == 0:
            (self._folder / PREVIEW_TEXT).write_text(str(described))
            (self._folder / PREVIEW_JSON).write_text(json.dumps(described.plain()))
        run.peers.gather("has described its training", None)  # rank 0 must not leave while another is still on its way
        run.tell(run.ending(ExitKind.STOPPED))

    def end(self) -> None:
        """The script has ended without requesting a batch."""
        if not self.loops.begun:
            self._refuse("no-epochs", "the script has no epochs(): nothing is trained, and nothing is completed")
        self.tell()

    def _rehearse(self) -> None:
        """Rehearses a save and a restore, without writing or reading a tensor, and notes what they would refuse."""
        run = self._run
        if not scripts_own(run):
            self._refuse("nothing-registered", NOTHING_REGISTERED)
        with self._noting("not-saved"):
            stage(run.state(), run.rank, run.world)
        with self._noting("does-not-fit"):
            self._fit()

    def _fit(self) -> None:
        if self._outlook and (manifest := self._outlook.manifest()):
            objects = decode(manifest.objects)
            self._run.registry.targets(objects, manifest.tensors)
            if names := self._run.registry.awaited(objects):
                self.refused.append(Finding("not-registered-yet", awaits(names), certain=False))

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except (UserError, Corrupt) as error:
            self._refuse(name, str(error))

    def _refuse(self, name: str, text: str) -> None:
        self.refused.append(Finding(name, text))

    def begin_loop(self, goal: Goal, stop: Sequence[StopCondition | Limit]) -> None:
        """Leaves if nothing could ever end the loop."""
        with self._noting("no-end"):
            self._run.stopping.begin(goal, stop)
        if self.refused:
            self.leave()

    def leave(self) -> NoReturn:
        """Describes, and leaves the script."""
        self.tell()
        raise Exit


class _Boundary(Boundary):
    """Every call that belongs to a training ends the preview."""

    def __init__(self, run: Run, preview: Preview) -> None:
        super().__init__(run)
        self._preview = preview

    def batch_requested(self, source: Source[Any]) -> NoReturn:  # noqa: ARG002
        self._preview.leave()

    def step(self, *, exhausted: bool) -> NoReturn:  # noqa: ARG002
        self._preview.leave()

    def poll(self) -> NoReturn:
        self._preview.leave()

    def should_stop(self) -> NoReturn:
        self._preview.leave()

    def mark(self, pin: str | None = None) -> None:
        """Nothing is saved."""


class _EpochLoops(EpochLoops):
    """Epoch loops of a preview: none of them trains."""

    def __init__(self, run: Run, boundary: Boundary, preview: Preview) -> None:
        super().__init__(run, boundary, preview.restore)
        self._preview = preview

    def epochs(
        self,
        goal: Goal,
        stop: Sequence[StopCondition | Limit],
        *,
        in_all: bool = False,  # noqa: ARG002 - no loop comes before this one
    ) -> Iterator[int]:
        if self._preview.done:
            raise Exit
        self._preview.begin_loop(goal, stop)
        self._preview.restore()
        self.begun, self.goal = self.begun + 1, goal
        if self._progress.begin_loop(self.begun - 1, goal) and not self._is_over(goal):
            yield self._progress.begin_epoch()
        self._preview.leave()

    def finish(self, status: Status) -> None:  # noqa: ARG002
        self._preview.end()
