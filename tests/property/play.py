"""A program and its undisturbed twin, run to the end, and what the judge says.

Called by the tests of this folder and `python -m tests.property`.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.property import diary
from tests.property.grammar import Disturbance, Program, drawn, parts, plainer, sane
from tests.property.judge import Run, told_apart
from tests.property.ranks import Forge, Rank, places
from tests.property.script import script

LEFT = 75
"""What a script exits with that has saved and left; with 0 where it asks should_stop(), and ends by itself."""
MOST_SAID = 3000


class Wrong(Exception):
    """A run ended as none should: its argument says how."""


@dataclass(frozen=True)
class Request:
    """A seed's program, or its reduced form."""

    seed: int
    without: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        """Drawn again."""
        return drawn(self.seed, self.without)

    def command(self) -> str:
        """That repeats it."""
        without = f" --without {' '.join(self.without)}" if self.without else ""
        return f"python -m tests.property replay {self.seed}{without}"


@dataclass(frozen=True)
class Stage:
    """Where one training takes place."""

    forge: Forge
    folder: Path
    program: Program

    def runs(self) -> Iterator[list[Run]]:
        """Each run's diaries by rank: one with each disturbance, then others until the job is complete."""
        self.folder.mkdir(parents=True)
        (self.folder / "script.py").write_text(script(self.program))
        for number, disturbance in enumerate(self.program.disturbances):
            run = self._run(number, disturbance)
            yield run
            if run[0].ended == "complete":
                break
        else:
            run = self._run(len(self.program.disturbances), None)
            yield run
        if run[0].ended != "complete":
            raise Wrong(f"the last run was not disturbed and has not ended the training: {run[0].lines[-1:]}")
        if self.program.again:
            yield self._run(99, None)

    def _run(self, number: int, disturbance: Disturbance | None) -> list[Run]:
        ranks = [self._rank(number, rank, place, disturbance) for rank, place in enumerate(places(self.program.world))]
        ended = self.forge.run(ranks)
        lines = [_lines(Path(rank.environ[diary.PATH])) for rank in ranks]
        complete = [line[-1:] == ['["end"]'] for line in lines]
        exporting = any(line[-1:] and line[-1].startswith('["final"') for line in lines)
        kill = ended.by(signal.SIGKILL) and disturbance is not None and "kill" in disturbance.kind
        if kill or (ended.by(signal.SIGTERM) and exporting):  # below the loops no session holds SIGTERM
            how = "killed"
        elif LEFT in ended.statuses and disturbance is not None and _left_before_a_step(ranks):
            how = "left before a step"
        elif {*ended.statuses} - {0, LEFT}:
            said = "\n".join(f"rank {n}: {Path(rank.said).read_text()[-MOST_SAID:]}" for n, rank in enumerate(ranks))
            raise Wrong(f"run {number + 1} ended with {ended.statuses} (None: it hung)\n{said}")
        elif all(complete) and not any(ended.statuses):
            how = "complete"
        elif not any(complete) and disturbance is not None and "term" in disturbance.kind:
            how = "left"
        else:
            raise Wrong(f"run {number + 1} left by itself, or on some ranks only: {lines}")
        return [Run(line, how) for line in lines]

    def _rank(self, number: int, rank: int, place: dict[str, str], disturbance: Disturbance | None) -> Rank:
        program, files = self.program, self.folder / f"run{number}-rank{rank}"
        environ = place | {
            "PERDURE_ROOT": (self.folder / "root").as_uri(),
            "PERDURE_GRACE_SECONDS": "5" if program.hurried else "600",
            "PERDURE_CHECK_SECONDS": str(program.check_seconds),
            "PERDURE_KEEP": str(program.keep),
            diary.PATH: f"{files}.diary",
        }
        if program.every_steps:
            environ["PERDURE_EVERY_STEPS"] = str(program.every_steps)
        if program.every_epochs:
            environ["PERDURE_EVERY_EPOCHS"] = str(program.every_epochs)
        if disturbance is not None and disturbance.rank in (None, rank):
            environ[diary.DISTURBANCE] = json.dumps([disturbance.kind, disturbance.moment, disturbance.delay])
        return Rank(str(self.folder / "script.py"), f"{files}.said", environ)


def contradiction(forge: Forge, folder: Path, program: Program) -> str | None:
    """What is wrong with a program, in words; the folder is left empty."""
    try:
        twin = list(Stage(forge, folder / "twin", replace(program, disturbances=(), again=False)).runs())[-1]
        runs = list(Stage(forge, folder / "disturbed", program).runs())
    except Wrong as wrong:
        return str(wrong)
    finally:
        for name in ("twin", "disturbed"):
            shutil.rmtree(folder / name, ignore_errors=True)
    for rank in range(program.world):
        found = told_apart(program, [run[rank] for run in runs], twin[rank])
        if found:
            return f"rank {rank}: {found}"
    return None


def shrunk(forge: Forge, folder: Path, request: Request) -> Request:
    """The smallest program found that is still wrong, by taking away one part after another."""
    smaller = True
    while smaller:
        smaller = False
        program = request.program
        for part in parts(program):
            tried = replace(request, without=(*request.without, part))
            if sane(plainer(program, [part])) != program and contradiction(forge, folder, tried.program):
                request, smaller = tried, True
                break
    return request


def report(request: Request, found: str) -> str:
    """For a person."""
    happened = "\n".join(f"#   {disturbance}" for disturbance in request.program.disturbances)
    return f"{script(request.program)}\n# happens:\n{happened}\n# {request.program}\n\n{found}\n{request.command()}"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _left_before_a_step(ranks: list[Rank]) -> bool:
    """Then the first rank that was asked leaves at once without a save, and the others find it gone."""
    return any("asked to leave before the first step" in Path(rank.said).read_text() for rank in ranks)
