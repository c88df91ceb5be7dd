"""The cost of the same changes of members if trainers end and begin: in place, and with all leaving.

Agents and trainers as plain processes on this machine, a folder as the store, no cluster: so it is the least that these
ways cost, without Kubernetes' part. In place the newcomers are warm when the others are assigned, as with the operator.
If all leave, the next members' processes start when the last ones are asked to save, and get their ranks once those
have ended and they are warm. One training takes several moves, one after another.

Called by e2e.bench.handover, which measures the live ones.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from e2e.bench.report import FOLDER, Figure
from e2e.harness import evidence, timeline
from e2e.harness.handover import Way
from e2e.harness.local_members import SAVE_SECONDS, LocalMembers
from e2e.prepare import Progress
from perdure.wire import Leave

SECONDS: Final = 600.0
PACE: Final = {"small": 0.02, "large": 0.5}
"""Seconds between two steps: training is not measured, and newcomers need the machine."""
PROCESSES: Final = 2
"""An agent's processes: the zygote, and the trainer."""
STEPS: Final = 3
"""Steps of each run before its move."""


class Move(NamedTuple):
    """From `old` ranks to `new` ones."""

    name: str
    old: int
    new: int
    joins: tuple[int, ...]
    leavers: tuple[int, ...]


Costs = Mapping[str, float]
"""The pause, and its parts, in seconds."""


def measure(progress: Progress, moves: Sequence[Move], rounds: Mapping[str, int]) -> Iterator[Figure]:
    """Each way with each model: its moves one after another, in one training."""
    for model, times in rounds.items():
        for way in (Way.IN_PLACE, Way.RECREATE):
            for row in _rows(moves):
                words = f"{model} model, {way}: {', '.join(move.name for move in row)}"
                progress.say(f"{words}, {times} times")
                with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
                    found = _Training(Path(folder), model, way).moved(list(row) * times)
                for move in row:
                    costs = [cost for done, cost in zip(list(row) * times, found, strict=True) if done == move]
                    yield from _figures(f"{model}, {move.name}, {way}", costs)


def _rows(moves: Sequence[Move]) -> list[list[Move]]:
    """Moves that may follow one another repeatedly: each begins with as many ranks as the last one ends with."""
    rows: list[list[Move]] = []
    for move in moves:
        if rows and rows[-1][-1].new == move.old:
            rows[-1].append(move)
        else:
            rows.append([move])
    return rows


def _figures(name: str, costs: Sequence[Costs]) -> Iterator[Figure]:
    for part in dict.fromkeys(part for cost in costs for part in cost):
        samples = tuple(cost.get(part, 0.0) * 1e3 for cost in costs)
        yield Figure(f"{name}: {part}", "ms", samples)


class _Training:
    """One job, moved again and again."""

    def __init__(self, folder: Path, model: str, way: Way) -> None:
        self._way = way
        self._numbers = count()
        environ = {"PERDURE_LIVE": "no", "PERDURE_EVERY_SECONDS": "3600", "PERDURE_CHECK_SECONDS": "0"}
        environ |= {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PERDURE_KEEP": "1"}
        argv = [sys.executable, "-m", "e2e.bench.handover_training", model, str(PACE[model])]
        self._job = LocalMembers(argv, folder, environ)
        self._run = 1
        self._names: list[str] = []

    def moved(self, moves: Sequence[Move]) -> list[Costs]:
        """The cost of each move."""
        with self._job as job:
            self._names = [f"m{next(self._numbers)}" for _ in range(moves[0].old)]
            job.first_run(*self._names)
            for move in moves:
                self._trains()
                self._move(move)
            self._trains()
        trace, entries = job.root.trace(), job.root.entries()
        gaps = evidence.gaps(trace.steps)
        if len(gaps) != len(moves):
            raise evidence.NoEvidence(f"{len(moves)} moves, and training paused {len(gaps)} times")
        return [
            {"pause": gap.seconds}
            | {part.name: part.seconds for part in timeline.in_place_parts(entries, trace.marks, gap)}
            for gap in gaps
        ]

    def _trains(self) -> None:
        run = self._run
        self._job.waits(f"run {run} trains", lambda: self._least_steps() >= STEPS, SECONDS)

    def _least_steps(self) -> int:
        """The least progress of the newest run's ranks."""
        done = Counter(step.rank for step in self._job.root.trace().steps if step.run == self._run)
        return min(done[rank] for rank in range(len(self._names)))

    def _move(self, move: Move) -> None:
        if self._way is Way.RECREATE:
            self._recreate(move)
        else:
            self._in_place(move)

    def _in_place(self, move: Move) -> None:
        old, fresh = self._names, [self._started() for _ in move.joins]
        self._wait_until_warm(fresh)
        self._wait_until_alone(old)
        newcomers, stayers = iter(fresh), (name for rank, name in enumerate(old) if rank not in move.leavers)
        new = [next(newcomers if rank in move.joins else stayers) for rank in range(move.new)]
        self._tell(new, [old[rank] for rank in move.leavers])

    def _recreate(self, move: Move) -> None:
        old, new = self._names, [self._started() for _ in range(move.new)]
        self._leave(old)
        self._wait_until_ended(old)
        self._wait_until_warm(new)
        self._tell(new, [])

    def _tell(self, new: list[str], leavers: Sequence[str]) -> None:
        self._job.begins(self._run + 1, new)
        self._leave(leavers)
        self._wait_until_ended(leavers)
        self._names, self._run = new, self._run + 1

    def _leave(self, names: Sequence[str]) -> None:
        for name in names:
            self._job.members[name].assign(Leave(self._run + 1, "drain", SAVE_SECONDS))

    def _started(self) -> str:
        name = f"m{next(self._numbers)}"
        self._job.standby(name)
        return name

    def _wait_until_warm(self, names: Sequence[str]) -> None:
        members = self._job.members
        self._job.waits("newcomers are warm", lambda: all(members[name].warm for name in names), SECONDS)

    def _wait_until_alone(self, names: Sequence[str]) -> None:
        """The last trainer's interpreter may still be shutting down: two moves in a row are not typical."""
        agents = [self._job.members[name].process.pid for name in names]

        def alone() -> bool:
            return all(len(_children(agent)) <= PROCESSES for agent in agents)

        self._job.waits("earlier trainers have ended", alone, SECONDS)

    def _wait_until_ended(self, names: Sequence[str]) -> None:
        for name in names:
            self._job.members[name].process.wait(SECONDS)


def _children(process: int) -> list[str]:
    """The processes that are its children."""
    return [
        child for task in Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()
    ]
